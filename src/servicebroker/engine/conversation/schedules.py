"""Schedules of workers: a row with the next time, and a conversation whose timer fires at that time.

The conversation sends nothing. Its timer puts a DialogTimer message into the queue at each scheduled time. One
transaction receives that message, runs the handler and writes the next time. No time is handled twice, even if the
clock is set back: the time in the row must have passed, and is only ever raised.

The id of the conversation group has a mark (`new_group` of model/handlers/schedules.py), by which a worker recognizes
such a timer without a query.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from servicebroker.engine.catalog.catalog import Queue
from servicebroker.engine.conversation.endpoints import lock_group_of
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers.schedules import Firing, Schedule, ScheduledJob
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.end import EndConversation
from servicebroker.operations.schedules import DropSchedule, KeepSchedule, TakeTurn
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Rows, Steps

SQL = SqlFile(__file__)

Call: TypeAlias = Callable[
    ..., Steps[Rows]
]  # calls a function of store/verbs.sql, or of fence.sql for restricted roles


class ScheduleRow(NamedTuple):
    """The row of a schedule.

    Attributes:
        handle: its conversation; None if the schedule has not begun.
        rule, time_zone, missed: the fields of `Schedule`.
        next_time: the next time to handle.
        is_open: the conversation has not ended.
        service: one of the queue's services.
    """

    handle: UUID | None
    rule: str
    time_zone: str
    missed: str
    next_time: datetime
    is_open: bool
    service: str | None

    @property
    def schedule(self) -> Schedule:
        """The rule for the times."""
        return Schedule(self.rule, self.time_zone, self.missed)


def keep(
    call: Call,
    queue: Queue,
    operation: KeepSchedule,
    now: datetime,
    begin: Callable[[BeginDialog], Steps[UUID]],
    end: Callable[[EndConversation], Steps[None]],
) -> Steps[None]:
    """Begin a schedule that has not begun, or change its rule. Another process may do so at the same time.

    `begin` and `end` are the verbs BEGIN DIALOG and END CONVERSATION.

    Raises:
        InstanceError: the queue has no service.
    """
    schedule = operation.schedule
    stored = ScheduleRow(*(yield from call("find_schedule", queue.queue_id, operation.name))[0])
    if stored.is_open and stored.schedule == schedule:
        return
    next_time = schedule.following(now)
    if stored.is_open and stored.schedule._replace(missed=schedule.missed) == schedule:
        next_time = stored.next_time
    handle = stored.handle
    if not stored.is_open:
        if stored.service is None:
            raise InstanceError(
                f"The queue {queue.name} has no service: a schedule of its worker needs one. Create a service on it."
            )
        handle = yield from begin(operation.begin(stored.service))
    rows = yield from call("set_schedule", queue.queue_id, operation.name, handle, *schedule, next_time)
    if not rows[0][0] and handle is not None:  # another process has begun the schedule meanwhile
        yield from end(EndConversation(handle, cleanup=True))


def take_turn(
    call: Call, operation: TakeTurn, now: datetime, end: Callable[[EndConversation], Steps[None]]
) -> Steps[Firing | None]:
    """Return the due time of the conversation's schedule, and set its timer to the next time.

    Returns None if the schedule was dropped, and ends its conversation. A replayed DialogTimer has no time.
    """
    handle = operation.handle
    rows = yield from call("schedule_of", handle)
    if not rows:
        yield from end(EndConversation(handle, cleanup=True))
        return None
    name, rule, time_zone, missed, due = rows[0]
    if operation.is_replayed:
        return Firing(name, None)
    turn = Schedule(rule, time_zone, missed).turn(due, now)
    yield from call("set_next_time", handle, turn.following)
    return Firing(name, turn.time)


def find_all(database_id: int) -> Steps[list[ScheduledJob]]:
    """Return the schedules of a database, the next due first."""
    rows = yield SQL("find_all", (database_id,))
    return [ScheduledJob(*row) for row in rows]


def drop(queue: Queue, operation: DropSchedule) -> Steps[UUID]:
    """Delete the row of a schedule. Returns its conversation.

    Raises:
        BrokerError: 15151 no schedule of that name.
    """
    key = queue.queue_id, operation.name
    rows = yield SQL("drop.find", key)
    for (handle,) in rows:  # in the order of `take_turn`: the group first, then the row
        with suppress(BrokerError):  # the conversation has ended
            yield from lock_group_of(handle)
    rows = yield SQL("drop.delete", key)
    if not rows:
        raise BrokerError(15151, "drop", "schedule", operation.name)
    dropped: UUID = rows[0][0]
    return dropped
