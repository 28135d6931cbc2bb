"""Schedules of workers: list and drop them. Workers keep them, and take their turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.handlers.schedules import Firing, Schedule, ScheduledJob, is_replayed, new_group
from servicebroker.model.messages import Message
from servicebroker.model.wording import shown
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class Schedules(Operation[list[ScheduledJob]]):
    """List the schedules that workers have begun, the next one first.

    Raises:
        BrokerError: 5011 no permission: the list is for db_owner.
    """

    permission: ClassVar[str] = "ALTER DATABASE"


@dataclass(frozen=True, slots=True)
class DropSchedule(Operation[None]):
    """Drop a schedule, with its conversation. A worker that has it begins it again when it starts.

    Args:
        queue: the queue of its worker, as for `receive`.
        name: its name.

    Raises:
        BrokerError: 15151 no such queue or schedule, 402 no name, 5011 no permission.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str
    name: str

    def check(self) -> None:
        """Refuse what can be no name.

        Raises:
            BrokerError: 402.
        """
        if not isinstance(self.name, str) or not names.is_encodable(self.name) or "\0" in self.name:
            raise BrokerError(402, "name", shown(self.name), "the name of a schedule")


@dataclass(frozen=True, slots=True)
class KeepSchedule(Operation[None]):
    """Begin the schedule of a worker, if it has not begun, or give it another rule.

    Args:
        queue: the worker's queue.
        name: of the schedule.
        schedule: its times.

    Raises:
        InstanceError: the queue has no service.
        BrokerError: as `begin_dialog`.
    """

    queue: str
    name: str
    schedule: Schedule

    @staticmethod
    def begin(service: str) -> BeginDialog:
        """Return the BEGIN DIALOG of its conversation, which sends nothing and has a timer."""
        return BeginDialog(
            service, service, contract=names.DEFAULT, encryption=False, related_conversation_group=new_group()
        )


@dataclass(frozen=True, slots=True)
class TakeTurn(Operation[Firing | None]):
    """Take the turn of the schedule whose timer has fired, and set its timer to the next time.

    Args:
        handle: its conversation.
        is_replayed: the message is a dead letter that was replayed. Its turn was taken before.

    Returns:
        What is to be done; None if the conversation is of no schedule any more.
    """

    handle: UUID
    is_replayed: bool = False

    @classmethod
    def of(cls, message: Message) -> TakeTurn:
        """Return the operation for a message of a schedule."""
        return cls(message.conversation_handle, is_replayed(message))
