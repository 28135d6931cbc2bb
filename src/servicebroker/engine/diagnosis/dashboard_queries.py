"""Queries of the dashboard that status and doctor lack, at a bounded cost. They read, and wait for no lock.

Only the beginning of a body is fetched, cut by the server: a body may have half a gigabyte.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


SHOWN_BODY_BYTES = 4000  # bytes of a body
SEARCHED_MESSAGES = 1000  # messages of a queue, from its head
MAX_ROWS = 50  # rows of any other list

_IN_THIS_DATABASE = "l.database = (select oid from pg_database where datname = current_database())"
_BODY = (
    "case when m.is_shared then (select b.body from servicebroker.shared_bodies b "
    "join servicebroker.shared_body_readers r using (body_id) where r.reader = m.message_body) "
    "else m.message_body end as body"
)


class QueueLook(NamedTuple):
    """A queue with its switches, and the counts of poison handling."""

    queue_id: int
    database: str
    name: str
    services: list[str]
    is_on: bool
    is_activated: bool
    procedure: str | None
    max_readers: int | None
    is_retention_on: bool
    is_poison_handling_on: bool
    monitor: str | None  # the state of its queue monitor; None if no process runs it
    failing: int
    set_aside: int


class GroupLock(NamedTuple):
    """A session that has locked conversation groups among the first messages of a queue."""

    groups: list[UUID]
    pid: int
    role: str
    application: str
    state: str
    since: datetime | None
    statement: str


class MessageHead(NamedTuple):
    """A message with the beginning of its body, and the size of the whole body in bytes."""

    conversation_handle: UUID
    conversation_group_id: UUID
    number: int
    service: str
    message_type: str
    validation: str
    head: bytes | None
    size: int
    since: datetime
    failures: int


class Endpoint(NamedTuple):
    """One side of a conversation. `far_handle`: the other side, if it is in this instance."""

    database: str
    handle: UUID
    conversation_id: UUID
    is_initiator: bool
    state: str
    service: str
    far_service: str
    far_broker_instance: str | None
    contract: str
    group: UUID
    priority: int
    queue: str
    queue_id: int
    is_queue_on: bool
    send_sequence: int
    receive_sequence: int
    lifetime: datetime
    timer: datetime | None
    far_handle: UUID | None


class EndpointLine(NamedTuple):
    """One side of a conversation in a list."""

    database: str
    handle: UUID
    state: str
    service: str
    far_service: str
    queue: str


class Waiting(NamedTuple):
    """Undelivered messages to one service for one reason; `head` is the conversation of the oldest."""

    far_service: str
    far_broker_instance: str
    status: str
    messages: int
    oldest: datetime
    database: str
    head: UUID


class RouteLook(NamedTuple):
    """A route, and whether it has expired."""

    database: str
    name: str
    service: str | None
    broker_instance: str | None
    address: str
    mirror: str | None
    until: datetime | None
    is_expired: bool


class Link(NamedTuple):
    """A connection of the daemon with a peer."""

    peer: str
    is_accept: bool
    state: str
    principal: str | None
    encryption: str
    since: datetime
    last: datetime | None
    sent: int
    received: int


class SetAside(NamedTuple):
    """A dead letter, with the beginning of its body."""

    number: int
    database: str
    queue: str
    handle: UUID
    sequence: int
    service: str
    message_type: str
    validation: str
    head: bytes | None
    size: int
    far_service: str
    failures: int
    first_failed_at: datetime
    set_aside_at: datetime
    error: str
    traceback: str


def queue_look(database: str, queue: str) -> Steps[QueueLook]:
    """Return the queue of that name, as `schema.name`.

    Raises:
        BrokerError: 15151 no such queue.
    """
    rows = yield SQL("queue_look", (database, queue))
    if not rows:
        raise BrokerError(15151, "find", "queue", queue)
    return QueueLook(*rows[0])


def queue_names() -> Steps[dict[str, tuple[str, str, list[str]]]]:
    """Return database, `schema.name` and services of each application queue, by its three-part name."""
    rows = yield SQL("queue_names", (names.FIRST_USER_ID,))
    return {f"{database}.{queue}": (database, queue, list(services)) for database, queue, services in rows}


def conversation_states(queue_id: int) -> Steps[dict[str, int]]:
    """Return the number of a queue's endpoints by state, up to COUNT_LIMIT."""
    rows = yield Statement(
        "dashboard_queries.conversation_states",
        "select state, count(*) from (select state from servicebroker.conversation_endpoints where queue_id = $1 "
        f"limit {COUNT_LIMIT}) e group by 1 order by 1",
        (queue_id,),
    )
    return dict(rows)


