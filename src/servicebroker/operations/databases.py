"""ALTER and DROP DATABASE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from servicebroker.model.arguments import Termination, check_broker_options, check_changes, checked_termination
from servicebroker.operations.operation import Definition


@dataclass(frozen=True, slots=True)
class AlterDatabase(Definition[None]):
    """ALTER DATABASE SET: one of the first four options, and any of HONOR_BROKER_PRIORITY, TRUSTWORTHY and READ_ONLY.

    Args:
        enable_broker: deliver messages, also those that wait in the transmission queue.
        disable_broker: let messages from and to this database wait in the transmission queue.
        new_broker: set a new broker identifier, and remove every conversation. Their peers are not notified.
        error_broker_conversations: fail every conversation with the Error -9719, and its peer with -9720.
        honor_broker_priority: whether transmission to other instances follows the priorities.
        trustworthy: whether T-SQL that runs as a user of the database (EXECUTE AS USER, modules, activation) keeps
            the user's identity in other databases (dbo stays dbo). Otherwise the user is guest there. Only
            administrators may change this.
        read_only: whether writes into the database are refused (3906), also those of plain SQL; delivery stops
            meanwhile. READ_ONLY or READ_WRITE in T-SQL.
        no_wait: fail with 5070 if a running transaction has sent or received messages in the database. Applies to
            enabling the broker, a new broker identifier and read-only. Default: wait for the end of such
            transactions.
        rollback_after: terminate the sessions whose transactions still use the database after this number of
            seconds; 0 is ROLLBACK IMMEDIATE.

    Raises:
        BrokerError: 5070 the database is in use, with `no_wait`; 9772 an enabled database has the same identifier; 402
            two of the first four options, or `no_wait` with `rollback_after`; 5011 no permission, 15247 no permission
            for TRUSTWORTHY; 3906 another option of a read-only database.
    """

    method: ClassVar[str] = "alter"
    permission: ClassVar[str] = "ALTER DATABASE"

    _: KW_ONLY
    enable_broker: bool = False
    disable_broker: bool = False
    new_broker: bool = False
    error_broker_conversations: bool = False
    honor_broker_priority: bool | None = None
    trustworthy: bool | None = None
    read_only: bool | None = None
    no_wait: bool = False
    rollback_after: float | None = None

    def termination(self) -> Termination:
        """Check the fields, and return how to treat transactions that use the database.

        Raises:
            BrokerError: 402 a wrong type, or options that exclude each other.
        """
        check_broker_options(self.enable_broker, self.disable_broker, self.new_broker, self.error_broker_conversations)
        check_changes(
            HONOR_BROKER_PRIORITY=self.honor_broker_priority, TRUSTWORTHY=self.trustworthy, READ_ONLY=self.read_only
        )
        return checked_termination(self.no_wait, self.rollback_after)


@dataclass(frozen=True, slots=True)
class DropDatabase(Definition[None]):
    """DROP DATABASE: drop a broker database with its conversations and objects. Later statements on it raise 8442.

    Peers in other databases get no message; their next SEND fails with the Error -8462. Tables of the application in
    the PostgreSQL schemas of the database remain.

    Args:
        name: the name of the database, case-insensitive.
        rollback_after: terminate the sessions of transactions that use the database after this number of seconds; 0
            does so at once. Default: a database in use is not dropped.

    Raises:
        BrokerError: 911 no such database, 3702 it is in use, 3708 it is msdb, 15151 no permission, 402 a wrong
            argument.
    """

    name: str
    _: KW_ONLY
    rollback_after: float | None = None
