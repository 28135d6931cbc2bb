"""Queue monitors, their statements: find queues that need a monitor, poll them, and store the state of monitors.

The process whose session holds the queue's lease, an advisory lock, runs its monitor. When a monitor starts a reader is
decided in `protocol/queue_monitor.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.activation.clause import OWNER_ID
from servicebroker.model import names
from servicebroker.protocol.queue_monitor import Seen
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class Definition(NamedTuple):
    """A queue that is ON and has internal activation (a procedure) or external activation (event notifications).

    Attributes:
        procedure: the procedure's three-part name; None for external activation.
        principal: the name of the user that EXECUTE AS means; None if that user was dropped.
        execute_as: the value in the catalog, -2 for OWNER.
        version: another value means that the monitor has to start again.
    """

    queue_id: int
    database_id: int
    database: str
    schema: str
    queue: str
    procedure: str | None
    max_readers: int
    principal: str | None
    execute_as: int
    version: int

    @property
    def name(self) -> str:
        """`[schema].[queue]`, the queue's name for statements in its database."""
        return names.bracketed(self.schema, self.queue)


class QueueState(NamedTuple):
    """The state of a queue (`seen`), and the time at which its next timer or lifetime is due."""

    seen: Seen
    due: datetime | None


class Definitions(NamedTuple):
    """Every queue that needs a monitor. If two have the same `digest`, their queues are equal."""

    digest: int | None
    queues: list[Definition]


NO_DEFINITIONS = Definitions(None, [])


def find_definitions(known: Definitions) -> Steps[Definitions]:
    """Return every queue that needs a monitor now. If the digest is that of `known`, the server sends no rows."""
    rows = yield Statement(
        "monitors.find_definitions",
        "with found as materialized (select q.queue_id, q.database_id, d.name, q.schema_name, q.name as queue, "
        "case when q.is_activation_enabled then q.activation_procedure end as procedure, "
        "coalesce(q.max_readers, 0)::int as max_readers, p.name as principal, "
        "coalesce(q.execute_as_principal_id, 0) as execute_as, q.monitor_version "
        "from servicebroker.queues q join servicebroker.databases d using (database_id) "
        "left join servicebroker.principals p on p.database_id = q.database_id and p.principal_id = "
        f"case when q.execute_as_principal_id = {OWNER_ID} then q.owner_id else q.execute_as_principal_id end "
        "where q.is_monitored and q.is_receive_enabled and q.is_enqueue_enabled and d.is_broker_enabled "
        "and (q.notifies_activation or q.max_readers > 0)) "
        "select d.digest, f.* "
        "from (select coalesce(bit_xor(hash_record_extended(found, 0)), 0) as digest from found) d "
        "left join found f on d.digest is distinct from $1 order by f.queue_id",
        (known.digest,),
    )
    digest = rows[0][0]
    if digest == known.digest:
        return known
    return Definitions(digest, [Definition(*row) for _, *row in rows if row[0] is not None])


def poll_queue(queue_id: int, now: datetime, running: int) -> Steps[QueueState]:
    """Return the state of a queue, after applying its due timers and lifetimes."""
    rows = yield Statement(
        "monitors.poll_queue",
        f"select receivable, arrivals, receives, empty, waiting, due from servicebroker.look_{queue_id}($1)",
        (now,),
    )
    *counters, due = rows[0]
    return QueueState(Seen(*counters)._replace(running=running), due)


def find_version(queue_id: int) -> Steps[int | None]:
    """Return the current version of a queue's definition; None if the queue was dropped."""
    rows = yield SQL("find_version", (queue_id,))
    return rows[0][0] if rows else None


class QueueCounters(NamedTuple):
    """The counters of a queue that has changed: messages ever queued, empty RECEIVEs, waiting readers.

    `is_due`: a timer or a lifetime is due.
    """

    queue_id: int
    is_due: bool
    counters: tuple[int, ...]


class ChangedQueues(NamedTuple):
    """The result of one poll: the changed queues, and the snapshot of the poll.

    Transactions with an id below `oldest` had ended; those with an id from `next` on had not begun.
    """

    oldest: int
    next: int
    queues: list[QueueCounters]


_COUNTS = (  # messages ever queued, and RECEIVEs that found the queue empty
    "coalesce(pg_sequence_last_value(to_regclass('servicebroker.queue_' || q || '_order')), 0)",
    "coalesce(pg_sequence_last_value(to_regclass('servicebroker.queue_' || q || '_empty_receives')), 0)",
)
_UNKNOWN = (None, None, None)