def group_locks(queue_id: int) -> Steps[list[GroupLock]]:
    """Return the sessions that have locked groups of a queue's first messages, with their start."""
    rows = yield Statement(
        "dashboard_queries.group_locks",
        "select array_agg(g.conversation_group_id order by 1), a.pid, coalesce(a.usename::text, ''), "
        "coalesce(a.application_name, ''), coalesce(a.state, ''), a.xact_start, "
        "left(regexp_replace(coalesce(a.query, ''), '\\s+', ' ', 'g'), 200) "
        "from (select distinct conversation_group_id from (select conversation_group_id "
        f"  from servicebroker.queue_{queue_id} order by priority desc, queuing_order limit {SEARCHED_MESSAGES}) m) g "
        "join pg_locks l on l.locktype = 'advisory' and l.granted and l.objsubid = 2 "
        f"  and l.classid::bigint = {locks.CONVERSATION_GROUP} and {_IN_THIS_DATABASE} "
        "  and l.objid::bigint = (uuid_hash(g.conversation_group_id)::bigint & 4294967295) "
        "join pg_stat_activity a on a.pid = l.pid group by a.pid, 3, 4, 5, 6, 7 order by a.xact_start, a.pid "
        f"limit {MAX_ROWS}",
    )
    return [GroupLock(*row) for row in rows]


def message_heads(queue_id: int, message_type: str, text: str) -> Steps[list[MessageHead]]:
    """Return messages at the head of a queue, in the order of arrival: those of its first SEARCHED that match.

    `message_type` is a part of the type's name, `text` a part of the beginning of a body, in UTF-8; '' matches all.
    """
    rows = yield Statement(
        "dashboard_queries.message_heads",
        f"with m as materialized (select * from servicebroker.queue_{queue_id} "
        f"  order by priority desc, queuing_order limit {SEARCHED_MESSAGES}), "
        f"{_named_heads()} where ($1 = '' or strpos(lower(t.name), lower($1)) > 0) "
        "and ($2 = '' or position(convert_to($2, 'UTF8') in substring(h.body from 1 for 65536)) > 0) "
        f"order by h.priority desc, h.queuing_order limit {MAX_ROWS}",
        (message_type, text),
    )
    return [MessageHead(*row) for row in rows]


def conversation_heads(endpoint: Endpoint) -> Steps[list[MessageHead]]:
    """Return the messages of one conversation in its queue, in the order of RECEIVE."""
    rows = yield Statement(
        "dashboard_queries.conversation_heads",
        f"with m as materialized (select * from servicebroker.queue_{endpoint.queue_id} where priority = $1 "
        "  and conversation_group_id = $2 and conversation_handle = $3 "
        f"  order by rank, queuing_order limit {MAX_ROWS}), {_named_heads()} order by h.rank, h.queuing_order",
        (endpoint.priority, endpoint.group, endpoint.handle),
    )
    return [MessageHead(*row) for row in rows]


def _named_heads() -> str:
    """Return SQL that turns rows `m` of a queue into MessageHead; the body is looked up before it is cut."""
    return (
        f"h as (select m.*, {_BODY} from m) select h.conversation_handle, h.conversation_group_id, "
        "h.message_sequence_number, coalesce(s.name, ''), coalesce(t.name, ''), h.validation::text, "
        f"substring(h.body from 1 for {SHOWN_BODY_BYTES}), coalesce(octet_length(h.body), 0), h.message_enqueue_time, "
        "coalesce(f.failures, 0) from h left join servicebroker.services s using (service_id) "
        "left join servicebroker.message_types t "
        "  on t.database_id = s.database_id and t.message_type_id = h.message_type_id "
        "left join servicebroker.failed_messages f on f.conversation_handle = h.conversation_handle "
        "  and f.message_sequence_number = h.message_sequence_number and f.message_type_id = h.message_type_id"
    )


