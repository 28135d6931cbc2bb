"""Grant and revoke the rights of a PostgreSQL role. T-SQL has no such statements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

from servicebroker.model.arguments import read_once
from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class RightsChange:
    """A PostgreSQL role, and permissions of its user in a broker database.

    Args:
        role: the PostgreSQL role, which exists already.
        database: the broker database; required with `send`, `receive` and `contracts`.
        send: services: SEND on them, and REFERENCES on their contracts.
        receive: queues: RECEIVE on them, with which the role begins, sends on and ends conversations of their services.
        contracts: contracts: REFERENCES on them.
    """

    role: str
    _: KW_ONLY
    database: str | None = None
    send: Iterable[str] = ()
    receive: Iterable[str] = ()
    contracts: Iterable[str] = ()

    def __post_init__(self) -> None:
        """Read iterators once: the operation may be run again."""
        for field in ("send", "receive", "contracts"):
            object.__setattr__(self, field, read_once(getattr(self, field)))

    def check(self) -> None:
        """Refuse names of objects without their database.

        Raises:
            BrokerError: 402.
        """
        if self.database is None and (self.send or self.receive or self.contracts):
            raise BrokerError(402, "the database", "missing", "the one where the services, queues and contracts are")


@dataclass(frozen=True, slots=True)
class GrantRights(RightsChange, Operation[None]):
    """Let a PostgreSQL role use Service Broker as a user of the broker database. Revoke its rights on our tables.

    The user has the role's name unless the role is a user there already. Processes that opened the instance as this
    role while it had rights on tables must open it again.

    Raises:
        BrokerError: 15007 no such role, 911, 15151 unknown names, 15023 another user has the role's name, 402 names
            without a database.
        InstanceError: the role has the rights of the schema's owner, or the caller lacks them.
    """


@dataclass(frozen=True, slots=True)
class RevokeRights(RightsChange, Operation[None]):
    """Revoke permissions of a role: those named, else all in the database; without a database, all its rights.

    Raises:
        BrokerError: 15007 no such role, 911, 15151 unknown names, 402 names without a database.
        InstanceError: the caller does not have the rights of the schema's owner.
    """
