"""Queries for the dashboard alone, at a bounded cost. They only read, and wait for no lock.

The server returns only the beginning of a body, because a body may have half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.failed_messages import ERROR_KIND
from servicebroker.engine.diagnosis.poison_report import count_failing
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT
from servicebroker.model import names
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.model.poison import VARIES_IN_ERRORS
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


SHOWN_BODY_BYTES = 4000  # bytes of a body that are shown
SEARCHED_MESSAGES = 1000  # messages of a queue that are searched, from its head
MAX_ROWS = 50  # rows of any other list
MAX_BULK = 1000  # dead letters of one action, each replayed in a transaction of its own
MAX_WORKING_QUEUES = 20  # queues whose readers' current messages are looked up

_IN_THIS_DATABASE = "l.database = (select oid from pg_database where datname = current_database())"
_BODY = (
    "case when m.is_shared then (select b.body from servicebroker.shared_bodies b "
    "join servicebroker.shared_body_readers r using (body_id) where r.reader = m.message_body) "
    "else m.message_body end as body"
)


class QueueDetails(NamedTuple):
    """A queue with its settings, and its numbers of failing messages and dead letters."""

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
    """One side of a conversation. `peer_handle`: the peer's handle, if the peer is in this instance."""

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
    peer_handle: UUID | None


class EndpointLine(NamedTuple):
    """One side of a conversation in a list. `began` is None if the conversation was begun with LIFETIME."""

    database: str
    handle: UUID
    state: str
    service: str
    far_service: str
    queue: str
    is_initiator: bool
    began: datetime | None
    timer: datetime | None


class WaitingMessages(NamedTuple):
    """Undelivered messages to one service with one reason. `head` is the conversation of the oldest message."""

    far_service: str
    far_broker_instance: str
    status: str
    messages: int
    oldest: datetime
    database: str
    head: UUID


class DelayedLine(NamedTuple):
    """Delayed messages to one service, the first due time, and the conversation of that message."""

    far_service: str
    messages: int
    due: datetime
    handle: UUID


class ScheduleLine(NamedTuple):
    """A schedule of a worker, with its next time. The rule's times are in `time_zone`."""

    database: str
    queue: str
    name: str
    rule: str
    time_zone: str
    next_time: datetime
    handle: UUID


class RouteStatus(NamedTuple):
    """A route. `until`: the end of its lifetime; `is_expired`: that time has passed."""

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


class Worker(NamedTuple):
    """A session that reads a queue.

    `doing` is waits, works (has received messages), runs (an activated procedure) or pipes (a pipeline).
    """

    pid: int
    queue_id: int
    database: str
    queue: str
    doing: str
    application: str
    role: str
    address: str
    connected: datetime
    since: datetime | None  # start of its transaction


class Work(NamedTuple):
    """The first message that a session has received in its open transaction, and the number of its messages."""

    pid: int
    handle: UUID
    message_type: str
    service: str
    messages: int


class Match(NamedTuple):
    """A queue, service or conversation that a search has found. `queue` is `schema.name`."""

    kind: str
    name: str
    database: str
    queue: str
    handle: UUID | None


class DeadLetterFilter(NamedTuple):
    """A filter for dead letters. An empty field matches all.

    `database`, `queue`, `message_type` and `kind` must be equal; `error` is a part of the error.
    """

    database: str = ""
    queue: str = ""
    message_type: str = ""
    kind: str = ""
    error: str = ""


class DeadLetterKind(NamedTuple):
    """Dead letters of one queue and message type with one kind of error (`error_kind` of model/poison.py)."""

    database: str
    queue: str
    message_type: str
    kind: str
    letters: int
    newest: int  # the highest number among them
    first: datetime
    last: datetime


class DeadLetter(NamedTuple):
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


class DeadLetterOfConversation(NamedTuple):
    """A dead letter in the list of a conversation. `sequence` is its number in the conversation."""

    number: int
    database: str
    queue: str
    handle: UUID
    sequence: int
    message_type: str
    failures: int
    set_aside_at: datetime
    error: str


