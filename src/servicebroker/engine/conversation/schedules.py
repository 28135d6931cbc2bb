"""Schedules of workers: each is a row, and a conversation that sends nothing, whose timer fires at the next time.

The timer puts one DialogTimer message into the queue for each time. One transaction receives it, runs the handler and
writes the next time. A time never comes twice, whatever the clock does: a turn is taken only if the time in the row is
over, and that time rises.

The conversation group is marked (`schedules.new_group`), so that a worker knows such a timer without a look.
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

Call: TypeAlias = Callable[..., Steps[Rows]]  # of a function of store/verbs.sql, or of the one behind the fence


class ScheduleRow(NamedTuple):
    """The row of a schedule. `is_open`: its conversation has not ended. `service`: one of the queue's services."""

    handle: UUID | None
    rule: str
    time_zone: str
    missed: str
    next_time: datetime
    is_open: bool
    service: str | None

    @property
    def schedule(self) -> Schedule:
        """The times."""
        return Schedule(self.rule, self.time_zone, self.missed)


def keep(
    call: Call,
    queue: Queue,
    operation: KeepSchedule,
    now: datetime,
    begin: Callable[[BeginDialog], Steps[UUID]],
    end: Callable[[EndConversation], Steps[None]],
) -> Steps[None]:
    """Begin a schedule that has not begun, or change its rule. Another process may do the same at the same time."""
    schedule = operation.schedule
    found = ScheduleRow(*(yield from call("find_schedule", queue.queue_id, operation.name))[0])
    if found.is_open and found.schedule == schedule:
        return
    following = schedule.following(now)
    if found.is_open and found.schedule._replace(missed=schedule.missed) == schedule:
        following = found.next_time
    handle = found.handle
    if not found.is_open:
        if found.service is None:
            raise InstanceError(f"The queue {queue.name} has no service: a schedule of its worker needs one.")
        handle = yield from begin(operation.begin(found.service))
    rows = yield from call("set_schedule", queue.queue_id, operation.name, handle, *schedule, following)
    if not rows[0][0] and handle is not None:  # another process has begun it meanwhile
        yield from end(EndConversation(handle, cleanup=True))


def take_turn(
    call: Call, operation: TakeTurn, now: datetime, end: Callable[[EndConversation], Steps[None]]
) -> Steps[Firing | None]:
    """Take the turn of a schedule, and set its timer. A conversation that was of a schedule ends."""
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
    """Return the schedules of a database, the next one first."""
    rows = yield SQL("find_all", (database_id,))
    return [ScheduledJob(*row) for row in rows]


def drop(queue: Queue, operation: DropSchedule) -> Steps[UUID]:
    """Delete the row of a schedule. Returns its conversation.

    Raises:
        BrokerError: 15151 there is none of that name.
    """
    key = queue.queue_id, operation.name
    found = yield SQL("drop.find", key)
    for (kept,) in found:  # a worker that takes the turn holds the group first, and then the row
        with suppress(BrokerError):  # the conversation has ended
            yield from lock_group_of(kept)
    rows = yield SQL("drop.delete", key)
    if not rows:
        raise BrokerError(15151, "drop", "schedule", operation.name)
    handle: UUID = rows[0][0]
    return handle
