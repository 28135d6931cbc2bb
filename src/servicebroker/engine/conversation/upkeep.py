"""What is due without anybody asking: timers, lifetimes, closed endpoints. Each function takes the time.

RECEIVE does the same for its own queue; these are for queues that nobody receives from.
"""

from __future__ import annotations

from datetime import datetime

from servicebroker.engine.conversation.endpoints import remove_endpoints
from servicebroker.engine.conversation.failure import drop_waiting
from servicebroker.engine.delivery.transmission import lock_free
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


WORTH_GIVING_BACK = 8 * 1024 * 1024  # bytes of a queue's files

_OPEN = "e.can_expire"  # as the index of lifetimes has it


def due_queues(now: datetime) -> Steps[list[int]]:
    """The queues with a timer or a lifetime that is due, and that nobody holds."""
    rows = yield Statement(
        "upkeep.due_queues",
        "select q.queue_id from servicebroker.queues q join servicebroker.databases d using (database_id) "
        "where not d.is_read_only and (exists ("
        "select from servicebroker.conversation_endpoints e where e.queue_id = q.queue_id and e.dialog_timer <= $1 "
        "for update skip locked) or exists (select from servicebroker.conversation_endpoints e "
        f"where e.queue_id = q.queue_id and e.lifetime <= $1 and {_OPEN} and e.state <> 'DO' for update skip locked)) "
        "order by q.queue_id",
        (now,),
    )
    return [queue_id for (queue_id,) in rows]


def serve_queue(queue_id: int, now: datetime) -> Steps[None]:
    """Fire the timers and end the lifetimes of a queue, some hundred of them. Readers are woken."""
    yield Statement(
        "upkeep.serve_queue",
        f"select servicebroker.fire_timers_{queue_id}($1), servicebroker.expire_{queue_id}($1), "
        f"case when exists (select from servicebroker.waiting_readers where queue_id = {queue_id}) "
        f"then pg_notify('servicebroker', '{queue_id}') end",
        (now,),
    )


def bloated_queues() -> Steps[list[int]]:
    """The queues whose files are large enough to give their space back when they are empty."""
    rows = yield SQL("bloated_queues", (WORTH_GIVING_BACK,))
    return [queue_id for (queue_id,) in rows]


def give_space_back(queue_id: int) -> Steps[bool]:
    """Cut the table of a queue that is empty down to nothing, unless anybody is at it. Returns whether it was done."""
    rows = yield SQL("give_space_back", (queue_id,))
    return bool(rows[0][0])


def expire_ended(now: datetime, limit: int = 100) -> Steps[int]:
    """Remove endpoints that have ended and wait for nothing but the delivery of that, which did not come in time.

    Their application never sees the error; a peer expires by itself. Returns how many.
    """
    rows = yield Statement(
        "upkeep.expire_ended",
        "select e.conversation_handle from servicebroker.conversation_endpoints e "
        "where e.queue_id = any (array(select queue_id from servicebroker.queues join servicebroker.databases d "
        f"using (database_id) where not d.is_read_only)) and e.lifetime <= $1 and {_OPEN} "
        "and e.state = 'DO' order by e.conversation_handle limit $2 for update skip locked",
        (now, limit),
    )
    free = list((yield from lock_free([handle for (handle,) in rows])))  # their peers too, which are written to
    if free:
        yield drop_waiting(free)
        yield from remove_endpoints(free)
    return len(free)
