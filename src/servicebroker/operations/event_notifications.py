"""CREATE and DROP EVENT NOTIFICATION."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model.event_types import DATABASE, QUEUE, SERVER
from servicebroker.operations.operation import Definition

CURRENT_DATABASE = "current database"  # compared byte by byte


@dataclass(frozen=True, slots=True)
class CreateEventNotification(Definition[None]):
    """CREATE EVENT NOTIFICATION name ON ... FOR events TO SERVICE: each event is a message to that service.

    The message is of the type EventNotification; `sb.read_event` reads its body. Without `on_queue` and `on_server` it
    is ON DATABASE. DDL in T-SQL is reported with the commit of its transaction.

    Args:
        name: unique among those on the queue, the database, or the server; compared without case.
        events: on a queue QUEUE_ACTIVATION, when it wants a reader, and BROKER_QUEUE_DISABLED, when poison detection
            has disabled it; elsewhere BROKER_QUEUE_DISABLED, DDL such as CREATE_TABLE, and groups such as
            DDL_SSB_EVENTS.
        to_service: the service that gets the messages; it accepts the contract PostEventNotification.
        on_queue: a queue of this database.
        on_server: events of all databases, and of the instance, as CREATE_LOGIN. Administrators make those, and in
            T-SQL logins with the permission; the conversation is of this database.
        broker_instance: identifier of the database that has it, or "current database".
        with_fan_in: of several that the same login made for the same service, one message goes out.

    Raises:
        BrokerError: 9718 QUEUE_ACTIVATION where the activation of a procedure is on, 8197 no such queue, 2714 name
            taken, 1084 no such event, 1098 none of a queue, database or server, 1093, 8413, 402, 15151 no permission to
            alter the queue, 262, 15247.
    """

    permission: ClassVar[str] = "CREATE EVENT NOTIFICATION ON DATABASE"

    name: str
    _: KW_ONLY
    events: str | Sequence[str]
    to_service: str
    on_queue: str | None = None
    on_server: bool = False
    broker_instance: str | UUID = CURRENT_DATABASE
    with_fan_in: bool = False

    @property
    def scope(self) -> str:
        """The scope of the notification: QUEUE, SERVER or DATABASE."""
        return QUEUE if self.on_queue is not None else SERVER if self.on_server else DATABASE


@dataclass(frozen=True, slots=True)
class DropEventNotification(Definition[None]):
    """DROP EVENT NOTIFICATION name ON QUEUE, SERVER or, without either, DATABASE; the service gets an EndDialog.

    Args:
        name: compared without case.
        on_queue: the queue of this database that it is on.
        on_server: whether it is on the server.

    Raises:
        BrokerError: 15151 no such queue, or notification on it, or not for the user; 15247.
    """

    permission: ClassVar[str] = "DROP EVENT NOTIFICATION ON DATABASE"

    name: str
    _: KW_ONLY
    on_queue: str | None = None
    on_server: bool = False
