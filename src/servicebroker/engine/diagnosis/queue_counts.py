"""Queue depths at a bounded cost: a count stops at a limit instead of reading millions of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.diagnosis.worker_limits import WorkerLimits, find_worker_limits
from servicebroker.model import names
from servicebroker.model.requests import all_groups
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import MAX_COUNTED_ROWS
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


COUNT_LIMIT = MAX_COUNTED_ROWS
TRANSMISSION_QUEUE = 0  # its id among the queues, in lists that include it
QUEUES_PER_STATEMENT = 100  # queues read by one statement


class QueueStatus(NamedTuple):
    """One queue. `messages` is counted up to COUNT_LIMIT; `conversations` has the number of endpoints by state.

    `limits` are those of all its workers together. `is_on` is its STATUS. `dead_letters` are counted up to COUNT_LIMIT.
    """

    database: str
    queue: str
    services: list[str]
    messages: int
    oldest: datetime | None
    conversations: dict[str, int]
    limits: WorkerLimits | None = None
    is_on: bool = True
    dead_letters: int = 0


class DeadLettersOfQueue(NamedTuple):
    """The dead letters of one queue. `newest` and `error`: the time and the first line of the error of the latest.

    All queues together are counted up to COUNT_LIMIT, the latest dead letters first.
    """

    queue_id: int
    database: str
    queue: str
    letters: int
    newest: datetime
    error: str


class Backlog(NamedTuple):
    """The transmission queue: its messages (up to COUNT_LIMIT), time and transmission status of the oldest one.

    `delayed`: the number of delayed messages among them.
    """

    messages: int
    oldest: datetime | None
    status: str
    delayed: int = 0


def transmission_status() -> Steps[Backlog]:
    """Return the state of the transmission queue."""
    rows = yield Statement(
        "queue_counts.transmission_status",
        "select count(*), min(enqueue_time), "
        "coalesce((array_agg(transmission_status order by enqueue_time))[1], ''), count(delayed_until) "
        f"from (select * from servicebroker.transmission_queue limit {COUNT_LIMIT}) t",
    )
    return Backlog(*rows[0])


def queue_statuses() -> Steps[list[QueueStatus]]:
    """Return every queue of the instance, by database and name; built-in queues only if they have messages."""
    queues = yield SQL("queue_statuses.find_queues")
    depths = yield from queue_depths(queue_id for _, _, queue_id, *_ in queues)
    states = yield SQL("queue_statuses.count_endpoints")
    conversations: dict[int, dict[str, int]] = {}
    for queue_id, state, count in states:
        conversations.setdefault(queue_id, {})[state] = count
    limits = yield from find_worker_limits()
    dead_letters = {of_queue.queue_id: of_queue.letters for of_queue in (yield from dead_letters_by_queue())}
    return [
        QueueStatus(
            *(database, queue, list(services), *depths[queue_id][:2]),
            conversations.get(queue_id, {}),
            limits.get(queue_id),
            is_on,
            dead_letters.get(queue_id, 0),
        )
        for database, queue, queue_id, services, is_on in queues
        if queue_id >= names.FIRST_USER_ID or depths[queue_id].messages
    ]


def dead_letters_by_queue() -> Steps[list[DeadLettersOfQueue]]:
    """Return the number of dead letters and the latest one of each queue that has some, by database and queue."""
    rows = yield SQL("dead_letters_by_queue", (COUNT_LIMIT,))
    return [DeadLettersOfQueue(*row) for row in rows]


class Depth(NamedTuple):
    """The number of a queue's messages, up to COUNT_LIMIT, and the time of the oldest.

    `is_for_callers`: all of them are answers to requests, whose callers may receive them.
    """

    messages: int
    oldest: datetime | None
    is_for_callers: bool = False


def limit_for(queues: int) -> int:
    """Return the count limit for each queue if `queues` queues are polled every second."""
    return max(100, COUNT_LIMIT // max(1, queues))


def queue_depths(queue_ids: Iterable[int], counted: int = COUNT_LIMIT) -> Steps[dict[int, Depth]]:
    """Return the depth of each of these queues, with one statement for many queues. Empty table files are not read.

    Messages are counted up to `counted`. If that is less than COUNT_LIMIT, a larger number is the estimate of
    PostgreSQL's statistics.
    """
    depths = dict.fromkeys(queue_ids, Depth(0, None))
    lowest, highest = all_groups()
    for some in in_parts((yield from stored_queues(depths))):
        text = " union all ".join(
            f"select {queue_id}, {_count_expression(queue_id, counted)}, min(message_enqueue_time), "
            f"coalesce(bool_and(conversation_group_id between '{lowest}' and '{highest}'), false) "
            f"from (select message_enqueue_time, conversation_group_id from servicebroker.queue_{queue_id} "
            f"order by priority desc, queuing_order limit {counted}) q"
            for queue_id in some
        )
        rows = yield Statement("queue_counts.queue_depths", text, prepared=False)
        depths |= {queue_id: Depth(*depth) for queue_id, *depth in rows}
    return depths


def _count_expression(queue_id: int, counted: int) -> str:
    if counted >= COUNT_LIMIT:
        return "count(*)"
    known = f"pg_stat_get_live_tuples('servicebroker.queue_{queue_id}'::regclass)"
    return f"case when count(*) < {counted} then count(*) else greatest(count(*), {known}) end"


def stored_queues(queue_ids: Iterable[int], table: str = "queue") -> Steps[list[int]]:
    """Return the queues whose table file is not empty; the others need no query."""
    rows = yield Statement(
        "queue_counts.stored_queues",
        f"select q from unnest($1::int[]) as q where pg_relation_size(to_regclass('servicebroker.{table}_' || q)) > 0",
        (list(queue_ids),),
    )
    return [queue_id for (queue_id,) in rows]


FLOWS = (  # per application queue: messages in and out since PostgreSQL counts, and the depth; id 0 is the
    # transmission queue
    "select q.queue_id, coalesce(pg_stat_get_tuples_inserted(r.place), 0) as arrived, "
    "coalesce(pg_stat_get_tuples_deleted(r.place), 0) as departed, "
    "coalesce(pg_stat_get_live_tuples(r.place), 0) as messages "
    "from (select queue_id, 'servicebroker.queue_' || queue_id as name from servicebroker.queues "
    f"where queue_id >= {names.FIRST_USER_ID} union all "
    f"select {TRANSMISSION_QUEUE}, 'servicebroker.transmission_queue') q "
    "cross join lateral (select to_regclass(q.name)::oid as place) r"
)


def in_parts(queue_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split the queues into parts for one statement each, which locks the table and the indexes of each queue."""
    return (queue_ids[start : start + QUEUES_PER_STATEMENT] for start in range(0, len(queue_ids), QUEUES_PER_STATEMENT))


