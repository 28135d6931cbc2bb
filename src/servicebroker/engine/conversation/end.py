"""END CONVERSATION: plain, WITH ERROR and WITH CLEANUP (docs/reference/rules.md#end-conversation)."""

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
    remove_closed_endpoints,
    remove_endpoint,
    state_at,
)
from servicebroker.engine.conversation.failure import delete_parked
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
    """END CONVERSATION, plain, WITH ERROR or WITH CLEANUP. Deletes the conversation's messages in this side's queue.

    Plain: the peer receives EndDialog after all messages sent before. `error` is a positive code and its description:
    undelivered messages are dropped and the peer receives an Error message. With `cleanup` nothing is sent to the peer.
    A peer that ended first is never sent anything.

    Raises:
        BrokerError: what `EndConversation.check` refuses, 8426 unknown handle, 8427 wrong state.
    """
    operation.check()
    handle, error, cleanup = operation.handle, operation.error, operation.cleanup
    if error or cleanup or not (yield from _end_dialog(catalog or Catalog(), handle, now)):
        yield from _end_step_by_step(handle, now=now, error=error, cleanup=cleanup)


def end_permitted(catalog: Catalog, user: User, operation: EndConversation, *, now: datetime) -> Steps[None]:
    """END CONVERSATION for a principal that is not dbo; one statement if its permissions are cached.

    That statement ends nothing if the queue's catalog version differs from that of the permission check. Then
    permissions are checked again.
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
    """END CONVERSATION in one statement. Returns False, with nothing changed, if that is not possible.

    See `enqueue.end_dialog`. Also returns False if the own queue has another catalog version than `version`.
    """
    queues = yield from _find_queues(catalog, handle)
    if queues is None:
        return False
    rows = yield Statement("end.end_dialog", enqueue.end_dialog(*queues), (handle, now, version), locks=True)
    is_done, is_due, *_ = rows[0]
    if is_done and is_due:
        yield from remove_closed_endpoints(now)
    if not is_done:
        catalog.forget(handle)
    catalog.forget_ended(handle)
    return bool(is_done)


def _find_queues(catalog: Catalog, handle: UUID) -> Steps[tuple[int, int] | None]:
    """Return the arguments of `enqueue.end_dialog`: this side's queue, and the peer's. Uses the cache if possible.

    Returns None if `_end_step_by_step` has to end the conversation.
    """
    received, channel = catalog.received.get(handle.bytes), catalog.channels.get(handle)
    if received is not None:
        if received.has_ended:
            return received.queue_id, enqueue.HAS_ENDED
        if channel is not None:
            return received.queue_id, channel.delivery_queue_id or enqueue.IN_ANOTHER_INSTANCE
        if (peer_queue := catalog.end_queues.get(received.kind)) is not None:
            return received.queue_id, peer_queue
    rows = yield SQL("find_queues", (handle,))
    if not rows:
        raise BrokerError(8426, handle)
    queue_id, peer_queue, state, is_remote = rows[0]
    if state == EndpointState.DISCONNECTED_INBOUND:
        return queue_id, enqueue.HAS_ENDED
    if state != EndpointState.CONVERSING or not (peer_queue or is_remote):
        return None
    peer_queue = enqueue.IN_ANOTHER_INSTANCE if is_remote else peer_queue
    if received is not None:
        catalog.remember_end_queue(received.kind, peer_queue)
    return queue_id, peer_queue


def _end_step_by_step(handle: UUID, *, now: datetime, error: tuple[int, str] | None, cleanup: bool) -> Steps[None]:
    """END CONVERSATION in every case, one rule after the other."""
    endpoint, peer = yield from lock_conversation(handle)
    next_state = after(state_at(endpoint, now), Event.END) if not cleanup else None
    yield from _delete_messages(endpoint)
    if cleanup or error or next_state is not EndpointState.DISCONNECTED_OUTBOUND:
        yield delete_parked([handle])
    if peer is not None:  # this side will not receive the peer's undelivered messages
        yield delete_parked([peer.conversation_handle])
    if peer is not None and peer.state == EndpointState.DISCONNECTED_OUTBOUND:
        # the peer has ended too, and its EndDialog or Error is undelivered: drop it, and close both sides
        yield delete_parked([handle])
        yield from close_endpoints([peer.conversation_handle], now)
        next_state = next_state and EndpointState.CLOSED
    if cleanup:
        yield _forget_address(endpoint)
    elif next_state is EndpointState.DISCONNECTED_OUTBOUND:
        is_parked = yield from _send_end(endpoint, peer, error)
        if is_parked:
            return
    elif peer is not None and peer.state == EndpointState.CONVERSING:
        # the peer gets no message when the lifetime has run out, but a SEND of it may be in progress: its next SEND
        # must check the state of this side
        yield _stop_direct_delivery(peer)
    yield from _close(endpoint, now, keep=next_state is not None)
    yield from remove_closed_endpoints(now)


def _send_end(endpoint: Endpoint, peer: Endpoint | None, error: tuple[int, str] | None) -> Steps[bool]:
    """Send EndDialog or Error to the peer. Returns True if it was parked: the peer is remote, blocked or not created.

    A peer that was not created is sent nothing, except an EndDialog behind a first message that waits for it.
    """
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
        if not endpoint.obstacle and not endpoint.is_delayed:  # only delayed messages blocked it; they were dropped
            yield SQL("send_end.notify", (DELIVERY_CHANNEL,))
        return True
    message: tuple[int, str, bytes | None, int]
    if error:
        message = (names.ERROR_ID, "X", error_body(*error), enqueue.RANK_ERROR)
    else:
        message = (names.END_DIALOG_ID, "E", None, enqueue.RANK_DATA)
    yield Statement(
        "end.send_end", enqueue.tell_peer(endpoint.delivery_queue_id), (endpoint.conversation_handle, *message)
    )
    yield _set_state(peer, after(EndpointState(peer.state), event) or EndpointState.CLOSED)
    return False


def _park_end(endpoint: Endpoint, peer: Endpoint | None, error: tuple[int, str] | None) -> Steps[None]:
    """Park EndDialog or Error behind earlier messages, and set the endpoint to DISCONNECTED_OUTBOUND.

    From then on messages of the peer are dropped. Deletes the endpoint's timer, and messages of a remote peer that are
    stored beside the queue.
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
        yield _stop_direct_delivery(peer)