def find_queue_details(database: str, queue: str) -> Steps[QueueDetails]:
    """Return the queue of that name, as `schema.name`.

    Raises:
        BrokerError: 15151 no such queue.
    """
    rows = yield SQL("find_queue_details", (database, queue))
    if not rows:
        raise BrokerError(15151, "find", "queue", queue)
    details = QueueDetails(*rows[0])
    return details._replace(failing=(yield from count_failing()).get(details.queue_id, 0))


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


def message_heads(
    queue_id: int, message_type: str, text: str, *, limit: int = MAX_ROWS, head_bytes: int = SHOWN_BODY_BYTES
) -> Steps[list[MessageHead]]:
    """Return the messages that match, among the first SEARCHED_MESSAGES of a queue, in the queue's order.

    `message_type` is a part of the type's name, `text` a part of the beginning of a body, in UTF-8; '' matches all.
    """
    rows = yield Statement(
        "dashboard_queries.message_heads",
        f"with m as materialized (select * from servicebroker.queue_{queue_id} "
        f"  order by priority desc, queuing_order limit {SEARCHED_MESSAGES}), "
        f"{_named_heads(head_bytes)} where ($1 = '' or strpos(lower(t.name), lower($1)) > 0) "
        "and ($2 = '' or position(convert_to($2, 'UTF8') in substring(h.body from 1 for 65536)) > 0) "
        f"order by h.priority desc, h.queuing_order limit {limit}",
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


def _named_heads(head_bytes: int = SHOWN_BODY_BYTES) -> str:
    """Return SQL that selects the columns of MessageHead from rows `m` of a queue."""
    return (
        f"h as (select m.*, {_BODY} from m) select h.conversation_handle, h.conversation_group_id, "
        "h.message_sequence_number, coalesce(s.name, ''), coalesce(t.name, ''), h.validation::text, "
        f"substring(h.body from 1 for {head_bytes}), coalesce(octet_length(h.body), 0), h.message_enqueue_time, "
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


def endpoints(service: str, state: str, now: datetime, *, newest_first: bool = False) -> Steps[list[EndpointLine]]:
    """Return conversations whose service name contains `service` and whose state is `state`; '' matches all.

    Open conversations come first, then ended ones, closed ones last; each by age. Only COUNT_LIMIT endpoints are
    searched.
    """
    order = "desc" if newest_first else "asc"
    rows = yield Statement(
        "dashboard_queries.endpoints",
        "select d.name, e.conversation_handle, e.state, coalesce(s.name, ''), e.far_service, "
        "q.schema_name || '.' || q.name, e.is_initiator, e.began, e.dialog_timer "
        f"from (select *, case when lifetime > $4::timestamptz + make_interval(secs => {MAXIMUM_LIFETIME // 2}) "
        f"  then lifetime - make_interval(secs => {MAXIMUM_LIFETIME}) end as began "
        f"  from servicebroker.conversation_endpoints where queue_id >= $1 and ($3 = '' or state = $3) "
        f"  limit {COUNT_LIMIT}) e "
        "join servicebroker.databases d using (database_id) join servicebroker.queues q using (queue_id) "
        "left join servicebroker.services s on s.service_id = e.service_id "
        "where ($2 = '' or strpos(lower(s.name), lower($2)) > 0 or strpos(lower(e.far_service), lower($2)) > 0) "
        "order by case e.state when 'CO' then 0 when 'SO' then 0 when 'SI' then 0 when 'ER' then 1 when 'DI' then 1 "
        f"when 'DO' then 2 else 3 end, e.began {order} nulls last, e.conversation_handle limit {MAX_ROWS}",
        (names.FIRST_USER_ID, service, state, now),
    )
    return [EndpointLine(*row) for row in rows]


def sent_heads(handle: UUID) -> Steps[list[tuple[int, str, str, datetime, datetime | None]]]:
    """Return undelivered messages of a conversation: number, type, transmission status, time, end of the delay."""
    rows = yield Statement(
        "dashboard_queries.sent_heads",
        "select message_sequence_number, message_type_name, transmission_status, enqueue_time, delayed_until "
        f"from servicebroker.transmission_queue where conversation_handle = $1 order by 1 limit {MAX_ROWS}",
        (handle,),
    )
    return [(number, message_type, status, since, due) for number, message_type, status, since, due in rows]


def waiting(now: datetime) -> Steps[list[WaitingMessages]]:
    """Return the transmission queue by peer and reason, the longest wait first, without delayed conversations."""
    rows = yield Statement(
        "dashboard_queries.waiting",
        "select e.far_service, coalesce(e.far_broker_instance, ''), t.transmission_status, count(*), "
        "min(t.enqueue_time), min(d.name), (array_agg(t.conversation_handle order by t.enqueue_time))[1] "
        "from (select * from servicebroker.transmission_queue where conversation_handle not in ("
        "  select conversation_handle from servicebroker.transmission_queue where delayed_until > $1) "
        f"  limit {COUNT_LIMIT}) t "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        f"join servicebroker.databases d using (database_id) group by 1, 2, 3 order by 5 limit {MAX_ROWS}",
        (now,),
    )
    return [WaitingMessages(*row) for row in rows]


def find_delayed(now: datetime) -> Steps[list[DelayedLine]]:
    """Return delayed messages by service, the first due ones first."""
    rows = yield Statement(
        "dashboard_queries.find_delayed",
        "select e.far_service, count(*), min(t.delayed_until), "
        "(array_agg(t.conversation_handle order by t.delayed_until))[1] "
        f"from (select * from servicebroker.transmission_queue where delayed_until > $1 limit {COUNT_LIMIT}) t "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        f"group by 1 order by 3 limit {MAX_ROWS}",
        (now,),
    )
    return [DelayedLine(*row) for row in rows]


def schedules() -> Steps[list[ScheduleLine]]:
    """Return the schedules of workers, by their next time."""
    rows = yield Statement(
        "dashboard_queries.schedules",
        "select d.name, q.schema_name || '.' || q.name, s.name, s.rule, s.time_zone, s.next_time, "
        "s.conversation_handle from servicebroker.schedules s join servicebroker.queues q using (queue_id) "
        f"join servicebroker.databases d using (database_id) order by s.next_time, s.name limit {MAX_ROWS}",
    )
    return [ScheduleLine(*row) for row in rows]


def routes(now: datetime) -> Steps[list[RouteStatus]]:
    """Return every route of the instance."""
    rows = yield SQL("routes", (now,))
    return [RouteStatus(*row) for row in rows]


def brokers() -> Steps[dict[str, str]]:
    """Return the databases of the instance by their broker identifiers."""
    rows = yield SQL("brokers")
    return dict(rows)


def links() -> Steps[list[Link]]:
    """Return the connections of the serving daemon; none without a daemon."""
    rows = yield SQL("links")
    return [Link(*row) for row in rows]


def count_forwarded() -> Steps[int]:
    """Return the number of messages that are held to be forwarded."""
    rows = yield SQL("count_forwarded")
    return int(rows[0][0])


_KIND = ERROR_KIND.format(6)
_DEAD_LETTERS = (  # parameters $1 to $5: the fields of a DeadLetterFilter; $6: what varies in errors of a kind
    "from servicebroker.set_aside_messages a join servicebroker.databases d using (database_id) "
    "where ($1 = '' or d.name = $1) and ($2 = '' or a.queue_name = $2) and ($3 = '' or a.message_type_name = $3) "
    f"and ($4 = '' or {_KIND} = $4) and ($5 = '' or strpos(lower(a.error), lower($5)) > 0)"
)


def dead_letter_groups(chosen: DeadLetterFilter) -> Steps[list[DeadLetterKind]]:
    """Return dead letters grouped by queue, message type and kind of error, the group with the latest one first."""
    rows = yield Statement(
        "dashboard_queries.dead_letter_groups",
        f"select d.name, a.queue_name, a.message_type_name, {_KIND}, count(*), max(a.set_aside_id), "
        "min(a.set_aside_at), max(a.set_aside_at) "
        f"{_DEAD_LETTERS} group by 1, 2, 3, 4 order by max(a.set_aside_id) desc limit {MAX_ROWS}",
        (*chosen, VARIES_IN_ERRORS),
    )
    return [DeadLetterKind(*row) for row in rows]


def dead_letter_numbers(chosen: DeadLetterFilter, newest: int) -> Steps[list[int]]:
    """Return the numbers of matching dead letters up to `newest`, the oldest first: at most MAX_BULK."""
    rows = yield Statement(
        "dashboard_queries.dead_letter_numbers",
        f"select a.set_aside_id {_DEAD_LETTERS} and a.set_aside_id <= $7 order by 1 limit {MAX_BULK}",
        (*chosen, VARIES_IN_ERRORS, newest),
    )
    return [number for (number,) in rows]


def dead_letters(
    chosen: DeadLetterFilter, before: int | None = None, *, limit: int = MAX_ROWS, head_bytes: int = SHOWN_BODY_BYTES
) -> Steps[list[DeadLetter]]:
    """Return matching dead letters, the latest first. `before`: only lower numbers, for the next page."""
    rows = yield Statement(
        "dashboard_queries.dead_letters",
        "select a.set_aside_id, d.name, a.queue_name, a.conversation_handle, a.message_sequence_number, "
        "a.service_name, a.message_type_name, a.validation::text, "
        f"substring(a.message_body from 1 for {head_bytes}), coalesce(octet_length(a.message_body), 0), "
        "coalesce(a.far_service, ''), a.failures, a.first_failed_at, a.set_aside_at, a.error, a.traceback "
        f"{_DEAD_LETTERS} and ($7::bigint is null or a.set_aside_id < $7) "
        f"order by a.set_aside_id desc limit {limit}",
        (*chosen, VARIES_IN_ERRORS, before),
    )
    return [DeadLetter(*row) for row in rows]


def dead_letters_of(handles: Sequence[UUID]) -> Steps[list[DeadLetterOfConversation]]:
    """Return the dead letters of a conversation by the handles of its sides, the latest first."""
    rows = yield SQL("dead_letters_of", (list(handles), MAX_ROWS))
    return [DeadLetterOfConversation(*row) for row in rows]


def dead_letters_of_both_sides(handle: UUID) -> Steps[list[DeadLetterOfConversation]]:
    """Return the dead letters of both sides of a conversation, by the handle of one side, the latest first.

    Raises:
        BrokerError: 8426 no such handle.
    """
    peer_handle = (yield from endpoint(handle)).peer_handle
    return (yield from dead_letters_of([handle] if peer_handle is None else [handle, peer_handle]))


def workers() -> Steps[list[Worker]]:
    """Return the sessions that read application queues: waiting, working, activated, and pipelines."""
    rows = yield Statement(
        "dashboard_queries.workers",
        f"with locked as materialized (select l.pid, l.locktype, l.mode, l.relation, l.classid::bigint as kind, "
        f"l.objid::bigint as number from pg_locks l where l.granted and {_IN_THIS_DATABASE}), "
        "readers as (select queue_id, pid, 'waits' as doing, 4 as rank from servicebroker.readers_here() "
        "where not is_monitor "
        "union all select q.queue_id, l.pid, 'works', 1 from locked l join servicebroker.queues q "
        "  on l.relation = to_regclass('servicebroker.queue_' || q.queue_id) where l.locktype = 'relation' "
        "  and l.mode = 'RowExclusiveLock' and l.pid in (select pid from locked where locktype = 'advisory' "
        f"  and kind = {locks.CONVERSATION_GROUP}) "
        "union all select t.queue_id, t.spid, 'runs', 2 "
        "from servicebroker.rows_here(null::servicebroker.activated_tasks) t "
        f"union all select number::int, pid, 'pipes', 3 from locked where locktype = 'advisory' "
        f"  and mode = 'ExclusiveLock' and kind = {locks.PIPELINE_QUEUE}) "
        "select distinct on (q.queue_id, a.pid) a.pid, q.queue_id, d.name, q.schema_name || '.' || q.name, r.doing, "
        "coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(host(a.client_addr), ''), "
        "coalesce(a.backend_start, clock_timestamp()), a.xact_start "
        "from readers r join pg_stat_activity a on a.pid = r.pid join servicebroker.queues q using (queue_id) "
        "join servicebroker.databases d using (database_id) where q.queue_id >= $1 "
        "order by q.queue_id, a.pid, r.rank limit 1000",
        (names.FIRST_USER_ID,),
    )
    return [Worker(*row) for row in rows]


def current_work(queue_id: int) -> Steps[list[Work]]:
    """Return the messages that sessions have received and not committed, among the first messages of a queue.

    Their rows are deleted in transactions that have not committed, so this query still sees them.
    """
    rows = yield Statement(
        "dashboard_queries.current_work",
        "select l.pid, (array_agg(m.conversation_handle order by m.priority desc, m.queuing_order))[1], "
        "coalesce((array_agg(t.name order by m.priority desc, m.queuing_order))[1], ''), "
        "coalesce((array_agg(s.name order by m.priority desc, m.queuing_order))[1], ''), count(*) "
        f"from (select * from servicebroker.queue_{queue_id} order by priority desc, queuing_order "
        f"  limit {SEARCHED_MESSAGES}) m "
        "join pg_locks l on l.locktype = 'advisory' and l.granted and l.objsubid = 2 "
        f"  and l.classid::bigint = {locks.CONVERSATION_GROUP} and {_IN_THIS_DATABASE} "
        "  and l.objid::bigint = (uuid_hash(m.conversation_group_id)::bigint & 4294967295) "
        "left join servicebroker.services s using (service_id) left join servicebroker.message_types t "
        "  on t.database_id = s.database_id and t.message_type_id = m.message_type_id group by 1",
    )
    return [Work(*row) for row in rows]


def matches(text: str) -> Steps[list[Match]]:
    """Return the queues and services whose names contain the text, and conversations whose handles begin with it."""
    rows = yield Statement(
        "dashboard_queries.matches.names",
        "select * from (select 'queue', q.schema_name || '.' || q.name as name, d.name as database, "
        "  q.schema_name || '.' || q.name, null::uuid from servicebroker.queues q "
        "  join servicebroker.databases d using (database_id) where q.queue_id >= $1 "
        "  union all select 'service', s.name, d.name, q.schema_name || '.' || q.name, null "
        "  from servicebroker.services s join servicebroker.queues q using (queue_id) "
        "  join servicebroker.databases d on d.database_id = q.database_id where q.queue_id >= $1) m "
        f"where strpos(lower(m.name), lower($2)) > 0 order by length(m.name), m.name, m.database limit {MAX_ROWS}",
        (names.FIRST_USER_ID, text),
    )
    matching = [Match(*row) for row in rows]
    digits = text.replace("-", "").lower()
    if 4 <= len(digits) <= 32 and set(digits) <= set("0123456789abcdef"):
        rows = yield Statement(
            "dashboard_queries.matches.handles",
            "select e.conversation_handle, coalesce(s.name, ''), d.name, q.schema_name || '.' || q.name "
            "from servicebroker.conversation_endpoints e join servicebroker.databases d using (database_id) "
            "join servicebroker.queues q using (queue_id) left join servicebroker.services s using (service_id) "
            f"where e.conversation_handle between $1 and $2 order by 1 limit {MAX_ROWS}",
            (UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))),
        )
        matching += [
            Match("conversation", service, database, queue, handle) for handle, service, database, queue in rows
        ]
    return matching