class ConnectionStatus(NamedTuple):
    """One connection of the daemon; `principal_name` is the peer's certificate, None without encryption."""

    peer: str
    is_accept: bool
    state: str
    principal_name: str | None


class ProcessStatus(NamedTuple):
    """A process of the daemon. `memory`: resident bytes, None if the system does not report them.

    `replaced`: how often the process was replaced because it was killed; `last_time` and `ending` are of the last time.
    """

    number: int
    process_id: int
    memory: int | None
    replaced: int
    last_time: datetime | None
    ending: str | None


class RefusalCount(NamedTuple):
    """The number of refusals with one error number, with the latest peer and text."""

    number: int
    times: int
    last_peer: str
    text: str


def is_standby() -> Steps[bool]:
    """Check whether the server is a standby."""
    rows = yield SQL("is_standby")
    return bool(rows[0][0])


def connections() -> Steps[list[ConnectionStatus]]:
    """Return the connections of the serving daemon; none without a daemon."""
    rows = yield SQL("connections")
    return [ConnectionStatus(*row) for row in rows]


def processes() -> Steps[list[ProcessStatus]]:
    """Return the processes of the serving daemon; none without a daemon."""
    rows = yield Statement(
        "queue_counts.processes",
        "select number, process_id, memory, replaced, last_time, ending "
        "from servicebroker.rows_here(null::servicebroker.serving_processes) p where exists (select from pg_locks l "
        "where l.locktype = 'advisory' and l.granted and l.pid = p.pid "
        f"and l.classid::bigint = {locks.BROKER_DAEMON} and l.objid::bigint = 0) order by number",
    )
    return [ProcessStatus(*row) for row in rows]


def refusals() -> Steps[list[RefusalCount]]:
    """Return the number of refusals by error number."""
    rows = yield SQL("refusals")
    return [RefusalCount(*row) for row in rows]
