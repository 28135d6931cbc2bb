# Made from aio/rights.py by tools/make_sync.py: change that file, then run `make sync`.
"""What PostgreSQL roles may do with an instance, as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from servicebroker.api.transaction import translated
from servicebroker.engine.security import role_rights
from servicebroker.engine.security.role_rights import RoleRights, Wanted
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import in_transaction, run


class Rights(ABC):
    """Roles that may do the verbs and nothing else. For the PostgreSQL role that owns the schema, or its members."""

    @abstractmethod
    def connection(self) -> AbstractContextManager[DirectConnection]:
        """A connection of the pool."""

    def grant_rights(
        self,
        role: str,
        *,
        database: str | None = None,
        send: Sequence[str] = (),
        receive: Sequence[str] = (),
        contracts: Sequence[str] = (),
    ) -> None:
        """Let a PostgreSQL role do the verbs, as a user of the broker database, and take its rights on our tables.

        The user has the role's name unless the role is one there already. It gets RECEIVE on the queues `receive`, with
        which it begins, sends on and ends the conversations of their services; SEND on the services `send`, and
        REFERENCES on their contracts and on `contracts`. Processes that have the instance open as this role with rights
        on tables must open it again.

        Raises:
            BrokerError: 15007 no such role, 911, 15151 unknown names, 15023 another user has the role's name, 402 names
                without a database.
            InstanceError: the role can do everything anyway, or we are not the owner.
        """
        wanted = Wanted(database, send, receive, contracts)
        with self.connection() as connection, translated():
            in_transaction(connection, role_rights.apply(role_rights.granting(role, wanted)))

    def revoke_rights(
        self,
        role: str,
        *,
        database: str | None = None,
        send: Sequence[str] = (),
        receive: Sequence[str] = (),
        contracts: Sequence[str] = (),
    ) -> None:
        """Take permissions back; all in the database where none is named; without a database every right of the role.

        Raises:
            BrokerError: 15007, 911, 15151, 402.
            InstanceError: we are not the owner.
        """
        wanted = Wanted(database, send, receive, contracts)
        with self.connection() as connection, translated():
            in_transaction(connection, role_rights.apply(role_rights.revoking(role, wanted)))

    def show_rights(self, role: str | None = None) -> list[RoleRights]:
        """What a role can really do, by PostgreSQL's catalogs; without one, each that has to do with the instance.

        Raises:
            BrokerError: 15007 no such role.
        """
        with self.connection() as connection, translated():
            return run(connection, role_rights.rights_of(role))
