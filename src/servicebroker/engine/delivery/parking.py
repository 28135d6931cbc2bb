"""Parking: store a message that cannot be delivered now in the transmission queue, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import Endpoint
from servicebroker.engine.conversation.enqueue import WAKE_TRANSMITTER
from servicebroker.engine.conversation.shared_bodies import NEW_REFERENCE_SQL
from servicebroker.model import waiting
from servicebroker.store.sql_verbs import DELIVERY_CHANNEL
from servicebroker.store.statements import Statement, Steps


def park(
    endpoint: Endpoint,
    message_type: str,
    contents: Sequence[bytes | None],
    status: str,
    *,
    validation: str | None = None,
    is_end_of_dialog: bool = False,
    is_conversation_error: bool = False,
    body_id: int | None = None,
    until: datetime | None = None,
) -> Steps[int]:
    """Store messages of a locked endpoint in the transmission queue. Returns the first sequence number.

    Args:
        status: the reason, which GET_TRANSMISSION_STATUS returns.
        validation: the validation code of the message type under which the peer has accepted the bodies; None if they
            were not checked.
        body_id: the shared body that replaces the only element of `contents`.
        until: the time before which the messages are not delivered (delayed_messages.py).
    """
    more: tuple[object, ...] = ()
    if until is not None:
        columns, values = ", delayed_until, xact", ", $10, '0'::xid8"  # xact 0: no poll of a daemon finds these rows
        notify, more = f"pg_notify('{DELIVERY_CHANNEL}', '')", (until,)  # every maintenance thread reads the due time
        status = waiting.DELAYED
    else:
        columns, values, notify = "", "", WAKE_TRANSMITTER
        status = waiting.DELAYED if endpoint.is_delayed else status
    for portion in enqueue.split_batch(contents if body_id is None else [None]):
        yield Statement(
            "parking.park",
            "with sender as ("
            "update servicebroker.conversation_endpoints set send_sequence = send_sequence + $5, state = 'CO', "
            "far_queue_id = null where conversation_handle = $1 returning send_sequence - $5 as number), "
            "message as materialized ("
            "select number + place - 1 as number, "
            f"case when $9::bigint is null then body else {NEW_REFERENCE_SQL} end as body "
            "from sender, unnest($3::bytea[]) with ordinality as given (body, place)), "
            "reader as (insert into servicebroker.shared_body_readers (reader, body_id) "
            "select body, $9 from message where $9 is not null) "
            "insert into servicebroker.transmission_queue (conversation_handle, message_sequence_number, "
            "message_type_name, message_body, transmission_status, is_end_of_dialog, is_conversation_error, "
            f"validation, is_shared{columns}) "
            f"select $1, number, $2, body, $4, $6, $7, $8, $9 is not null{values} from message "
            f"returning {notify}",
            (
                endpoint.conversation_handle,
                message_type,
                portion,
                status,
                len(portion),
                is_end_of_dialog,
                is_conversation_error,
                validation,
                body_id,
                *more,
            ),
        )
    return endpoint.send_sequence
