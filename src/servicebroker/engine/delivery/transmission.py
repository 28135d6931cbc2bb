"""The transmission queue: sent messages that cannot be delivered yet, with the reason, and their later delivery.

A conversation with messages in the transmission queue is parked. While it is parked, its sender's `far_queue_id` is
null, so every SEND queues its message behind them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, find_usages
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import (
    Endpoint,
    close_endpoints,
    find_endpoint,
    lock_endpoint,
    lock_parking,
    lock_rows,
)
from servicebroker.engine.conversation.failure import fail_conversation
from servicebroker.engine.conversation.shared_bodies import MESSAGE_BODY, purge
from servicebroker.engine.conversation.validation import rejection, sender_of
from servicebroker.engine.delivery.opening import lock_service, open_target
from servicebroker.engine.remote.waiting_arrivals import deliver_kept, find_kept
from servicebroker.engine.security.authorization import refused_arrival
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.rejection import on_both_sides
from servicebroker.model.security.permissions import DBO_ID
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


def discard(endpoint: Endpoint, count: int) -> Steps[int]:
    """Drop messages to a peer that has ended, whose EndDialog or Error is not delivered yet; count their numbers.

    Returns the first sequence number.
    """
    yield SQL("discard", (endpoint.conversation_handle, count))
    return endpoint.send_sequence


def get_transmission_status(database_id: int, operation: GetTransmissionStatus) -> Steps[str]:
    """GET_TRANSMISSION_STATUS: return the reason why the endpoint's oldest message in sys.transmission_queue waits.

    Returns '' if no message waits, if no delivery was tried yet, and for an unknown handle. The rules:
    docs/reference/rules.md#transmission-status.

    Raises:
        BrokerError: 8418, 402 an argument that is not a handle.
    """
    operation.check()
    rows = yield SQL("get_transmission_status", (operation.handle, database_id, RULES[9749].text))
    return str(rows[0][0]) if rows else ""


def lock_delivery() -> Statement:
    """Take the lock for the delivery of parked messages, exclusively (`lock_parking` takes it shared).

    SENDs that may park messages wait for this lock, so no statement under it may wait long: see api/lock_retry.py.
    """
    return SQL("lock_delivery", (locks.PARKED_DELIVERY,))


def deliver_to_service(catalog: Catalog, service: str, now: datetime) -> Steps[None]:
    """Deliver messages that wait for a service of that name, one conversation after the other."""
    waiting = yield SQL("deliver_to_service", (service,))
    yield from _open_all(catalog, [handle for (handle,) in waiting], now)


def deliver_everything(catalog: Catalog, now: datetime) -> Steps[list[UUID]]:
    """Deliver all parked messages that can be delivered, after a queue or broker was switched on or a service moved.

    The caller holds the lock of `lock_delivery`. So this may not wait for a locked row, whose owner may be waiting for
    that lock: such conversations are skipped. Returns the skipped handles, to be delivered by `deliver_conversation` in
    a transaction each.
    """
    busy = yield from deliver_kept((yield from find_kept()), now)
    parked, unopened = yield from _deliverable()
    wanted = [*parked, *unopened]
    if not wanted:
        return busy
    locked = yield from lock_available(wanted)
    yield from _deliver_parked(catalog, [handle for handle in parked if handle in locked], now)
    yield from _open_all(catalog, [handle for handle in unopened if handle in locked], now)
    return busy + [handle for handle in wanted if handle not in locked]


def find_oldest_writer() -> Steps[int]:
    """Return the id of the oldest running transaction, or the next id without one. All earlier ones have ended."""
    rows = yield SQL("find_oldest_writer")
    return int(rows[0][0])


def _deliverable(since: int = 0) -> Steps[tuple[list[UUID], list[UUID]]]:
    """Return endpoints whose parked messages can probably be delivered: with a peer, and without a target yet.

    The second list has conversations whose first message has no transmission status, because a SEND by the SQL
    functions parked it without looking for the target. It also has those whose route request was answered or never
    committed. With `since`, only endpoints on which that transaction or a later one has sent.
    """
    parked = yield Statement(
        "transmission.deliverable.find_parked",
        f"select distinct e.conversation_handle {PATH_IS_FREE} "
        "and e.conversation_handle in "
        "(select conversation_handle from servicebroker.transmission_queue where xact >= $1::text::xid8)",
        (str(since),),
    )
    unopened = yield SQL("deliverable.find_unopened", (RULES[9770].text, str(since)))
    return [handle for (handle,) in parked], [handle for (handle,) in unopened]


def deliver_free(catalog: Catalog, now: datetime) -> Steps[list[UUID]]:
    """Take the lock and run `deliver_everything`."""
    yield lock_delivery()
    return (yield from deliver_everything(catalog, now))


def match_again(catalog: Catalog, database_id: int, now: datetime) -> Steps[list[UUID]]:
    """Look for missing targets of a database's conversations again, because its routes have changed.

    The caller's lock and the returned handles are those of `deliver_everything`.
    """
    rows = yield SQL("match_again", (database_id,))
    waiting = [handle for (handle,) in rows]
    locked = (yield from lock_available(waiting)) if waiting else set()
    yield from _open_all(catalog, [handle for handle in waiting if handle in locked], now)
    return [handle for handle in waiting if handle not in locked]


def deliver_left_over(catalog: Catalog, now: datetime, since: int = 0) -> Steps[bool]:
    """Deliver parked messages of SENDs by SQL functions and of processes that died. Never waits for a lock.

    With `since`, only on conversations on which that transaction or a later one has sent. Returns True if the caller
    should try again: another session had a lock, or the daemon may have stored more messages beside a queue meanwhile.
    """
    parked, unopened = yield from _deliverable(since)
    wanted, kept_handles = [*parked, *unopened], (yield from find_kept())
    if not wanted and not kept_handles:
        return False
    rows = yield SQL("deliver_left_over", (locks.PARKED_DELIVERY, locks.SERVICE_NAME, unopened))
    if not rows[0][0]:
        return True
    yield from deliver_kept(kept_handles, now)
    locked = yield from lock_available(wanted)
    yield from _deliver_parked(catalog, [handle for handle in parked if handle in locked], now)
    yield from _open_all(catalog, [handle for handle in unopened if handle in locked], now)
    return bool(kept_handles) or len(locked) < len(wanted)


def deliver_conversation(catalog: Catalog, handle: UUID, now: datetime) -> Steps[None]:
    """Deliver messages parked on one conversation; waits for its locks. Does nothing if it has ended."""
    with suppress(BrokerError):
        endpoint = yield from find_endpoint(handle)
        yield lock_parking() if endpoint.has_peer else lock_service(endpoint.far_service)
        yield from lock_rows(endpoint.conversation_id)
        endpoint = yield from find_endpoint(handle)
        if endpoint.is_remote:
            yield from deliver_kept([handle], now)
        elif not endpoint.has_peer:
            yield from _open_all(catalog, [handle], now)
        elif not endpoint.obstacle and not endpoint.peer_has_ended:
            yield from deliver_waiting(catalog, endpoint, now)


# Endpoints that may have parked messages although nothing prevents delivery, except those whose first parked message is
# delayed.
PATH_IS_FREE = (
    "from servicebroker.conversation_endpoints e "
    "join servicebroker.databases own on own.database_id = e.database_id and own.is_broker_enabled "
    "join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
    "join servicebroker.databases far on far.database_id = p.database_id and far.is_broker_enabled "
    "join servicebroker.queues q on q.queue_id = p.queue_id and q.is_enqueue_enabled "
    "where e.far_queue_id is null and not exists (select from servicebroker.transmission_queue h "
    "where h.conversation_handle = e.conversation_handle and h.delayed_until is not null and not exists "
    "(select from servicebroker.transmission_queue b where b.conversation_handle = e.conversation_handle "
    "and b.message_sequence_number < h.message_sequence_number)) "
)


def lock_available(handles: list[UUID]) -> Steps[set[UUID]]:
    """Lock these endpoints and their peers, and return the handles. Skips those that other sessions have locked."""
    rows = yield SQL("lock_available.lock_endpoints", (handles,))
    peers = yield SQL("lock_available.lock_peers", ([peer for _, peer in rows if peer is not None],))
    locked_peers = {handle for (handle,) in peers}
    return {handle for handle, peer in rows if peer is None or peer in locked_peers}


def _deliver_parked(catalog: Catalog, handles: list[UUID], now: datetime) -> Steps[None]:
    """Deliver parked messages of conversations that have a peer, with one statement for each queue."""
    rows = yield Statement(
        "transmission.deliver_parked",
        "select w.conversation_handle, w.queue_id, bool_or("
        "  (t.validation is null or t.validation is distinct from m.validation or m.xml_collection_id is not null "
        "  or w.is_checked) "
        "  and not t.is_end_of_dialog and not t.is_conversation_error) "
        "from (select e.conversation_handle, p.queue_id, p.database_id, e.is_initiator and ("
        "        p.far_principal_id is not null or exists (select from servicebroker.services s "
        f"       where s.service_id = e.service_id and s.owner_id <> {DBO_ID})) as is_checked {PATH_IS_FREE} "
        "      and e.conversation_handle = any ($1)) w "
        "join servicebroker.transmission_queue t on t.conversation_handle = w.conversation_handle "
        "left join servicebroker.message_types m "
        "  on m.database_id = w.database_id and m.name = t.message_type_name "
        "group by w.conversation_handle, w.queue_id",
        (handles,),
    )
    queues: dict[int, list[UUID]] = defaultdict(list)
    for handle, queue_id, needs_check in rows:
        if needs_check:  # the message type, its schemas or the owner's permission may have changed meanwhile
            yield from deliver_waiting(catalog, (yield from find_endpoint(handle)), now)
        else:
            queues[queue_id].append(handle)
    for queue_id, queue_handles in queues.items():
        yield from _deliver(catalog, queue_id, queue_handles, now)


def _open_all(catalog: Catalog, handles: list[UUID], now: datetime) -> Steps[None]:
    """Open the targets of these conversations and deliver their messages, or store why they have to wait."""
    for handle in handles:
        try:
            endpoint = yield from lock_endpoint(handle)
        except BrokerError:  # the conversation ended meanwhile
            continue
        if endpoint.has_peer or endpoint.is_remote:  # a conversation sent to another instance gets no second target
            continue
        outcome = yield from open_target(catalog, endpoint, now)
        if outcome.refusal:
            yield from fail_conversation(endpoint, outcome.refusal)
        elif outcome.waiting_reason:
            yield _set_status(endpoint, outcome.waiting_reason)
        else:
            yield from deliver_waiting(catalog, (yield from find_endpoint(handle)), now)


def deliver_waiting(catalog: Catalog, endpoint: Endpoint, now: datetime) -> Steps[bool]:
    """Deliver messages parked on a locked endpoint. The caller knows that nothing prevents delivery.

    Returns False if the peer refused a message, which fails the conversation.
    """
    waiting = yield Statement(
        "transmission.deliver_waiting",
        "select message_sequence_number, message_type_name, "
        f"{MESSAGE_BODY} from servicebroker.transmission_queue t "
        f"where conversation_handle = $1 and not is_end_of_dialog and not is_conversation_error and {enqueue.IS_FREE} "
        "order by message_sequence_number",
        (endpoint.conversation_handle,),
    )
    may_have_end = endpoint.state != "CO"  # an EndDialog may be the only parked message
    if not waiting and (endpoint.is_delayed or (endpoint.delivery_queue_id and not may_have_end)):
        return True
    peer_usages = yield from find_usages(
        catalog, endpoint.peer_database_id, endpoint.peer_contract_id, endpoint.catalog_version
    )
    refused = (yield from refused_arrival(endpoint, endpoint.peer_service_id)) if endpoint.is_initiator else None
    for number, message_type, body in waiting:
        failure = (
            on_both_sides(refused)
            if refused
            else (yield from rejection(sender_of(endpoint), peer_usages, message_type, number, body))
        )
        if failure:
            yield purge(
                "transmission_queue",
                "conversation_handle = $1 and message_sequence_number >= $2",
                *(endpoint.conversation_handle, number),
            )
            yield from _deliver(catalog, endpoint.peer_queue_id, [endpoint.conversation_handle], now)
            yield from fail_conversation(endpoint, *failure)
            return False
    yield from _deliver(catalog, endpoint.peer_queue_id, [endpoint.conversation_handle], now)
    return True


def _deliver(catalog: Catalog, queue_id: int, handles: list[UUID], now: datetime) -> Steps[None]:
    """Deliver messages parked on locked endpoints to their peers in that queue, and end conversations.

    A conversation ends if an EndDialog or Error is among its messages.
    """
    ends = yield SQL("deliver.find_ends", (handles,))
    rows = yield Statement("transmission.deliver.enqueue", enqueue.deliver(queue_id), (handles,))
    priorities: list[int] = rows[0][0] or []
    for priority, count in Counter(priorities).items():
        catalog.count_enqueued(priority, count)
    if ends:
        yield from _finish([handle for handle, _ in ends], [handle for handle, is_error in ends if is_error], now)


def _finish(ended: list[UUID], failed: list[UUID], now: datetime) -> Steps[None]:
    """Apply delivered EndDialogs and Errors: update each peer's state, and close the senders.

    `ended`: the senders' handles; `failed`: those among them that sent an Error.
    """
    yield SQL("finish", (ended, failed))
    yield from close_endpoints(ended, now)


def _set_status(endpoint: Endpoint, status: str) -> Statement:
    return SQL("set_status", (endpoint.conversation_handle, status))
