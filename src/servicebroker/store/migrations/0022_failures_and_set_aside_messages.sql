-- Messages whose processing fails, as long as they are in their queue (docs/reference/rules.md#programmatic-poison-handling).
create table servicebroker.failed_messages (
    conversation_handle uuid primary key,
    queue_id integer not null,
    conversation_group_id uuid not null,
    priority smallint not null,
    message_sequence_number bigint not null,
    message_type_id integer not null,
    failures integer not null,
    first_failed_at timestamptz not null,
    last_failed_at timestamptz not null,
    first_error text not null,
    last_error text not null,
    held_until timestamptz  -- RECEIVE without WHERE leaves the group alone until then
);
create index failed_messages_group on servicebroker.failed_messages (conversation_group_id);
create index failed_messages_queue on servicebroker.failed_messages (queue_id);

-- until when at least one group of the queue may be held: RECEIVE looks for those only before then
alter table servicebroker.queues add column held_until timestamptz;

-- Messages that an operator is to look at; their conversation goes on.
create table servicebroker.set_aside_messages (
    set_aside_id bigint generated always as identity primary key,
    database_id integer not null references servicebroker.databases on delete cascade,
    queue_id integer not null,
    queue_name text not null,
    conversation_handle uuid not null,
    conversation_group_id uuid not null,
    message_sequence_number bigint not null,
    service_name text not null,
    service_contract_name text not null,
    message_type_name text not null,
    message_type_id integer not null,
    validation "char" not null,
    message_body bytea,
    message_enqueue_time timestamptz not null,
    far_service text,
    far_broker_instance text,
    failures integer not null,
    first_failed_at timestamptz not null,
    set_aside_at timestamptz not null,
    error text not null,
    traceback text not null
);
create index set_aside_messages_queue on servicebroker.set_aside_messages (queue_id);
