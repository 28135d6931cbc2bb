"""END CONVERSATION in its three forms (docs/reference/rules.md#end-conversation)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import (
    Endpoint,
    close_endpoints,
    find_endpoint,
    is_unopened,
    lock_conversation,
    lock_parking,
    remove_closed,
    remove_endpoint,
    state_at,
)
from servicebroker.engine.conversation.failure import drop_waiting
from servicebroker.engine.conversation.shared_bodies import purge
from servicebroker.engine.delivery.parking import park
from servicebroker.engine.security.authorization import authorize_end
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message, error_body
from servicebroker.model.security.permissions import User
from servicebroker.model.states import TRANSITIONS, EndpointState, Event, after
from servicebroker.operations.end import EndConversation
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import DELIVERY_CHANNEL
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


def end_conversation(operation: EndConversation, *, now: datetime, catalog: Catalog | None = None) -> Steps[None]:
    """END CONVERSATION, plain, WITH ERROR or WITH CLEANUP.

    Removes the conversation's messages from this side's queue. Plain: the peer gets EndDialog after everything sent
    before. With `error`, a positive code and its description: undelivered messages are dropped and the peer gets the
    Error. With `cleanup` the peer is not told. A peer that ended first is never told.

    Raises:
        BrokerError: what `EndConversation.check` refuses, 8426 unknown handle, 8427 wrong state.
    """
    operation.check()
    handle, error, cleanup = operation.handle, operation.error, operation.cleanup
    if error or cleanup or not (yield from _end_dialog(catalog or Catalog(), handle, now)):
        yield from _end_step_by_step(handle, now=now, error=error, cleanup=cleanup)


def end_permitted(catalog: Catalog, user: User, operation: EndConversation, *, now: datetime) -> Steps[None]:
    """END CONVERSATION for a principal that is not dbo; one statement if its permissions are cached.

    That statement compares the queue's catalog version, as RECEIVE does. If the version differs, permissions are
    checked again.
    """
    received = catalog.received.get(operation.handle.bytes) if isinstance(operation.handle, UUID) else None
    if received is not None:
        is_plain, version = not (operation.error or operation.cleanup), catalog.endable.get(received.ends)
        if is_plain and version is not None and (yield from _end_dialog(catalog, operation.handle, now, version)):
            return
        rows = yield SQL("end_permitted", (received.queue_id,))
    yield from authorize_end(user, operation)
    if received is not None and rows:
        catalog.endable[received.ends] = rows[0][0]
    yield from end_conversation(operation, now=now, catalog=catalog)


def _end_dialog(catalog: Catalog, handle: UUID, now: datetime, version: int | None = None) -> Steps[bool]:
    """END CONVERSATION in the usual case. False, with nothing changed, if the case is not the usual one.

    Also False if `version` is given and the own queue has another catalog version.
    """
    queues = yield from _find_queues(catalog, handle)
    if queues is None:
        return False
    rows = yield Statement("end.end_dialog", enqueue.end_dialog(*queues), (handle, now, version), locks=True)
    is_done, is_due, *_ = rows[0]
    if is_done and is_due:
        yield from remove_closed(now)
    if not is_done:
        catalog.forget(handle)
    catalog.forget_ended(handle)
    return bool(is_done)


def _find_queues(catalog: Catalog, handle: UUID) -> Steps[tuple[int, int] | None]:
    """Return the parameters of `enqueue.end_dialog`: both queues, from the cache if possible.

    None if END cannot tell the peer or close the endpoint in one statement.
    """
    received, channel = catalog.received.get(handle.bytes), catalog.channels.get(handle)
    if received is not None:
        if received.has_ended:
            return received.queue_id, enqueue.HAS_ENDED
        if channel is not None:
            return received.queue_id, channel.far_queue_id or enqueue.IN_ANOTHER_INSTANCE
        if (known := catalog.end_queues.get(received.kind)) is not None:
            return received.queue_id, known
    rows = yield SQL("find_queues", (handle,))
    if not rows:
        raise BrokerError(8426, handle)
    near, far, state, is_remote = rows[0]
    if state == EndpointState.DISCONNECTED_INBOUND:
        return near, enqueue.HAS_ENDED
    if state != EndpointState.CONVERSING or not (far or is_remote):
        return None
    far = enqueue.IN_ANOTHER_INSTANCE if is_remote else far
    if received is not None:
        catalog.remember_end_queue(received.kind, far)
    return near, far


def _end_step_by_step(handle: UUID, *, now: datetime, error: tuple[int, str] | None, cleanup: bool) -> Steps[None]:
    """END CONVERSATION in every case, one rule after the other."""
    endpoint, peer = yield from lock_conversation(handle)
    next_state = after(state_at(endpoint, now), Event.END) if not cleanup else None
    yield from _purge(endpoint)
    if cleanup or error or next_state is not EndpointState.DISCONNECTED_OUTBOUND:
        yield drop_waiting([handle])
    if peer is not None:  # undelivered messages of the peer have no reader any more
        yield drop_waiting([peer.conversation_handle])
    if peer is not None and peer.state == EndpointState.DISCONNECTED_OUTBOUND:
        # the peer's own end is waiting for this side: both have ended, and neither is told
        yield drop_waiting([handle])
        yield from close_endpoints([peer.conversation_handle], now)
        next_state = next_state and EndpointState.CLOSED
    if cleanup:
        yield _forget_address(endpoint)
    elif next_state is EndpointState.DISCONNECTED_OUTBOUND:
        waits = yield from _tell(endpoint, peer, error)
        if waits:
            return
    elif peer is not None and peer.state == EndpointState.CONVERSING:
        # the peer is not told that the lifetime is over: a SEND that began before may still be on its way here
        yield _close_way_back(peer)
    yield from _close(endpoint, now, keep=next_state is not None)
    yield from remove_closed(now)


def _tell(endpoint: Endpoint, peer: Endpoint | None, error: tuple[int, str] | None) -> Steps[bool]:
    """Send EndDialog or Error to the peer. True if it is parked: the target is not open yet, blocked or remote."""
    if endpoint.is_remote:
        yield from _park_end(endpoint, None, error)
        return True
    if peer is None or not endpoint.has_peer:
        if error or not (yield from is_unopened(endpoint)):
            return False
        yield from _park_end(endpoint, peer, None)
        return True
    event = Event.ERROR_ARRIVED if error else Event.END_DIALOG_ARRIVED
    if (EndpointState(peer.state), event) not in TRANSITIONS:  # its lifetime ran out while we waited for its row
        return False
    if endpoint.is_blocked:
        yield lock_parking()
        endpoint = yield from find_endpoint(endpoint.conversation_handle)  # the obstacle may be gone
    if endpoint.is_blocked:
        yield from _park_end(endpoint, peer, error)
        if not endpoint.obstacle and not endpoint.is_delayed:  # this END has dropped what was delayed
            yield SQL("tell.notify", (DELIVERY_CHANNEL,))
        return True
    message: tuple[int, str, bytes | None, int]
    if error:
        message = (names.ERROR_ID, "X", error_body(*error), enqueue.RANK_ERROR)
    else:
        message = (names.END_DIALOG_ID, "E", None, enqueue.RANK_DATA)
    yield Statement("end.tell", enqueue.tell_peer(endpoint.far_queue_id), (endpoint.conversation_handle, *message))
    yield _set_state(peer, after(EndpointState(peer.state), event) or EndpointState.CLOSED)
    return False


def _park_end(endpoint: Endpoint, peer: Endpoint | None, error: tuple[int, str] | None) -> Steps[None]:
    """Park EndDialog or Error behind earlier messages, and drop messages of the peer from now on.

    Messages from another instance that wait beside the queue are removed too; the endpoint loses its timer.
    """
    name, body = (names.ERROR, error_body(*error)) if error else (names.END_DIALOG, None)
    yield from park(
        endpoint._replace(is_delayed=False) if error else endpoint,  # an Error drops what was delayed
        name,
        [body],
        endpoint.obstacle,
        is_end_of_dialog=not error,
        is_conversation_error=error is not None,
    )
    yield SQL("park_end.disconnect", (endpoint.conversation_handle,))
    if peer is not None:
        yield _close_way_back(peer)


def _close_way_back(peer: Endpoint) -> Statement:
    """Stop statements from delivering straight to this side: the peer's next SEND checks this side's state."""
    return SQL("close_way_back", (peer.conversation_handle,))


def _close(endpoint: Endpoint, now: datetime, *, keep: bool) -> Steps[None]:
    """Close or remove the endpoint. The commit puts the EndDialog durably into the peer's queue, which acknowledges it.

    `keep` is False for WITH CLEANUP. A closed initiator without dialog security is removed at once; a target is kept
    against replays.
    """
    if keep:
        yield from close_endpoints([endpoint.conversation_handle], now)
    else:
        yield from remove_endpoint(endpoint)


def _purge(endpoint: Endpoint) -> Steps[None]:
    """Delete every message of this conversation from this side's queue, retained ones too."""
    yield purge(
        f"queue_{endpoint.queue_id}",
        "priority = $1 and conversation_group_id = $2 and conversation_handle = $3",
        *(endpoint.priority, endpoint.conversation_group_id, endpoint.conversation_handle),
    )
    if endpoint.keeps_retained:
        yield purge(f"retained_{endpoint.queue_id}", "conversation_handle = $1", endpoint.conversation_handle)