def endpoint(handle: UUID) -> Steps[Endpoint]:
    """Return one side of a conversation, in any database of the instance.

    Raises:
        BrokerError: 8426 no such handle.
    """
    rows = yield SQL("endpoint", (handle,))
    if not rows:
        raise BrokerError(8426, handle)
    return Endpoint(*rows[0])


def endpoints(service: str, state: str) -> Steps[list[EndpointLine]]:
    """Return some conversations by service name, which contains the given text, and by state; '' matches all."""
    rows = yield Statement(
        "dashboard_queries.endpoints",
        "select d.name, e.conversation_handle, e.state, coalesce(s.name, ''), e.far_service, "
        "q.schema_name || '.' || q.name "
        "from servicebroker.conversation_endpoints e join servicebroker.databases d using (database_id) "
        "join servicebroker.queues q using (queue_id) "
        "left join servicebroker.services s on s.service_id = e.service_id where e.queue_id >= $1 "
        "and ($2 = '' or strpos(lower(s.name), lower($2)) > 0 "
        f"or strpos(lower(e.far_service), lower($2)) > 0) and ($3 = '' or e.state = $3) limit {MAX_ROWS}",
        (names.FIRST_USER_ID, service, state),
    )
    return [EndpointLine(*row) for row in rows]


def sent_heads(handle: UUID) -> Steps[list[tuple[int, str, str, datetime]]]:
    """Return undelivered messages of a conversation: number, type, transmission status, time."""
    rows = yield Statement(
        "dashboard_queries.sent_heads",
        "select message_sequence_number, message_type_name, transmission_status, enqueue_time "
        f"from servicebroker.transmission_queue where conversation_handle = $1 order by 1 limit {MAX_ROWS}",
        (handle,),
    )
    return [(number, message_type, status, since) for number, message_type, status, since in rows]


def waiting() -> Steps[list[Waiting]]:
    """Return the transmission queue by peer and reason, the longest wait first."""
    rows = yield Statement(
        "dashboard_queries.waiting",
        "select e.far_service, coalesce(e.far_broker_instance, ''), t.transmission_status, count(*), "
        "min(t.enqueue_time), min(d.name), (array_agg(t.conversation_handle order by t.enqueue_time))[1] "
        f"from (select * from servicebroker.transmission_queue limit {COUNT_LIMIT}) t "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        f"join servicebroker.databases d using (database_id) group by 1, 2, 3 order by 5 limit {MAX_ROWS}",
    )
    return [Waiting(*row) for row in rows]


def routes(now: datetime) -> Steps[list[RouteLook]]:
    """Return every route of the instance."""
    rows = yield SQL("routes", (now,))
    return [RouteLook(*row) for row in rows]


def brokers() -> Steps[dict[str, str]]:
    """Return the databases of the instance by their broker identifiers."""
    rows = yield SQL("brokers")
    return dict(rows)


def links() -> Steps[list[Link]]:
    """Return the connections of the serving daemon; none without a daemon."""
    rows = yield SQL("links")
    return [Link(*row) for row in rows]


def forwarded() -> Steps[int]:
    """Return the number of messages that are held to be forwarded."""
    rows = yield SQL("forwarded")
    return int(rows[0][0])


def set_aside_heads() -> Steps[list[SetAside]]:
    """Return dead letters of every database, the latest first."""
    rows = yield Statement(
        "dashboard_queries.set_aside_heads",
        "select a.set_aside_id, d.name, a.queue_name, a.conversation_handle, a.message_sequence_number, "
        "a.service_name, a.message_type_name, a.validation::text, "
        f"substring(a.message_body from 1 for {SHOWN_BODY_BYTES}), coalesce(octet_length(a.message_body), 0), "
        "coalesce(a.far_service, ''), a.failures, a.first_failed_at, a.set_aside_at, a.error, a.traceback "
        "from servicebroker.set_aside_messages a join servicebroker.databases d using (database_id) "
        f"order by a.set_aside_id desc limit {MAX_ROWS}",
    )
    return [SetAside(*row) for row in rows]
