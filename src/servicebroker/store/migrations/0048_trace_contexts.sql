-- Where messages come from, for OpenTelemetry: beside the messages, so that a queue whose senders trace nothing holds
-- and reads nothing of it. 25 bytes: trace id, span id, flags. Unlogged: a crash loses traces, no message.
create unlogged table servicebroker.trace_contexts (
    conversation_id uuid not null,
    is_from_initiator boolean not null,
    message_sequence_number bigint not null,
    context bytea not null,
    stored_at timestamptz not null,
    primary key (conversation_id, is_from_initiator, message_sequence_number)
);
create index trace_contexts_age on servicebroker.trace_contexts (stored_at);
