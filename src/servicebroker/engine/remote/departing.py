"""Messages for other instances: their rows in the transmission queue until they are acknowledged.

A conversation is claimed before its first byte leaves. From then on no service of this instance can become its target,
and a SEND on it goes straight into the transmission queue.
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
from servicebroker.engine.conversation.shared_bodies import MESSAGE_BODY, READERS_GONE
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
    """The transactions that a poll could see: all below `end` except the `unfinished` ones."""

    end: int
    unfinished: tuple[int, ...]


NO_TRANSACTION_ID = 2**63 - 1  # no transaction has that id


class WaitingConversation(NamedTuple):
    """Messages up to `last` of one endpoint wait; `has_end`: the last of them is an EndDialog or Error."""

    conversation_handle: UUID
    last: int
    has_end: bool


class OutgoingLook(NamedTuple):
    """The result of a poll: its `snapshot`, conversations with new messages, and databases with a disabled broker.

    `routes` changes with every change of a route. `traced`: messages have trace contexts
    (engine/conversation/traces.py).
    """

    snapshot: Snapshot
    waiting: list[WaitingConversation]
    disabled: frozenset[int]
    routes: int
    traced: bool


class Leaving(NamedTuple):
    """Messages of one endpoint to send, in order. A body is None also if it is longer than the limit of the read.

    `sizes` are those of the bodies, in bytes.
    """

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    parts: list[Part]


NO_MESSAGES = Leaving((), (), [])


class _LookRow(NamedTuple):
    """A row of `_LOOK`: what holds for the whole look, and a conversation with new messages, if there is one."""

    end: int
    unfinished: Sequence[int]
    disabled: Sequence[int]
    routes: int
    traced: bool
    waiting: WaitingConversation | None


def look(seen: Snapshot | None, division: Division = WHOLE) -> Steps[OutgoingLook]:
    """Return rows of the transmission queue that the poll of the snapshot `seen` could not see, in that division.

    Exactly those rows, in any order of commit. Without `seen` it returns none, only the first snapshot: `page` finds
    the rows that wait already. So the cost of a poll does not grow with the backlog.
    """
    end, unfinished = seen or (NO_TRANSACTION_ID, ())
    parameters = (str(end), [str(xact) for xact in unfinished])
    if division == WHOLE:
        rows = yield Statement("departing.look", _LOOK, parameters)
    else:
        rows = yield Statement("departing.look.divided", _LOOK_DIVIDED, (*parameters, *division))
    found = [build_row(_LookRow, row) for row in rows]
    waiting = [row.waiting for row in found if row.waiting is not None]
    first = found[0]
    return OutgoingLook(
        Snapshot(first.end, tuple(first.unfinished)), waiting, frozenset(first.disabled), first.routes, first.traced
    )


_FRESH = (
    "conversation_handle, message_sequence_number, is_end_of_dialog, is_conversation_error "
    "from servicebroker.transmission_queue"
)
_LOOKS = (
    "select pg_snapshot_xmax(now.snapshot)::text::bigint, "
    "array_remove(array(select x::text::bigint from pg_snapshot_xip(now.snapshot) x) "  # which lacks our own id
    "|| pg_current_xact_id_if_assigned()::text::bigint, null), "
    "array(select database_id from servicebroker.databases where not is_broker_enabled), "
    "(select max(routes_version) from servicebroker.databases), "
    "exists (select from servicebroker.trace_contexts), "
    "w.conversation_handle, w.last, w.has_end "
    "from (select pg_current_snapshot() as snapshot) now left join lateral (select g.* from ("
    "select conversation_handle, min(message_sequence_number) as first, max(message_sequence_number) as last, "
    "bool_or(is_end_of_dialog or is_conversation_error) as has_end from ("
    f"select {_FRESH} where xact >= $1::text::xid8 "
    "union all "  # an OR would read the whole table
    f"select {_FRESH} where xact = any ($2::text[]::xid8[]) and xact < $1::text::xid8) fresh "
    "group by conversation_handle) g where (not exists ("  # a delayed message before them
    "select from servicebroker.transmission_queue h where h.conversation_handle = g.conversation_handle "
    "and h.delayed_until is not null and h.message_sequence_number <= g.first) "
    "or g.has_end and (select e.is_remote from servicebroker.conversation_endpoints e "  # its dialog hears of the end
    "where e.conversation_handle = g.conversation_handle)){}) w on true"
)
_SHARE = (  # `share_of` of protocol/division.py
    "(select get_byte(uuid_send(e.conversation_id), 15) % $4::int "
    "from servicebroker.conversation_endpoints e where e.conversation_handle = {}) = $3::int"
)
_LOOK, _LOOK_DIVIDED = _LOOKS.format(""), _LOOKS.format(" and " + _SHARE.format("g.conversation_handle"))


def page(after: UUID | None, count: int, division: Division = WHOLE) -> Steps[list[UUID]]:
    """Return the next endpoints of that division with waiting messages, in the order of their handles.

    Those whose first message is delayed are left out. Each costs one index lookup, and one more if the work is divided.
    """
    parameters = (after or UUID(int=0), count)
    if division == WHOLE:
        rows = yield Statement("departing.page", _PAGE.format("true"), parameters)
    else:
        share = _SHARE.format("found.conversation_handle")
        rows = yield Statement("departing.page.divided", _PAGE.format(share), (*parameters, *division))
    return [handle for (handle,) in rows]


# OFFSET 0 keeps the planner from a hash join, which would lose the order of the handles, and read all of them.
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
    """Route each departure by the routes of its database, and by those of msdb if they lead back here.

    The conversation's identifier replaces chance, so that routing again gives the same answer. The dynamic routing
    service is asked for services without a route.
    """
    located = yield from find_topology(list({departure.far_service for departure in departures}), now, here)
    tables: dict[int, RoutingTable] = {}
    wanted = {departure.database_id for departure in departures}
    for database in located.databases:
        if database.database_id in wanted:
            tables[database.database_id] = yield from located.routes(catalog, database)
    outside = yield from located.routes(catalog, located.msdb)
    decisions = route_departures(departures, located, tables, outside, now)
    for one in departures:
        decision = decisions.get(one.conversation_handle)
        if decision is not None and isinstance(decision.destination, Ask):
            own = located.find(one.database_id)
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
    routers: dict[int, tuple[str, Router]] = {}  # by database, with its broker
    for database_id, table in tables.items():
        own = located.find(database_id)
        routers[database_id] = own.broker, Router(table, outside, located.site_of(own), now)
    for one in departures:
        if one.database_id not in routers:  # its database was dropped, and its conversations with it
            continue
        own_broker, router = routers[one.database_id]
        for broker in dict.fromkeys((one.far_broker or one.routed_broker, one.far_broker)):
            conversation = Conversation(one.far_service, broker, own_broker, not one.is_initiator)
            decision = router.decide(conversation, one.conversation_id)
            if isinstance(decision.destination, Elsewhere):  # else the route by which it was sent is gone
                break
        decisions[one.conversation_handle] = decision
    return decisions


class Claimed(NamedTuple):
    """The claim of a conversation: the broker instance that the route names, if any, and the security mode."""

    broker: str | None
    security: str


def claim(claims: Mapping[UUID, Claimed]) -> Steps[set[UUID]]:
    """Mark these conversations as remote.

    Returns the handles that are; the others have found a local target meanwhile. A conversation on which a session is
    sending is left for the next round.
    """
    rows = yield SQL(
        "claim",
        (
            list(claims),
            [one.broker for one in claims.values()],
            [one.security for one in claims.values()],
        ),
    )
    return {handle for (handle,) in rows}


class Reading(NamedTuple):
    """A read request: messages from `first` on, at least one, at most `most` messages and about `room` bytes."""

    first: int
    most: int
    room: int


def read(wanted: dict[UUID, Reading], longest: int) -> Steps[dict[UUID, Leaving]]:
    """Read the messages of each endpoint up to the first that is delayed; bodies up to `longest` bytes."""
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
            [one.first for one in wanted.values()],
            [one.most for one in wanted.values()],
            [one.room for one in wanted.values()],
            longest,
        ),
    )
    found, handles = {}, list(wanted)
    for place, group in groupby(rows, itemgetter(0)):
        _, numbers, sizes, types, contents, bodies, tokens = zip(*group, strict=True)
        parts = list(map(Part, types, map(_CONTENTS.__getitem__, contents), bodies, tokens))
        found[handles[place - 1]] = Leaving(numbers, sizes, parts)
    return found


_CONTENTS = tuple(Content)  # by their numbers


def read_fragment(handle: UUID, number: int, offset: int, length: int) -> Steps[bytes | None]:
    """Return `length` bytes at `offset` of one message, without reading the rest; None if the message is gone."""
    rows = yield Statement(
        "departing.read_fragment",
        f"select substring({MESSAGE_BODY} from $3 for $4) from servicebroker.transmission_queue "
        "where conversation_handle = $1 and message_sequence_number = $2",
        (handle, number, offset + 1, length),
    )
    return rows[0][0] if rows else None


def token_of(handle: UUID, number: int) -> Steps[bytes | None]:
    """Return the token of one waiting message; None if it is gone or has none."""
    rows = yield SQL("token_of", (handle, number))
    return rows[0][0] if rows else None


class Settled(NamedTuple):
    """The outcome: `done` takes effect with this commit, `ended` of those are closed; give the others again."""

    done: list[UUID]
    ended: list[UUID]


def acknowledge(news: Mapping[UUID, Acknowledged], now: datetime) -> Steps[Settled]:
    """Delete messages that the peers have committed, below these numbers. Close endpoints that only waited for that.

    The first acknowledgement names the broker of the target: all later messages go to that one.
    """
    rows = yield SQL(  # as `remote.lock_shared`, with their states
        "acknowledge.lock", (list(news),)
    )
    free = {handle for handle, *_ in rows}
    gone = yield from find_gone([handle for handle in news if handle not in free])
    changing = [handle for handle, was_acknowledged, is_ending in rows if is_ending or not was_acknowledged]
    done = free.difference(changing) | (yield from lock_alone(changing))
    ended = yield from _remove({handle: news[handle].below for handle in done})
    first = [handle for handle, was_acknowledged, _ in rows if not was_acknowledged and handle in done]
    if first:
        yield SQL("acknowledge.note", (first, [news[handle].far_broker for handle in first]))
    over = [handle for handle, _, is_ending in rows if is_ending and handle in ended]
    if over:
        yield from close_endpoints(over, now)
    return Settled([*done, *gone], over)


def _remove(below: dict[UUID, int]) -> Steps[set[UUID]]:
    """Delete acknowledged messages. Returns the endpoints whose EndDialog or Error was among them."""
    if not below:
        return set()
    rows = yield Statement(
        "departing.remove",
        "with gone as (delete from servicebroker.transmission_queue t "
        "using unnest($1::uuid[], $2::bigint[]) a (handle, below) "
        "where t.conversation_handle = a.handle and t.message_sequence_number < a.below "
        "returning t.conversation_handle, t.is_end_of_dialog or t.is_conversation_error as is_end, t.is_shared, "
        f"case when t.is_shared then t.message_body end as message_body), unread as ({READERS_GONE}) "
        "select conversation_handle from gone where is_end",
        (list(below), list(below.values())),
    )
    return {handle for (handle,) in rows}


def fail(failures: Mapping[UUID, BrokerFailure], now: datetime) -> Steps[list[UUID]]:
    """Apply refusals by the peers' brokers. Returns the handles that are done; the others must be given again."""
    free, gone = yield from lock_shared(list(failures))
    done = yield from lock_alone(list(free))
    rows = yield SQL("fail", (list(done),))
    ended = [handle for (handle,) in rows]  # their application never sees the error
    if ended:
        yield delete_parked(ended)
        yield from close_endpoints(ended, now)
    for handle in done.difference(ended):
        yield from fail_with_body([handle], error_body(failures[handle].code, failures[handle].description))
    return [*done, *gone]


def diverge(diverged: Mapping[UUID, Diverged], now: datetime) -> Steps[list[UUID]]:
    """Fail conversations whose two sides have diverged: each side gets an Error. Returns the handles that are done."""
    done = yield from fail({handle: side.own for handle, side in diverged.items()}, now)
    yield _be_remote(done)
    for handle in done:
        yield store_remote_error([handle], ConversationFailure(*structs.astuple(diverged[handle].far)))
    return done


def _be_remote(handles: list[UUID]) -> Statement:
    """Mark as remote those endpoints of a restored copy whose peer has answered although they had sent nothing."""
    return SQL("be_remote", (handles,))


def set_statuses(texts: dict[UUID, str]) -> Statement:
    """Set the transmission status of waiting messages; '' means that they are on their way."""
    return SQL("set_statuses", (list(texts), list(texts.values())))
