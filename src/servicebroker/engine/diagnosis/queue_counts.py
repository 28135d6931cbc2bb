"""What is in the queues, at a bounded cost: a count stops at a limit instead of reading millions of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from servicebroker.model import names
from servicebroker.model.requests import all_groups
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import COUNTED_AT_MOST
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


COUNT_LIMIT = COUNTED_AT_MOST
TRANSMISSION_QUEUE = 0  # its number among the queues, where it is shown beside them
AT_ONCE = 100  # queues that one statement reads


class QueueStatus(NamedTuple):
    """One queue. `messages` stops at COUNT_LIMIT; `oldest` is UTC; `conversations` counts endpoints by state."""

    database: str
    queue: str
    services: list[str]
    messages: int
    oldest: datetime | None
    conversations: dict[str, int]


class Backlog(NamedTuple):
    """The transmission queue: how many messages (up to COUNT_LIMIT), since when, and why the oldest waits."""

    messages: int
    oldest: datetime | None
    status: str


def transmission_status() -> Steps[Backlog]:
    """What is sent and not delivered."""
    rows = yield Statement(
        "queue_counts.transmission_status",
        "select count(*), min(enqueue_time), "
        "coalesce((array_agg(transmission_status order by enqueue_time))[1], '') "
        f"from (select * from servicebroker.transmission_queue limit {COUNT_LIMIT}) t",
    )
    return Backlog(*rows[0])


def queue_statuses() -> Steps[list[QueueStatus]]:
    """Every queue of the instance, by database and name; of the built-in ones those that hold something."""
    queues = yield SQL("queue_statuses.find_queues")
    depths = yield from queue_depths(queue_id for _, _, queue_id, _ in queues)
    states = yield SQL("queue_statuses.count_endpoints")
    conversations: dict[int, dict[str, int]] = {}
    for queue_id, state, many in states:
        conversations.setdefault(queue_id, {})[state] = many
    return [
        QueueStatus(database, queue, list(services), *depths[queue_id][:2], conversations.get(queue_id, {}))
        for database, queue, queue_id, services in queues
        if queue_id >= names.FIRST_USER_ID or depths[queue_id].messages
    ]


class Depth(NamedTuple):
    """How many messages a queue has, up to COUNT_LIMIT, and since when it has the oldest.

    `is_for_callers`: all of them are answers to requests, whose callers may ask for them.
    """

    messages: int
    oldest: datetime | None
    is_for_callers: bool = False


def share_of(queues: int) -> int:
    """How far each of so many queues is counted by who looks at all of them every second."""
    return max(100, COUNT_LIMIT // max(1, queues))


def queue_depths(queue_ids: Iterable[int], counted: int = COUNT_LIMIT) -> Steps[dict[int, Depth]]:
    """The depth of each of these queues: one statement for many of them, and none for those that have no file.

    Where a count stops at `counted`, before COUNT_LIMIT, it goes on with what PostgreSQL's statistics say.
    """
    depths = dict.fromkeys(queue_ids, Depth(0, None))
    lowest, highest = all_groups()
    for some in in_parts((yield from stored_queues(depths))):
        text = " union all ".join(
            f"select {queue_id}, {_many(queue_id, counted)}, min(message_enqueue_time), "
            f"coalesce(bool_and(conversation_group_id between '{lowest}' and '{highest}'), false) "
            f"from (select message_enqueue_time, conversation_group_id from servicebroker.queue_{queue_id} "
            f"order by priority desc, queuing_order limit {counted}) q"
            for queue_id in some
        )
        rows = yield Statement("queue_counts.queue_depths", text, prepared=False)
        depths |= {queue_id: Depth(*depth) for queue_id, *depth in rows}
    return depths


def _many(queue_id: int, counted: int) -> str:
    if counted >= COUNT_LIMIT:
        return "count(*)"
    known = f"pg_stat_get_live_tuples('servicebroker.queue_{queue_id}'::regclass)"
    return f"case when count(*) < {counted} then count(*) else greatest(count(*), {known}) end"


def stored_queues(queue_ids: Iterable[int], table: str = "queue") -> Steps[list[int]]:
    """Those of the queues whose table has anything in its file: many queues are empty, and need no look."""
    rows = yield Statement(
        "queue_counts.stored_queues",
        f"select q from unnest($1::int[]) as q where pg_relation_size(to_regclass('servicebroker.{table}_' || q)) > 0",
        (list(queue_ids),),
    )
    return [queue_id for (queue_id,) in rows]


FLOWS = (  # of each queue of applications what came and what left since PostgreSQL counts, and what is there; and of 0,
    # which is the transmission queue
    "select q.queue_id, coalesce(pg_stat_get_tuples_inserted(r.place), 0) as arrived, "
    "coalesce(pg_stat_get_tuples_deleted(r.place), 0) as departed, "
    "coalesce(pg_stat_get_live_tuples(r.place), 0) as messages "
    "from (select queue_id, 'servicebroker.queue_' || queue_id as name from servicebroker.queues "
    f"where queue_id >= {names.FIRST_USER_ID} union all "
    f"select {TRANSMISSION_QUEUE}, 'servicebroker.transmission_queue') q "
    "cross join lateral (select to_regclass(q.name)::oid as place) r"
)


def in_parts(queue_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """So many at a time as one statement is to read: it locks the table and the indexes of each."""
    return (queue_ids[start : start + AT_ONCE] for start in range(0, len(queue_ids), AT_ONCE))


class ConnectionStatus(NamedTuple):
    """One connection of the daemon; `principal_name` is the peer's certificate, None without encryption."""

    peer: str
    is_accept: bool
    state: str
    principal_name: str | None


class ProcessStatus(NamedTuple):
    """A process of the daemon. `memory`: bytes that are resident, None where the system does not tell.

    `replaced`: how often one in its place was killed, lately when and how.
    """

    number: int
    process_id: int
    memory: int | None
    replaced: int
    last_time: datetime | None
    ending: str | None


class Refusal(NamedTuple):
    """How many peers the daemon has refused with an error's number, which one lately, and in which words."""

    number: int
    times: int
    last_peer: str
    text: str


def is_standby() -> Steps[bool]:
    """Whether the server only shows what its primary has: nothing runs on it."""
    rows = yield SQL("is_standby")
    return bool(rows[0][0])


def connections() -> Steps[list[ConnectionStatus]]:
    """The connections of the daemon that serves the instance; none while there is no such daemon."""
    rows = yield SQL("connections")
    return [ConnectionStatus(*row) for row in rows]


def processes() -> Steps[list[ProcessStatus]]:
    """Those that serve the instance; none while there is no daemon."""
    rows = yield Statement(
        "queue_counts.processes",
        "select number, process_id, memory, replaced, last_time, ending "
        "from servicebroker.rows_here(null::servicebroker.serving_processes) p where exists (select from pg_locks l "
        "where l.locktype = 'advisory' and l.granted and l.pid = p.pid "
        f"and l.classid::bigint = {locks.BROKER} and l.objid::bigint = 0) order by number",
    )
    return [ProcessStatus(*row) for row in rows]


def refusals() -> Steps[list[Refusal]]:
    """The peers that were refused."""
    rows = yield SQL("refusals")
    return [Refusal(*row) for row in rows]
