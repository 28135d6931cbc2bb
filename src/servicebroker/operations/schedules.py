"""Operations on schedules of workers: list and drop; begin and fire, which workers do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.handlers.schedules import Firing, Schedule, ScheduledJob, is_replayed, new_group
from servicebroker.model.messages import Message
from servicebroker.model.wording import short_repr
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class Schedules(Operation[list[ScheduledJob]]):
    """List the active schedules of workers, the next due first.

    Raises:
        BrokerError: 5011 no permission: the list requires db_owner.
    """

    permission: ClassVar[str] = "ALTER DATABASE"


@dataclass(frozen=True, slots=True)
class DropSchedule(Operation[None]):
    """Drop a schedule, with its conversation. A worker with the schedule begins it again at its next start.

    Args:
        queue: the queue of the worker, as for `receive`.
        name: the name of the schedule.

    Raises:
        BrokerError: 15151 no such queue or schedule, 402 an invalid name, 5011 no permission.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str
    name: str

    def check(self) -> None:
        """Refuse an invalid name.

        Raises:
            BrokerError: 402 an invalid name.
        """
        if not isinstance(self.name, str) or not names.is_encodable(self.name) or "\0" in self.name:
            raise BrokerError(402, "name", short_repr(self.name), "the name of a schedule")


@dataclass(frozen=True, slots=True)
class KeepSchedule(Operation[None]):
    """Begin a schedule of a worker if it does not exist, or change its times.

    Args:
        queue: the worker's queue.
        name: the name of the schedule.
        schedule: the times of the schedule.

    Raises:
        InstanceError: the queue has no service.
        BrokerError: as `begin_dialog`.
    """

    queue: str
    name: str
    schedule: Schedule

    @staticmethod
    def begin(service: str) -> BeginDialog:
        """Return the BEGIN DIALOG of the schedule's conversation, which sends no message and has a timer."""
        return BeginDialog(
            service, service, contract=names.DEFAULT, encryption=False, related_conversation_group=new_group()
        )


@dataclass(frozen=True, slots=True)
class TakeTurn(Operation[Firing | None]):
    """Return the due time of a schedule whose timer has fired, and set the timer to the next time.

    Args:
        handle: the conversation of the schedule.
        is_replayed: True for a replayed dead letter, whose timer was set before.

    Returns:
        The name and due time of the schedule; None if the conversation belongs to no schedule any more.
    """

    handle: UUID
    is_replayed: bool = False

    @classmethod
    def of(cls, message: Message) -> TakeTurn:
        """Return the operation for a message of a schedule."""
        return cls(message.conversation_handle, is_replayed(message))
