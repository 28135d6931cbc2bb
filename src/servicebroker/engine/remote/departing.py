"""Departures: find, route, read and acknowledge messages to other instances, which are in the transmission queue.

A conversation is claimed (marked as remote) before its first byte is sent. From then on no service of this instance can
become its target, and each SEND on it writes into the transmission queue without looking for a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.endpoints import close_endpoints
from servicebroker.engine.conversation.failure import (
    ConversationFailure,
    delete_parked,
    fail_with_body,
    store_remote_error,
)
from servicebroker.engine.conversation.shared_bodies import DELETE_REFERENCES_SQL, MESSAGE_BODY
from servicebroker.engine.remote.local_topology import LocalInstance, LocalTopology, Router, find_topology
from servicebroker.engine.remote.missing_routes import ask
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint, find_gone, lock_alone, lock_shared
from servicebroker.model.messages import error_body
from servicebroker.protocol.dialog import Acknowledged, Diverged
from servicebroker.protocol.division import WHOLE, Division
from servicebroker.protocol.envelope import BrokerFailure, Content, Part
from servicebroker.protocol.routing import Ask, Conversation, Decision, Elsewhere, RoutingTable
from servicebroker.store.rows import build_row
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class Snapshot(NamedTuple):
    """The transactions that a poll could see: those with an id below `end`, except the `unfinished` ones."""

    end: int
    unfinished: tuple[int, ...]


NO_TRANSACTION_ID = 2**63 - 1  # higher than every transaction id


class WaitingConversation(NamedTuple):
    """An endpoint with waiting messages up to the number `last`. `has_end`: the last one is an EndDialog or Error."""

    conversation_handle: UUID
    last: int
    has_end: bool


class OutgoingPoll(NamedTuple):
    """The result of a poll of the transmission queue.

    Attributes:
        snapshot: the transactions that the poll could see.
        waiting: conversations with new messages.
        disabled: the databases whose broker is disabled.
        routes: the highest version of routes; every change of a route raises it.
        traced: there are messages with trace contexts (engine/conversation/traces.py).
    """

    snapshot: Snapshot
    waiting: list[WaitingConversation]
    disabled: frozenset[int]
    routes: int
    traced: bool


class OutgoingMessages(NamedTuple):
    """Messages of one endpoint to send, in order: numbers, sizes of the bodies in bytes, and parts.

    A part has no body if the body is empty, or longer than the limit of `read`.
    """

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    parts: list[Part]


NO_MESSAGES = OutgoingMessages((), (), [])


class _PollRow(NamedTuple):
    """A row of `_POLL`: values that are equal in all rows (`OutgoingPoll`), and a conversation with new messages."""

    end: int
    unfinished: Sequence[int]
    disabled: Sequence[int]
    routes: int
    traced: bool
    waiting: WaitingConversation | None


def look(seen: Snapshot | None, division: Division = WHOLE) -> Steps[OutgoingPoll]:
    """Return conversations with rows in the transmission queue that were invisible to the poll with snapshot `seen`.

    No row is missed or returned twice, whatever the order of commits. Without `seen` no conversation is returned, only
    the first snapshot: `page` finds rows that were there before. So the cost of a poll does not grow with the backlog.
    `division` restricts the poll to one share of the conversations.
    """
    end, unfinished = seen or (NO_TRANSACTION_ID, ())
    parameters = (str(end), [str(xact) for xact in unfinished])
    if division == WHOLE:
        rows = yield Statement("departing.look", _POLL, parameters)
    else:
        rows = yield Statement("departing.look.divided", _POLL_DIVIDED, (*parameters, *division))
    poll_rows = [build_row(_PollRow, row) for row in rows]
    waiting = [row.waiting for row in poll_rows if row.waiting is not None]
    first = poll_rows[0]
    return OutgoingPoll(
        Snapshot(first.end, tuple(first.unfinished)), waiting, frozenset(first.disabled), first.routes, first.traced
    )


_FRESH = (
    "conversation_handle, message_sequence_number, is_end_of_dialog, is_conversation_error "
    "from servicebroker.transmission_queue"
)
_POLL_TEMPLATE = (
    "select pg_snapshot_xmax(now.snapshot)::text::bigint, "
    "array_remove(array(select x::text::bigint from pg_snapshot_xip(now.snapshot) x) "  # lacks this transaction's id
    "|| pg_current_xact_id_if_assigned()::text::bigint, null), "
    "array(select database_id from servicebroker.databases where not is_broker_enabled), "
    "(select max(routes_version) from servicebroker.databases), "
    "exists (select from servicebroker.trace_contexts), "
    "w.conversation_handle, w.last, w.has_end "
    "from (select pg_current_snapshot() as snapshot) now left join lateral (select g.* from ("
    "select conversation_handle, min(message_sequence_number) as first, max(message_sequence_number) as last, "
    "bool_or(is_end_of_dialog or is_conversation_error) as has_end from ("
    f"select {_FRESH} where xact >= $1::text::xid8 "
    "union all "  # with an OR the planner would read the whole table
    f"select {_FRESH} where xact = any ($2::text[]::xid8[]) and xact < $1::text::xid8) fresh "
    "group by conversation_handle) g where (not exists ("  # a delayed message before them
    "select from servicebroker.transmission_queue h where h.conversation_handle = g.conversation_handle "
    "and h.delayed_until is not null and h.message_sequence_number <= g.first) "
    "or g.has_end and (select e.is_remote from servicebroker.conversation_endpoints e "  # the daemon needs each end
    "where e.conversation_handle = g.conversation_handle)){}) w on true"
)
_IS_OF_SHARE = (  # `share_of` of protocol/division.py
    "(select get_byte(uuid_send(e.conversation_id), 15) % $4::int "
    "from servicebroker.conversation_endpoints e where e.conversation_handle = {}) = $3::int"
)
_POLL, _POLL_DIVIDED = (
    _POLL_TEMPLATE.format(""),
    _POLL_TEMPLATE.format(" and " + _IS_OF_SHARE.format("g.conversation_handle")),
)


def page(after: UUID | None, count: int, division: Division = WHOLE) -> Steps[list[UUID]]:
    """Return the next `count` endpoints with waiting messages of that division, in the order of their handles.

    `after` is the last handle of the page before. Endpoints whose first message is delayed are left out. Each endpoint
    costs one index lookup, and a second one with a division.
    """
    parameters = (after or UUID(int=0), count)
    if division == WHOLE:
        rows = yield Statement("departing.page", _PAGE.format("true"), parameters)
    else:
        share = _IS_OF_SHARE.format("found.conversation_handle")
        rows = yield Statement("departing.page.divided", _PAGE.format(share), (*parameters, *division))
    return [handle for (handle,) in rows]


# OFFSET 0 keeps the planner from a hash join, which would read all handles and lose their order.
_PAGE = (
    "with recursive found as ("
    "(select conversation_handle from servicebroker.transmission_queue "
    "where conversation_handle > $1 order by conversation_handle limit 1) "
    "union all select (select t.conversation_handle from servicebroker.transmission_queue t "
    "where t.conversation_handle > found.conversation_handle order by t.conversation_handle limit 1) "
    "from found where found.conversation_handle is not null) "
    "select conversation_handle from found where conversation_handle is not null and not exists ("
    "select from servicebroker.transmission_queue h where h.conversation_handle = found.conversation_handle "
    "and h.delayed_until is not null and not exists (select from servicebroker.transmission_queue b "
    "where b.conversation_handle = found.conversation_handle "
    "and b.message_sequence_number < h.message_sequence_number) offset 0) and {} limit $2"
)


def route(
    catalog: Catalog, departures: Sequence[RemoteEndpoint], here: LocalInstance, now: datetime
) -> Steps[dict[UUID, Decision]]:
    """Return the routing decision for each departure: by the routes of its database, then by those of msdb.

    The routes of msdb decide if those of the database lead to this instance. Where a random choice is needed, the
    conversation's identifier decides, so that routing again gives the same result. A missing route is requested from
    the dynamic routing service.
    """
    located = yield from find_topology(list({departure.far_service for departure in departures}), now, here)
    tables: dict[int, RoutingTable] = {}
    wanted = {departure.database_id for departure in departures}
    for database in located.databases:
        if database.database_id in wanted:
            tables[database.database_id] = yield from located.routes(catalog, database)
    outside = yield from located.routes(catalog, located.msdb)
    decisions = route_departures(departures, located, tables, outside, now)
    for endpoint in departures:
        decision = decisions.get(endpoint.conversation_handle)
        if decision is not None and isinstance(decision.destination, Ask):
            own = located.find(endpoint.database_id)
            lacking = located.msdb if decision.through_outside and located.msdb else own
            yield from ask(lacking.database_id, decision.destination, now)
    return decisions


def route_departures(
    departures: Sequence[RemoteEndpoint],
    located: LocalTopology,
    tables: Mapping[int, RoutingTable],
    outside: RoutingTable,
    now: datetime,
) -> dict[UUID, Decision]:
    """Return each departure's decision. `tables` are the routes of their databases, `outside` those of msdb."""
    decisions: dict[UUID, Decision] = {}
    routers: dict[int, tuple[str, Router]] = {}  # the broker and the router, by database
    for database_id, table in tables.items():
        own = located.find(database_id)
        routers[database_id] = own.broker, Router(table, outside, located.site_of(own), now)
    for departure in departures:
        if departure.database_id not in routers:  # its database was dropped, and its conversations with it
            continue
        own_broker, router = routers[departure.database_id]
        for broker in dict.fromkeys((departure.peer_broker or departure.routed_broker, departure.peer_broker)):
            conversation = Conversation(departure.far_service, broker, own_broker, not departure.is_initiator)
            decision = router.decide(conversation, departure.conversation_id)
            if isinstance(decision.destination, Elsewhere):  # else the route by which it was sent is gone
                break
        decisions[departure.conversation_handle] = decision
    return decisions


