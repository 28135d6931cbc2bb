"""Columns of the Spark source: those of a message, and the one of a part of a queue for a task."""

COLUMNS = (
    "queue string, service_name string, service_contract_name string, message_type_name string, "
    "conversation_handle string, conversation_group_id string, message_sequence_number bigint, "
    "queuing_order bigint, priority smallint, validation string, message_body binary, "
    "message_enqueue_time timestamp"
)

PART = "part"
PARTS = f"{PART} string"