def poll_changed(known: Mapping[int, tuple[int, ...]], now: datetime) -> Steps[ChangedQueues]:
    """Poll many queues in one statement, which takes some microseconds for each queue.

    `known` has the last counters of each queue. A queue is returned only if it has other counters now; () stands for
    unknown counters.
    """
    counters = zip(*(counters or _UNKNOWN for counters in known.values()), strict=True) if known else ((), (), ())
    rows = yield Statement(
        "monitors.poll_changed",
        "select pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint, g.* "
        "from pg_current_snapshot() as s left join (select q, due, drawn, empty, readers "
        "from unnest($1::int[], $3::bigint[], $4::bigint[], $5::bigint[]) as k (q, k_drawn, k_empty, k_readers), "
        "lateral (select exists (select from servicebroker.conversation_endpoints e "
        "where e.queue_id = q and e.dialog_timer <= $2) "
        "or exists (select from servicebroker.conversation_endpoints e where e.queue_id = q and e.lifetime <= $2 "
        "and e.can_expire and e.state not in ('DO', 'ER', 'CD')) as due, "
        f"{_COUNTS[0]} as drawn, {_COUNTS[1]} as empty, "
        "(select count(*) from servicebroker.waiting_readers w where w.queue_id = q and not w.is_monitor) as readers "
        "offset 0) seen "
        "where due or (drawn, empty, readers) is distinct from (k_drawn, k_empty, k_readers)) g on true",
        (list(known), now, *map(list, counters)),
    )
    changed = [QueueCounters(queue_id, is_due, tuple(counts)) for _, _, queue_id, is_due, *counts in rows if queue_id]
    return ChangedQueues(rows[0][0], rows[0][1], changed)


def is_empty(queue_id: int) -> Steps[bool]:
    """Check whether the queue's table has no row at all."""
    rows = yield Statement("monitors.is_empty", f"select from servicebroker.queue_{queue_id} limit 1", prepared=False)
    return not rows


def take_lease(queue_id: int) -> Steps[bool]:
    """Try to take the lease of the queue's monitor for this session. Returns True if this session has the lease."""
    rows = yield SQL("take_lease", (locks.QUEUE_ACTIVATION, queue_id))
    return bool(rows[0][0])


def release_lease(queue_id: int) -> Steps[None]:
    """Release the lease of the queue's monitor."""
    yield SQL("release_lease", (locks.QUEUE_ACTIVATION, queue_id))


def listen_for(queue_ids: Iterable[int]) -> Steps[None]:
    """Register this session for notifications of SENDs into these queues, and into no others."""
    yield SQL("listen_for", (sorted(queue_ids),))


class MonitorRow(NamedTuple):
    """The row of a monitor: for the view sys.dm_broker_queue_monitors, and for the next process with the lease.

    Attributes:
        notified_version: the version of the definition for which QUEUE_ACTIVATION was sent, if no RECEIVE followed.
        receives: the number of RECEIVEs of the queue before that notification.
    """

    queue_id: int
    state: str
    last_empty_rowset_time: datetime | None
    last_activated_time: datetime | None
    tasks_waiting: int
    notified_version: int | None
    receives: int


def find_notified(queue_id: int, version: int) -> Steps[int | None]:
    """Return the number of RECEIVEs of the queue before QUEUE_ACTIVATION was sent; None if no RECEIVE is awaited."""
    rows = yield SQL("find_notified", (queue_id, version))
    return rows[0][0] if rows else None


def save_states(rows: list[MonitorRow]) -> Steps[None]:
    """Store the state of monitors."""
    columns = list(zip(*rows, strict=True))
    yield SQL("save_states", tuple(map(list, columns)))


def enter_task(queue_id: int, procedure: str, execute_as: int) -> Steps[int]:
    """Register this session as running an activated procedure. Returns the number of RECEIVEs of the queue so far."""
    rows = yield Statement(
        "monitors.enter_task",
        "with entered as (insert into servicebroker.activated_tasks values (pg_backend_pid(), $1, $2, $3) "
        "on conflict (spid) do update set queue_id = $1, procedure_name = $2, execute_as = $3) "
        "select case when is_called then last_value else 0 end "
        f"from servicebroker.queue_{queue_id}_receives",
        (queue_id, procedure, execute_as),
    )
    return int(rows[0][0])


def leave_task() -> Steps[None]:
    """Unregister this session from the activated tasks."""
    yield SQL("leave_task")


def count_receives(queue_id: int) -> Steps[int]:
    """Return the number of RECEIVEs of a monitored queue so far."""
    rows = yield Statement(
        "monitors.count_receives",
        f"select case when is_called then last_value else 0 end from servicebroker.queue_{queue_id}_receives",
    )
    return int(rows[0][0])


def find_stop_reason(queue_id: int) -> Steps[int | None]:
    """Return the error number for a task that has to stop: 28085 queue dropped, 28086 queue or activation off.

    None if the task may continue.
    """
    rows = yield SQL("find_stop_reason", (queue_id,))
    if not rows:
        return 28085
    return None if rows[0][0] else 28086