class Claimed(NamedTuple):
    """The values that a claim stores: the broker identifier that the route names, if any, and the security mode."""

    broker: str | None
    security: str


def claim(claims: Mapping[UUID, Claimed]) -> Steps[set[UUID]]:
    """Mark these conversations as remote. Returns the handles of those that are remote now.

    The others have got a local target meanwhile, or are locked by a session that sends on them: claim those again in
    the next round.
    """
    rows = yield SQL(
        "claim",
        (
            list(claims),
            [claim.broker for claim in claims.values()],
            [claim.security for claim in claims.values()],
        ),
    )
    return {handle for (handle,) in rows}


class ReadRequest(NamedTuple):
    """A request to read messages from the number `first` on: at least one, at most `most`, and about `room` bytes."""

    first: int
    most: int
    room: int


def read(wanted: dict[UUID, ReadRequest], longest: int) -> Steps[dict[UUID, OutgoingMessages]]:
    """Read messages of each endpoint, up to the first delayed one. Bodies longer than `longest` bytes are left out."""
    rows = yield Statement(
        "departing.read",
        "select r.place, t.number, t.size, t.message_type_name, t.content, "
        "case when t.size <= $5 then t.message_body end, t.token "
        "from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) with ordinality "
        "  r (handle, first, most, room, place) "
        "cross join lateral (select *, sum(size) over (order by number) - size as before, "
        "bool_or(is_delayed) over (order by number) as is_held from ("
        f"select message_sequence_number as number, message_type_name, {MESSAGE_BODY} as message_body, "
        "case when is_conversation_error then 2 when is_end_of_dialog then 1 else 0 end as content, token, "
        f"delayed_until is not null as is_delayed, coalesce(octet_length({MESSAGE_BODY}), 0) as size "
        "from servicebroker.transmission_queue "
        "where conversation_handle = r.handle and message_sequence_number >= r.first "
        "order by message_sequence_number limit r.most) found) t "
        "where t.before < r.room and not t.is_held order by r.place, t.number",
        (
            list(wanted),
            [request.first for request in wanted.values()],
            [request.most for request in wanted.values()],
            [request.room for request in wanted.values()],
            longest,
        ),
    )
    messages, handles = {}, list(wanted)
    for place, group in groupby(rows, itemgetter(0)):
        _, numbers, sizes, types, contents, bodies, tokens = zip(*group, strict=True)
        parts = list(map(Part, types, map(_CONTENTS.__getitem__, contents), bodies, tokens))
        messages[handles[place - 1]] = OutgoingMessages(numbers, sizes, parts)
    return messages


