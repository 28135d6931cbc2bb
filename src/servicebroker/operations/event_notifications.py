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
    """CREATE EVENT NOTIFICATION name ON ... FOR events TO SERVICE: send a message to the service for each event.

    The message has the type EventNotification; `sb.read_event` reads its body. Without `on_queue` and `on_server` the
    notification is ON DATABASE. DDL in T-SQL is reported when its transaction commits.

    Args:
        name: the name of the notification, case-insensitive, unique on the queue, the database or the server.
        events: on a queue: QUEUE_ACTIVATION (the queue needs a reader) and BROKER_QUEUE_DISABLED (poison detection has
            disabled it). On a database or the server: BROKER_QUEUE_DISABLED, DDL such as CREATE_TABLE, and groups such
            as DDL_SSB_EVENTS.
        to_service: the service that gets the messages. It must accept the contract PostEventNotification.
        on_queue: a queue of this database.
        on_server: True for events of all databases and of the instance, such as CREATE_LOGIN. It requires an
            administrator, or in T-SQL a login with the permission. The conversation belongs to this database.
        broker_instance: the broker identifier of the service's database, or "current database".
        with_fan_in: send only one message for several notifications of the same login and service.

    Raises:
        BrokerError: 9718 QUEUE_ACTIVATION on a queue with activation of a procedure, 8197 no such queue, 2714 the name
            is taken, 1084 no such event, 1098 the event does not exist for a queue, database or server, 1093 an invalid
            broker identifier, 8413 an identifier that is too long, 402 a wrong argument, 15151 no permission to alter
            the queue, 262 and 15247 no permission.
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
    """DROP EVENT NOTIFICATION name ON QUEUE or SERVER, by default ON DATABASE. The service gets an EndDialog.

    Args:
        name: the name of the notification, case-insensitive.
        on_queue: the queue of a notification ON QUEUE.
        on_server: True for a notification ON SERVER.

    Raises:
        BrokerError: 15151 no such queue or notification, or no permission; 15247.
    """

    permission: ClassVar[str] = "DROP EVENT NOTIFICATION ON DATABASE"

    name: str
    _: KW_ONLY
    on_queue: str | None = None
    on_server: bool = False
