"""What is in the queues, at a bounded cost: a count stops at a limit instead of reading millions of rows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.model import names
from servicebroker.store.statements import Statement, Steps

COUNT_LIMIT = 100_000


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
    queues = yield Statement(
        "queue_counts.queue_statuses.find_queues",
        "select d.name, q.schema_name || '.' || q.name, q.queue_id, "
        "coalesce((select array_agg(s.name order by s.name) from servicebroker.services s "
        "          where s.queue_id = q.queue_id), '{}') "
        "from servicebroker.queues q join servicebroker.databases d using (database_id) "
        "order by d.name, q.schema_name, q.name",
    )
    found = []
    for database, queue, queue_id, services in queues:
        rows = yield Statement(
            "queue_counts.queue_statuses.count_messages",
            f"select count(*), min(message_enqueue_time) from (select message_enqueue_time "
            f"from servicebroker.queue_{queue_id} order by priority desc, queuing_order limit {COUNT_LIMIT}) q",
        )
        if queue_id < names.FIRST_USER_ID and not rows[0][0]:
            continue
        states = yield Statement(
            "queue_counts.queue_statuses.count_endpoints",
            "select state, count(*) from (select state from servicebroker.conversation_endpoints "
            f"where queue_id = $1 limit {COUNT_LIMIT}) e group by state order by state",
            (queue_id,),
        )
        found.append(QueueStatus(database, queue, list(services), rows[0][0], rows[0][1], dict(states)))
    return found


class ConnectionStatus(NamedTuple):
    """One connection of the daemon; `principal_name` is the peer's certificate, None without encryption."""

    peer: str
    is_accept: bool
    state: str
    principal_name: str | None


class Refusal(NamedTuple):
    """How many peers the daemon has refused with an error's number, which one lately, and in which words."""

    number: int
    times: int
    last_peer: str
    text: str


def is_standby() -> Steps[bool]:
    """Whether the server only shows what its primary has: nothing runs on it."""
    rows = yield Statement("queue_counts.is_standby", "select pg_is_in_recovery()")
    return bool(rows[0][0])


def connections() -> Steps[list[ConnectionStatus]]:
    """The connections of the daemon that serves the instance; none while there is no such daemon."""
    rows = yield Statement(
        "queue_counts.connections",
        "select remote_user_name, is_accept = 1, login_state_desc, principal_name from sys.dm_broker_connections "
        "order by connect_time",
    )
    return [ConnectionStatus(*row) for row in rows]


def refusals() -> Steps[list[Refusal]]:
    """The peers that were refused."""
    rows = yield Statement(
        "queue_counts.refusals",
        "select number, refused, last_peer, coalesce((select last_text from servicebroker.refusals r "
        "  where r.is_ours and r.number = c.number order by r.last_time desc limit 1), '') "
        "from servicebroker.rows_here(null::servicebroker.refused_connections) c order by number",
    )
    return [Refusal(*row) for row in rows]