_CONTENTS = tuple(Content)  # contents by their number


def read_fragment(handle: UUID, number: int, offset: int, length: int) -> Steps[bytes | None]:
    """Return `length` bytes of a message's body from `offset` on; None if the message was deleted."""
    rows = yield Statement(
        "departing.read_fragment",
        f"select substring({MESSAGE_BODY} from $3 for $4) from servicebroker.transmission_queue "
        "where conversation_handle = $1 and message_sequence_number = $2",
        (handle, number, offset + 1, length),
    )
    return rows[0][0] if rows else None


def token_of(handle: UUID, number: int) -> Steps[bytes | None]:
    """Return the token of a waiting message; None if the message was deleted or has no token."""
    rows = yield SQL("token_of", (handle, number))
    return rows[0][0] if rows else None


class AcknowledgedEndpoints(NamedTuple):
    """The result of `acknowledge`: the handles that were handled, and those of them that were closed.

    Acknowledge the other handles again: another session had locked their rows.
    """

    done: list[UUID]
    ended: list[UUID]


def acknowledge(news: Mapping[UUID, Acknowledged], now: datetime) -> Steps[AcknowledgedEndpoints]:
    """Delete messages that the peers have acknowledged. Close endpoints whose EndDialog or Error is acknowledged.

    The first acknowledgement names the broker identifier of the target, to which all later messages are sent.
    """
    rows = yield SQL(  # locks as `remote_endpoints.lock_shared`, and reads the states
        "acknowledge.lock", (list(news),)
    )
    free = {handle for handle, *_ in rows}
    missing = yield from find_gone([handle for handle in news if handle not in free])
    changing = [handle for handle, was_acknowledged, is_ending in rows if is_ending or not was_acknowledged]
    locked = free.difference(changing) | (yield from lock_alone(changing))
    ended = yield from _remove({handle: news[handle].below for handle in locked})
    first = [handle for handle, was_acknowledged, _ in rows if not was_acknowledged and handle in locked]
    if first:
        yield SQL("acknowledge.note", (first, [news[handle].peer_broker for handle in first]))
    over = [handle for handle, _, is_ending in rows if is_ending and handle in ended]
    if over:
        yield from close_endpoints(over, now)
    return AcknowledgedEndpoints([*locked, *missing], over)


