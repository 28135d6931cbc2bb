"""The transmission queue: messages that are sent but cannot be delivered yet, and why."""

from __future__ import annotations

from collections.abc import Sequence

from servicebroker.engine import enqueue
from servicebroker.engine.catalog import Catalog, find_usages
from servicebroker.engine.endpoints import Endpoint, find_endpoint, lock_endpoint, lock_group, remove_endpoint
from servicebroker.engine.failure import fail_conversation
from servicebroker.engine.opening import open_target
from servicebroker.engine.validation import rejection
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.store.statements import Statement, Steps

BUSY = "Target queue is busy; message(s) queued for delivery."  # 9749


def park(
    endpoint: Endpoint,
    message_type: str,
    contents: Sequence[bytes | None],
    status: str,
    *,
    is_end_of_dialog: bool = False,
) -> Steps[int]:
    """Keep messages of a locked endpoint until they can be delivered. Returns the first sequence number."""
    for portion in enqueue.portions(contents):
        yield Statement(
            "with sender as ("
            "update servicebroker.conversation_endpoints set send_sequence = send_sequence + $5, state = 'CO' "
            "where conversation_handle = $1 returning send_sequence - $5 as number) "
            "insert into servicebroker.transmission_queue (conversation_handle, message_sequence_number, "
            "message_type_name, message_body, transmission_status, is_end_of_dialog) "
            "select $1, number + place - 1, $2, body, $4, $6 "
            "from sender, unnest($3::bytea[]) with ordinality as message (body, place)",
            (endpoint.conversation_handle, message_type, portion, status, len(portion), is_end_of_dialog),
        )
    return endpoint.send_sequence


def drop_waiting(endpoint: Endpoint) -> Statement:
    """Forget what was sent on this endpoint and not delivered."""
    return Statement(
        "delete from servicebroker.transmission_queue where conversation_handle = $1",
        (endpoint.conversation_handle,),
    )


def deliver_to_service(catalog: Catalog, service: str) -> Steps[None]:
    """Deliver what waits for a service of that name, conversation by conversation."""
    waiting = yield Statement(
        "select e.conversation_handle, e.conversation_group_id from servicebroker.transmission_queue t "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        "where e.far_service = $1 and t.message_sequence_number = 0 order by t.enqueue_time",
        (service,),
    )
    for handle, group in waiting:
        yield lock_group(group)
        try:
            endpoint = yield from lock_endpoint(handle)
        except BrokerError:  # ended meanwhile
            continue
        if not endpoint.has_peer:
            yield from _open_and_deliver(catalog, endpoint)


def _open_and_deliver(catalog: Catalog, endpoint: Endpoint) -> Steps[None]:
    outcome = yield from open_target(endpoint)
    if outcome.refusal:
        yield from fail_conversation(endpoint, outcome.refusal)
    elif not outcome.waits:
        yield from deliver_waiting(catalog, endpoint)


def deliver_waiting(catalog: Catalog, endpoint: Endpoint) -> Steps[bool]:
    """Deliver what waits on a locked endpoint whose target was just made. False when the conversation failed."""
    waiting = yield Statement(
        "delete from servicebroker.transmission_queue where conversation_handle = $1 "
        "returning message_sequence_number, message_type_name, message_body, is_end_of_dialog",
        (endpoint.conversation_handle,),
    )
    endpoint = yield from find_endpoint(endpoint.conversation_handle)
    far = yield from find_usages(catalog, endpoint.far_database_id, endpoint.far_contract_id)
    for number, message_type, body, is_end in sorted(waiting):
        if is_end:
            yield from _deliver_end(endpoint, number)
            break
        failure = rejection(endpoint, far, message_type, number, body)
        if failure:
            yield from fail_conversation(endpoint, failure)
            return False
        usage = far[message_type]
        parameters = (usage.message_type_id, usage.validation, body, enqueue.RANK_DATA, number)
        yield Statement(enqueue.deliver(endpoint.far_queue_id), (endpoint.conversation_handle, *parameters))
    return True


def _deliver_end(endpoint: Endpoint, number: int) -> Steps[None]:
    """The EndDialog of an initiator that ended before its target existed: the target is disconnected, and
    the initiator, which waited only for this, is gone."""
    yield Statement(
        enqueue.deliver(endpoint.far_queue_id),
        (endpoint.conversation_handle, names.END_DIALOG_ID, "E", None, enqueue.RANK_DATA, number),
    )
    yield Statement(
        "update servicebroker.conversation_endpoints set state = 'DI' where conversation_handle = $1",
        (endpoint.far_handle,),
    )
    yield from remove_endpoint(endpoint)
