"""The columns of the Spark source: for rows that are messages, and for rows that stand for parts of a queue."""

COLUMNS = (
    "queue string, service_name string, service_contract_name string, message_type_name string, "
    "conversation_handle string, conversation_group_id string, message_sequence_number bigint, "
    "queuing_order bigint, priority smallint, validation string, message_body binary, "
    "message_enqueue_time timestamp"
)

PART = "part"
PARTS = f"{PART} string"
