"""RETENTION: the queue keeps received and sent messages until their conversation ends.

The rules: docs/reference/rules.md#retention. The rows are in the table retained_N, N being the queue id. If the option
is on, RECEIVE (`store/queue.sql`) and SEND (`retain_sent`) write them; END deletes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import Endpoint
from servicebroker.engine.conversation.shared_bodies import NEW_REFERENCE_SQL, purge
from servicebroker.store.queue import queue_functions
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_COLUMNS = (
    "status, priority, conversation_group_id, conversation_handle, message_sequence_number, service_id, "
    "service_contract_id, message_type_id, validation, message_enqueue_time, is_shared, message_body"
)


def set_retention(queue_id: int, retention: bool) -> Steps[None]:
    """ALTER QUEUE WITH RETENTION = ON | OFF. It affects messages received and sent from now on."""
    yield SQL("set_retention", (queue_id, retention))
    yield queue_functions(queue_id, retention)


def retain_sent(
    endpoint: Endpoint, message_type: str, first: int, contents: Sequence[bytes | None], body_id: int | None
) -> Steps[None]:
    """Copy messages that a locked endpoint has sent into the retained ones of its own queue, with status 3 (sent).

    `first` is the sequence number of the first message. `body_id` is the shared body that replaces the only element of
    `contents`.
    """
    queue = f"servicebroker.retained_{endpoint.queue_id}"
    for portion in enqueue.split_batch(contents if body_id is None else [None]):
        yield Statement(
            "retention.retain_sent",
            f"with copied as (insert into {queue} (status, priority, conversation_group_id, conversation_handle, "
            "message_sequence_number, service_id, service_contract_id, message_type_id, validation, is_shared, "
            "message_body) "
            "select 3, e.priority, e.conversation_group_id, e.conversation_handle, $3 + place - 1, e.service_id, "
            "e.service_contract_id, t.message_type_id, t.validation, $5::bigint is not null, "
            f"case when $5 is null then body else {NEW_REFERENCE_SQL} end "
            "from servicebroker.conversation_endpoints e "
            "join servicebroker.message_types t on t.database_id = e.database_id and t.name = $2 "
            "cross join unnest($4::bytea[]) with ordinality as message (body, place) "
            "where e.conversation_handle = $1 order by place returning is_shared, message_body) "
            "insert into servicebroker.shared_body_readers (reader, body_id) "
            "select message_body, $5 from copied where is_shared",
            (endpoint.conversation_handle, message_type, first, portion, body_id),
        )
        first += len(portion)


def purge_queue(queue_id: int, condition: str, *parameters: object) -> Steps[None]:
    """Delete unreceived and retained messages.

    Unreceived ones first: this waits for transactions that receive them, which may be writing retained ones.
    """
    for table in ("queue", "retained"):
        yield purge(f"{table}_{queue_id}", condition, *parameters)


def move_to_group(endpoint: Endpoint, group: UUID) -> Statement:
    """Move the retained messages of a conversation into another group."""
    return Statement(
        "retention.move_to_group",
        f"update servicebroker.retained_{endpoint.queue_id} set conversation_group_id = $2 "
        "where conversation_handle = $1",
        (endpoint.conversation_handle, group),
    )


def move_to_queue(service_id: int, old: int, new: int) -> Steps[None]:
    """Move the retained messages of a service to another queue, whatever its option RETENTION."""
    yield Statement(
        "retention.move_to_queue.insert_retained",
        f"with moved as (delete from servicebroker.retained_{old} where service_id = $1 returning *) "
        f"insert into servicebroker.retained_{new} ({_COLUMNS}) select {_COLUMNS} from moved order by queuing_order",
        (service_id,),
    )
    yield SQL("move_to_queue.update_queues", (old, new))
