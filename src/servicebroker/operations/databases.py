"""ALTER and DROP DATABASE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from servicebroker.model.arguments import Termination, check_broker_options, check_changes, checked_termination
from servicebroker.operations.operation import Definition


@dataclass(frozen=True, slots=True)
class AlterDatabase(Definition[None]):
    """ALTER DATABASE SET: one of the first four, HONOR_BROKER_PRIORITY, TRUSTWORTHY and READ_ONLY, or several.

    Args:
        enable_broker: deliver messages, also those that wait in the transmission queue.
        disable_broker: messages from and to this database wait in the transmission queue.
        new_broker: a new identifier; every conversation is removed without a message to its peer.
        error_broker_conversations: every conversation gets the Error -9719, and its other side -9720.
        honor_broker_priority: whether transmission to other instances follows the priorities.
        trustworthy: whether T-SQL that works as a user of the database (EXECUTE AS USER, modules, activation) is in
            other databases who the user's login is, and dbo is dbo; else it is guest there. For administrators.
        read_only: whether writes into the database are refused, with 3906, also in PostgreSQL; its broker waits
            meanwhile. False is READ_WRITE.
        no_wait: whether `enable_broker`, `new_broker` and `read_only`, which need the database for themselves, are
            refused (5070) instead of waiting until no running transaction has sent into it or received from it.
        rollback_after: seconds after which the sessions of those transactions are ended; 0 is ROLLBACK IMMEDIATE.

    Raises:
        BrokerError: 5070 the database is in use, with `no_wait`; 9772 an enabled database has the same identifier;
            402 for two of the four at once, or of the two last; 5011 no permission, 15247 none for TRUSTWORTHY;
            3906 something else is altered while it is read-only.
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
        """Check the fields, and return what becomes of those who use the database.

        Raises:
            BrokerError: 402.
        """
        check_broker_options(self.enable_broker, self.disable_broker, self.new_broker, self.error_broker_conversations)
        check_changes(
            HONOR_BROKER_PRIORITY=self.honor_broker_priority, TRUSTWORTHY=self.trustworthy, READ_ONLY=self.read_only
        )
        return checked_termination(self.no_wait, self.rollback_after)


@dataclass(frozen=True, slots=True)
class DropDatabase(Definition[None]):
    """DROP DATABASE: the broker database with its conversations and objects. Verbs on it get 8442 from now on.

    Peers in other databases are not told; their next SEND gets them the Error -8462. Tables of your own in the
    PostgreSQL schemas of the database stay.

    Args:
        name: compared without case.
        rollback_after: seconds after which the sessions of transactions that use the database are ended; 0 ends them at
            once. Without it, a database in use is not dropped.

    Raises:
        BrokerError: 911 when it does not exist, 3702 in use, 3708 msdb, 15151 no permission, 402.
    """

    name: str
    _: KW_ONLY
    rollback_after: float | None = None
