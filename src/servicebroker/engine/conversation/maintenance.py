"""Maintenance of queues that no session receives from: fire due timers, end due lifetimes, truncate empty tables.

RECEIVE fires timers and ends lifetimes of its own queue. For other queues the maintenance thread (`api/maintenance.py`)
calls these functions.
"""

from __future__ import annotations

from datetime import datetime

from servicebroker.engine.conversation.endpoints import remove_endpoints
from servicebroker.engine.conversation.failure import delete_parked
from servicebroker.engine.delivery.transmission import lock_available
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MIN_TRUNCATED_BYTES = 8 * 1024 * 1024  # smaller files of a queue are not worth a TRUNCATE

_CAN_EXPIRE = "e.can_expire"  # the condition of the partial index on lifetimes


def find_due_queues(now: datetime) -> Steps[list[int]]:
    """Return the queues with a due timer or lifetime, on an endpoint that no session has locked."""
    rows = yield Statement(
        "maintenance.find_due_queues",
        "select q.queue_id from servicebroker.queues q join servicebroker.databases d using (database_id) "
        "where not d.is_read_only and (exists ("
        "select from servicebroker.conversation_endpoints e where e.queue_id = q.queue_id and e.dialog_timer <= $1 "
        "for update skip locked) or exists (select from servicebroker.conversation_endpoints e "
        f"where e.queue_id = q.queue_id and e.lifetime <= $1 and {_CAN_EXPIRE} and e.state not in ('DO', 'ER', 'CD') "
        "for update skip locked)) order by q.queue_id",
        (now,),
    )
    return [queue_id for (queue_id,) in rows]


def fire_timers_and_lifetimes(queue_id: int, now: datetime) -> Steps[None]:
    """Fire due timers and end due lifetimes of a queue, a few hundred at a time, and wake its readers."""
    yield Statement(
        "maintenance.fire_timers_and_lifetimes",
        f"select servicebroker.fire_timers_{queue_id}($1), servicebroker.expire_{queue_id}($1), "
        f"case when exists (select from servicebroker.waiting_readers where queue_id = {queue_id}) "
        f"then pg_notify('servicebroker', '{queue_id}') end",
        (now,),
    )


def find_bloated_queues() -> Steps[list[int]]:
    """Return the queues whose files are larger than `MIN_TRUNCATED_BYTES`."""
    rows = yield SQL("find_bloated_queues", (MIN_TRUNCATED_BYTES,))
    return [queue_id for (queue_id,) in rows]


def truncate_empty_queue(queue_id: int) -> Steps[bool]:
    """Truncate the table of a queue if it is empty and no session uses it. Returns True if it was truncated."""
    rows = yield SQL("truncate_empty_queue", (queue_id,))
    return bool(rows[0][0])


def remove_expired_endpoints(now: datetime, limit: int = 100) -> Steps[int]:
    """Remove expired endpoints that have ended and whose EndDialog or Error is still undelivered.

    Their application has ended the conversation, so it gets no Error. The peer has a lifetime of its own. Returns their
    number.
    """
    rows = yield Statement(
        "maintenance.remove_expired_endpoints",
        "select e.conversation_handle from servicebroker.conversation_endpoints e "
        "where e.queue_id = any (array(select queue_id from servicebroker.queues join servicebroker.databases d "
        f"using (database_id) where not d.is_read_only)) and e.lifetime <= $1 and {_CAN_EXPIRE} "
        "and e.state = 'DO' order by e.conversation_handle limit $2 for update skip locked",
        (now, limit),
    )
    # the peers are locked too, because their rows are written
    locked = list((yield from lock_available([handle for (handle,) in rows])))
    if locked:
        yield delete_parked(locked)
        yield from remove_endpoints(locked)
    return len(locked)