def _stop_direct_delivery(peer: Endpoint) -> Statement:
    """Clear the peer's `far_queue_id`. So its next SEND has to check this side's state instead of inserting at once."""
    return SQL("stop_direct_delivery", (peer.conversation_handle,))


def _close(endpoint: Endpoint, now: datetime, *, keep: bool) -> Steps[None]:
    """Close the endpoint, or remove it for WITH CLEANUP (`keep` is False).

    A closed initiator without dialog security is removed at once; a closed target is kept for replay protection. No
    acknowledgement is awaited: the commit makes the EndDialog durable in the peer's queue.
    """
    if keep:
        yield from close_endpoints([endpoint.conversation_handle], now)
    else:
        yield from remove_endpoint(endpoint)


def _delete_messages(endpoint: Endpoint) -> Steps[None]:
    """Delete every message of this conversation from this side's queue, retained ones too."""
    yield purge(
        f"queue_{endpoint.queue_id}",
        "priority = $1 and conversation_group_id = $2 and conversation_handle = $3",
        *(endpoint.priority, endpoint.conversation_group_id, endpoint.conversation_handle),
    )
    if endpoint.keeps_retained:
        yield purge(f"retained_{endpoint.queue_id}", "conversation_handle = $1", endpoint.conversation_handle)


def _forget_address(endpoint: Endpoint) -> Statement:
    """Clear this side's address in the peer's row, so that its next SEND finds no target."""
    return SQL("forget_address", (endpoint.conversation_handle, endpoint.peer_handle))


def _set_state(endpoint: Endpoint, state: EndpointState) -> Statement:
    return SQL("set_state", (endpoint.conversation_handle, state.value))


def answer_ends(queue_id: int, messages: Sequence[Message], now: datetime) -> Steps[list[UUID]]:
    """END CONVERSATION for many conversations at once, each with an EndDialog of the peer as its last message.

    The caller holds the locks of their groups. Returns the handles of the conversations that have ended. The others
    need `end_conversation`: the peer has not closed, messages are retained, or a lifetime has run out.
    """
    handles = [message.conversation_handle for message in messages]
    yield SQL("answer_ends.lock", (handles,))
    rows = yield SQL("answer_ends.find", (handles, queue_id, now))
    if not rows:
        return []
    ended, priorities, groups = ([*column] for column in zip(*rows, strict=True))
    yield purge(
        f"queue_{queue_id}",
        "ctid = any (array("
        "select m.ctid from unnest($1::uuid[], $2::smallint[], $3::uuid[]) as ended (handle, priority, group_id) "
        f"cross join lateral (select q.ctid from servicebroker.queue_{queue_id} q where q.priority = ended.priority "
        "and q.conversation_group_id = ended.group_id and q.conversation_handle = ended.handle offset 0) m))",
        *(ended, priorities, groups),
    )
    yield delete_parked(ended)
    yield from close_endpoints(ended, now)
    yield from remove_closed_endpoints(now)
    return ended
