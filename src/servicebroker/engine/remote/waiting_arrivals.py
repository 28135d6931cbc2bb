"""Messages from other instances that are stored beside their queue (in arrived_fragments), and their later delivery.

They are there because the queue was off, or because a message was too large to be assembled in a round of the daemon
(decision 462).
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from servicebroker.engine.conversation import enqueue
from servicebroker.engine.remote.arriving import ArrivedEnd, apply_ends
from servicebroker.model.states import EndpointState, Event
from servicebroker.protocol.envelope import Content
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_KEPT_FRAGMENTS_SQL = (
    "from servicebroker.conversation_endpoints e "
    "join servicebroker.arrivals a using (conversation_handle) "
    "join servicebroker.queues q on q.queue_id = e.queue_id and q.is_enqueue_enabled "
    "join servicebroker.databases d on d.database_id = e.database_id and d.is_broker_enabled "
    "where e.conversation_handle in (select conversation_handle from servicebroker.arrived_fragments) "
    "and exists (select from servicebroker.arrived_fragments f "
    "  where f.conversation_handle = e.conversation_handle and f.message_sequence_number < a.receive_sequence)"
)


def find_kept() -> Steps[list[UUID]]:
    """Return the conversations with messages beside a queue that is on now, for `deliver_kept`."""
    rows = yield Statement("waiting_arrivals.find_kept", f"select e.conversation_handle {_KEPT_FRAGMENTS_SQL}")
    return [handle for (handle,) in rows]


def deliver_kept(handles: list[UUID], now: datetime) -> Steps[list[UUID]]:
    """Move messages that are stored beside a queue into the queue, if it is on.

    The caller holds the lock of `lock_delivery`, perhaps shared. The daemon may be storing messages meanwhile; it has
    locked the row of `arrivals` then. Returns the conversations that another session has locked: try them again later.
    """
    if not handles:
        return []
    rows = yield Statement(
        "waiting_arrivals.deliver_kept.lock",
        # a separate statement, so that the next ones see everything that the last owner of the locks has stored
        f"select e.conversation_handle {_KEPT_FRAGMENTS_SQL} and e.conversation_handle = any ($1) "
        "for no key update of e, a skip locked",
        (handles,),
    )
    own_handles = {handle for (handle,) in rows}
    yield from _enqueue(list(own_handles), now)
    return [handle for handle in handles if handle not in own_handles]


def deliver_free(handle: UUID, now: datetime) -> Steps[None]:
    """Deliver one conversation, unless another session has locked it, or is switching its queue on or off."""
    rows = yield SQL("deliver_free.lock", (locks.PARKED_DELIVERY,))
    if rows[0][0]:
        yield from deliver_kept([handle], now)


def _enqueue(locked: list[UUID], now: datetime) -> Steps[None]:
    """Insert the stored messages of locked conversations into their queues, and apply EndDialogs and Errors."""
    queues = yield SQL("enqueue.by_queue", (locked,))
    for queue_id, handles in queues:
        yield Statement("waiting_arrivals.enqueue.arrive", enqueue.insert_kept(queue_id), (handles,))
        rows = yield SQL("enqueue.find_ends", (handles,))
        ends: list[ArrivedEnd] = []
        states: dict[UUID, EndpointState] = {}
        for handle, before, content in rows:
            state = EndpointState.CONVERSING if before == EndpointState.STARTED_INBOUND else EndpointState(before)
            if content != Content.DATA:
                event = Event.END_DIALOG_ARRIVED if content == Content.END else Event.ERROR_ARRIVED
                ends.append(ArrivedEnd(handle, state, event))
            elif state != before:
                states[handle] = state
        yield from apply_ends(ends, states, now)
