"""The transmission queue: messages that are sent but cannot be delivered yet, and why."""

from __future__ import annotations

from collections.abc import Sequence

from servicebroker.engine import enqueue
from servicebroker.engine.catalog import Catalog, find_usages
from servicebroker.engine.endpoints import Endpoint, find_endpoint, lock_endpoint, remove_endpoint
from servicebroker.engine.failure import fail_conversation
from servicebroker.engine.opening import open_target
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import validation_failure
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
    rows = yield Statement(
        "with sender as ("
        "update servicebroker.conversation_endpoints set send_sequence = send_sequence + $5, state = 'CO' "
        "where conversation_handle = $1 returning send_sequence - $5 as number), "
        "kept as (insert into servicebroker.transmission_queue (conversation_handle, message_sequence_number, "
        "message_type_name, message_body, transmission_status, is_end_of_dialog) "
        "select $1, number + place - 1, $2, body, $4, $6 "
        "from sender, unnest($3::bytea[]) with ordinality as message (body, place)) "
        "select number from sender",
        (
            endpoint.conversation_handle,
            message_type,
            list(contents),
            status,
            len(contents),
            is_end_of_dialog,
        ),
    )
    return int(rows[0][0])


def drop_waiting(endpoint: Endpoint) -> Statement:
    """Forget what was sent on this endpoint and not delivered."""
    return Statement(
        "delete from servicebroker.transmission_queue where conversation_handle = $1",
        (endpoint.conversation_handle,),
    )


def deliver_to_service(catalog: Catalog, service: str) -> Steps[int]:
    """Deliver what waits for a service of that name, conversation by conversation. Returns how many messages."""
    handles = yield Statement(
        "select e.conversation_handle from servicebroker.transmission_queue t "
        "join servicebroker.conversation_endpoints e using (conversation_handle) "
        "where e.far_service = $1 and t.message_sequence_number = 0 order by t.enqueue_time",
        (service,),
    )
    delivered = 0
    for (handle,) in handles:
        delivered += yield from _deliver(catalog, (yield from lock_endpoint(handle)))
    return delivered


def _deliver(catalog: Catalog, endpoint: Endpoint) -> Steps[int]:
    outcome = yield from open_target(endpoint)
    if outcome.waits:
        return 0
    waiting = yield Statement(
        "delete from servicebroker.transmission_queue where conversation_handle = $1 "
        "returning message_sequence_number, message_type_name, message_body, is_end_of_dialog",
        (endpoint.conversation_handle,),
    )
    if outcome.refusal:
        yield from fail_conversation(endpoint, outcome.refusal)
        return 0
    endpoint = yield from find_endpoint(endpoint.conversation_handle)
    usages = yield from find_usages(catalog, endpoint.far_database_id, endpoint.far_contract_id)
    for number, message_type, body, is_end in sorted(waiting):
        if is_end:
            yield from _deliver_end(endpoint, number)
            continue
        usage = usages.get(message_type)
        if usage is None or validation_failure(usage.validation, body):
            yield from fail_conversation(endpoint, BrokerError(8430) if usage else BrokerError(8498, message_type))
            return int(number)
        yield Statement(
            enqueue.deliver(endpoint.far_queue_id),
            (
                endpoint.conversation_handle,
                usage.message_type_id,
                usage.validation,
                body,
                enqueue.RANK_DATA,
                number,
            ),
        )
    return len(waiting)


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