def _forget_address(endpoint: Endpoint) -> Statement:
    """Clear the address at the peer: its next SEND finds no target."""
    return SQL("forget_address", (endpoint.conversation_handle, endpoint.far_handle))


def _set_state(endpoint: Endpoint, state: EndpointState) -> Statement:
    return SQL("set_state", (endpoint.conversation_handle, state.value))


def answer_ends(queue_id: int, messages: Sequence[Message], now: datetime) -> Steps[list[UUID]]:
    """END CONVERSATION, in a few statements, for many conversations whose last message is an EndDialog in the queue.

    The caller holds their groups. Returns the handles of those that have ended. The others need `end_conversation`: the
    peer has not closed, messages are retained, or a lifetime is over.
    """
    handles = [message.conversation_handle for message in messages]
    yield SQL("answer_ends.lock", (handles,))
    rows = yield SQL("answer_ends.find", (handles, queue_id, now))
    if not rows:
        return []
    ended, levels, groups = ([*column] for column in zip(*rows, strict=True))
    yield purge(
        f"queue_{queue_id}",
        "ctid = any (array("
        "select m.ctid from unnest($1::uuid[], $2::smallint[], $3::uuid[]) as w (handle, level, own) "
        f"cross join lateral (select q.ctid from servicebroker.queue_{queue_id} q where q.priority = w.level "
        "and q.conversation_group_id = w.own and q.conversation_handle = w.handle offset 0) m))",
        *(ended, levels, groups),
    )
    yield drop_waiting(ended)
    yield from close_endpoints(ended, now)
    yield from remove_closed(now)
    return ended
