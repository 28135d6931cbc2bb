"""The columns of the Spark source.

A row is a message. With the option `deliver=parts` a row is a part of the batch, which a task of the sink reads itself.
"""

COLUMNS = (
    "queue string, service_name string, service_contract_name string, message_type_name string, "
    "conversation_handle string, conversation_group_id string, message_sequence_number bigint, "
    "queuing_order bigint, priority smallint, validation string, message_body binary, "
    "message_enqueue_time timestamp"
)

PART = "part"
PART_COLUMNS = f"{PART} string"
