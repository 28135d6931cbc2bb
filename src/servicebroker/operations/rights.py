"""Operations that grant and revoke the rights of a PostgreSQL role. T-SQL has no such statements."""

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
        role: an existing PostgreSQL role.
        database: the broker database; required with `send`, `receive` and `contracts`.
        send: services to send to (SEND), with their contracts (REFERENCES).
        receive: queues to receive from (RECEIVE). The role may also begin, use and end conversations of the services on
            these queues.
        contracts: contracts for new conversations (REFERENCES).
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
            BrokerError: 402 the database is missing.
        """
        if self.database is None and (self.send or self.receive or self.contracts):
            raise BrokerError(402, "the database", "missing", "the database of the services, queues and contracts")


@dataclass(frozen=True, slots=True)
class GrantRights(RightsChange, Operation[None]):
    """Let a PostgreSQL role use Service Broker as a user of the broker database, and revoke its rights on the tables.

    The user gets the role's name, unless the role has a user already. Processes that opened the instance as this role
    while it had rights on the tables must open it again.

    Raises:
        BrokerError: 15007 no such role, 911 no such database, 15151 an unknown name, 15023 another user has the role's
            name, 402 names without a database.
        InstanceError: the role has the rights of the schema's owner, or the caller lacks them.
    """


@dataclass(frozen=True, slots=True)
class RevokeRights(RightsChange, Operation[None]):
    """Revoke rights of a role: the named permissions, or all in the database; without a database, all its rights.

    Raises:
        BrokerError: 15007 no such role, 911 no such database, 15151 an unknown name, 402 names without a database.
        InstanceError: the caller does not have the rights of the schema's owner.
    """