def _remove(below: dict[UUID, int]) -> Steps[set[UUID]]:
    """Delete acknowledged messages. Returns the endpoints whose EndDialog or Error was among them."""
    if not below:
        return set()
    rows = yield Statement(
        "departing.remove",
        "with deleted as (delete from servicebroker.transmission_queue t "
        "using unnest($1::uuid[], $2::bigint[]) a (handle, below) "
        "where t.conversation_handle = a.handle and t.message_sequence_number < a.below "
        "returning t.conversation_handle, t.is_end_of_dialog or t.is_conversation_error as is_end, t.is_shared, "
        f"case when t.is_shared then t.message_body end as message_body), unread as ({DELETE_REFERENCES_SQL}) "
        "select conversation_handle from deleted where is_end",
        (list(below), list(below.values())),
    )
    return {handle for (handle,) in rows}


def fail(failures: Mapping[UUID, BrokerFailure], now: datetime) -> Steps[list[UUID]]:
    """Fail conversations that the peers' brokers have refused. Returns the handled ones; repeat the others."""
    free, missing = yield from lock_shared(list(failures))
    locked = yield from lock_alone(list(free))
    rows = yield SQL("fail", (list(locked),))
    ended = [handle for (handle,) in rows]  # ended by the application, which therefore gets no Error
    if ended:
        yield delete_parked(ended)
        yield from close_endpoints(ended, now)
    for handle in locked.difference(ended):
        yield from fail_with_body([handle], error_body(failures[handle].code, failures[handle].description))
    return [*locked, *missing]


def diverge(diverged: Mapping[UUID, Diverged], now: datetime) -> Steps[list[UUID]]:
    """Fail conversations whose sides disagree on sent messages: each side gets an Error. Returns the handled ones.

    The sides of a conversation diverge if the database of one side was restored from an old copy.
    """
    failed = yield from fail({handle: side.own for handle, side in diverged.items()}, now)
    yield _mark_remote(failed)
    for handle in failed:
        yield store_remote_error([handle], ConversationFailure(*structs.astuple(diverged[handle].far)))
    return failed


def _mark_remote(handles: list[UUID]) -> Statement:
    """Mark these endpoints as remote. In a restored copy they may not be: the copy had sent nothing yet."""
    return SQL("mark_remote", (handles,))


def set_statuses(texts: dict[UUID, str]) -> Statement:
    """Set the transmission status of waiting messages; '' means that they are being sent."""
    return SQL("set_statuses", (list(texts), list(texts.values())))
