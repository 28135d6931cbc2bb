-- Conversations and what is stored for them outside of queues: endpoints, the transmission queue, what arrives from
-- other instances, shared bodies, failures, recycled conversations.

-- Conversation groups.
create table servicebroker.conversation_groups (
    conversation_group_id uuid primary key,
    service_id integer not null
);

-- ---------------------------------------------------------------- endpoints

-- Endpoints; a conversation inside the instance has two. SEND updates only the sender's row, and finds the address of
-- the other side in its far_* columns. Each statement that moves one side updates those columns of the other.
-- SEND's updates stay HOT: no index covers a column that SEND updates, and fillfactor leaves room in the page.
create table servicebroker.conversation_endpoints (
    conversation_handle uuid primary key default gen_random_uuid(),
    conversation_id uuid not null default gen_random_uuid(),
    is_initiator boolean not null,
    database_id integer not null,
    service_id integer not null,
    service_contract_id integer not null,
    conversation_group_id uuid not null,
    queue_id integer not null,
    priority smallint not null default 5,
    state text not null,
    encryption boolean not null,
    lifetime timestamptz not null,           -- the instant of expiry
    dialog_timer timestamptz,                -- when the timer fires
    security_timestamp timestamptz,          -- when a closed endpoint may be removed
    far_service text collate "C" not null,
    far_broker_instance text,
    far_handle uuid,
    far_group_id uuid,
    far_queue_id integer,
    far_service_id integer,
    far_contract_id integer,
    far_priority smallint,
    send_sequence bigint not null default 0,  -- the next number to send
    last_stamp xid8 not null default '0',     -- the stamp of the last message, which the next one is not below
    receive_sequence bigint,                  -- the next number that the peer would have sent, when its row may be gone
    is_remote boolean not null default false,  -- the peer is, or may be, in another instance
    is_acknowledged boolean not null default false,  -- the peer has acknowledged a message, so its broker is known
    -- The broker instance of the route that was taken, until an acknowledgement names the real one. Another choice after
    -- a restart would let two instances take the same message.
    routed_broker text,
    security "char",     -- N not secured, A anonymously, F fully; null: not decided, or inside the instance
    -- For a conversation between two databases of the instance that a remote service binding secures: the users whose
    -- certificates stand for both sides, each in the database of its endpoint. At the target, far_principal_id is the
    -- user that the conversation acts as, 0 for public. Else null.
    principal_id integer,
    far_principal_id integer
) with (fillfactor = 60);
create unique index conversation_endpoints_conversation
    on servicebroker.conversation_endpoints (conversation_id, is_initiator);
create index conversation_endpoints_group on servicebroker.conversation_endpoints (conversation_group_id);
create index conversation_endpoints_timer
    on servicebroker.conversation_endpoints (queue_id, dialog_timer) where dialog_timer is not null;
create index conversation_endpoints_closed
    on servicebroker.conversation_endpoints (security_timestamp) where security_timestamp is not null;
-- Conversations whose lifetime may still run out.
create index conversation_endpoints_lifetime on servicebroker.conversation_endpoints (queue_id, lifetime)
    where state in ('SO', 'SI', 'CO', 'DI', 'DO');

-- Check `security` when it is written. PostgreSQL compiles a CHECK of the table for each UPDATE, so in each SEND; it
-- skips a trigger of one column. The trigger is AFTER, because a BEFORE trigger would lock the row first.
create function servicebroker.refuse_security() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise check_violation using message = format('a conversation is secured by N, A or F, not by %L', new.security);
end $$;
revoke execute on function servicebroker.refuse_security from public;
create trigger conversation_endpoints_security
    after insert or update of security on servicebroker.conversation_endpoints
    for each row when (new.security not in ('N', 'A', 'F')) execute function servicebroker.refuse_security();

-- Session keys of secured conversations, encrypted by the master key of the database. The initiator makes the first
-- key; in full security the target makes the second one.
create table servicebroker.conversation_keys (
    conversation_handle uuid primary key references servicebroker.conversation_endpoints on delete cascade,
    principal_id integer not null,  -- the user whose certificate is used here; 0: nobody's
    far_principal_id integer not null,
    first_key_id uuid not null,
    first_key bytea not null,
    second_key_id uuid,
    second_key bytea,
    exchange bytea  -- tells the peer our key; null after the peer has acknowledged it
);

-- ---------------------------------------------------------------- messages on their way

-- Messages that are sent and not delivered.
create table servicebroker.transmission_queue (
    conversation_handle uuid not null,
    message_sequence_number bigint not null,
    xact xid8 not null default pg_current_xact_id(),  -- the writer's own transaction, never raised
    enqueue_time timestamptz not null default clock_timestamp(),
    message_type_name text not null,
    is_conversation_error boolean not null default false,
    is_end_of_dialog boolean not null default false,
    message_body bytea,
    transmission_status text not null default '',
    validation "char",  -- the validation that the body has passed already; null: none yet
    is_shared boolean not null default false,  -- message_body is a reader of shared_body_readers
    -- Distinguishes the message from another one with its number, as a restored copy sends it (decision 180).
    token bytea default substr(uuid_send(gen_random_uuid()), 1, 8),
    primary key (conversation_handle, message_sequence_number)
);
-- A poll finds the messages that were committed since a snapshot by their writers.
create index transmission_queue_writer
    on servicebroker.transmission_queue (xact)
    include (conversation_handle, message_sequence_number, is_end_of_dialog, is_conversation_error);
-- Not compressed, so that fragments can be read from a body without the rest of it.
alter table servicebroker.transmission_queue alter column message_body set storage external;

-- Progress of the messages from a peer in another instance. Not in the endpoint's row, because a transaction that
-- sends holds that row as long as it lasts.
create table servicebroker.arrivals (
    conversation_handle uuid primary key references servicebroker.conversation_endpoints on delete cascade,
    receive_sequence bigint not null default 0,  -- all messages below have arrived
    last_stamp xid8 not null default '0',
    failure_code integer,  -- the error that is sent again to a peer that has not received it
    failure_text text,
    token bytea            -- of the last message that has arrived in order
) with (fillfactor = 50);

-- Messages that have arrived and are not in their queue: fragments, messages ahead of their turn, and messages that
-- came while the queue was off (complete, below receive_sequence).
create table servicebroker.arrived_fragments (
    conversation_handle uuid not null references servicebroker.conversation_endpoints on delete cascade,
    message_sequence_number bigint not null,
    fragment integer not null,
    fragments integer not null,
    message_type_name text not null,
    content smallint not null,  -- 0 message, 1 EndDialog, 2 Error
    enqueue_time timestamptz not null default clock_timestamp(),
    message_body bytea,
    token bytea,
    primary key (conversation_handle, message_sequence_number, fragment)
);

-- OpenTelemetry contexts of messages. A table of its own, so that a queue without traces stores and reads nothing of
-- them. Unlogged: a crash loses traces, no message.
create unlogged table servicebroker.trace_contexts (
    conversation_id uuid not null,
    is_from_initiator boolean not null,
    message_sequence_number bigint not null,
    context bytea not null,  -- 25 bytes: trace id, span id, flags
    stored_at timestamptz not null,
    primary key (conversation_id, is_from_initiator, message_sequence_number)
);
create index trace_contexts_age on servicebroker.trace_contexts (stored_at);

-- ---------------------------------------------------------------- shared bodies

-- The body of a multicast, stored once. A message with is_shared has the key of its reader in message_body.
create table servicebroker.shared_bodies (
    body_id bigint generated always as identity primary key,
    body bytea not null
);

-- Readers: a row for each message that refers to a body, in whatever table the message is. No counter is updated, so
-- readers of different conversations never wait for each other.
create table servicebroker.shared_body_readers (
    reader bytea primary key,  -- 16 random bytes
    body_id bigint not null
);
create index shared_body_readers_body on servicebroker.shared_body_readers (body_id);

-- Remove a body with its last reader. Two last readers that are deleted at the same time do not see each other: the
-- upkeep removes that body later (remove_unread_bodies).
create function servicebroker.remove_unread_body() returns trigger language plpgsql as $$
begin
    delete from servicebroker.shared_bodies b
     where b.body_id = old.body_id
       and not exists (select from servicebroker.shared_body_readers r where r.body_id = old.body_id);
    return null;
end $$;
create trigger remove_unread_body after delete on servicebroker.shared_body_readers
    for each row execute function servicebroker.remove_unread_body();

-- Delete a reader and return the body.
create function servicebroker.take_shared_body(reader bytea) returns bytea language sql as $$
    with gone as (delete from servicebroker.shared_body_readers r where r.reader = $1 returning r.body_id)
    select b.body from servicebroker.shared_bodies b join gone using (body_id);
$$;

-- ---------------------------------------------------------------- failures

-- Messages whose processing has failed, as long as they are in their queue
-- (docs/reference/rules.md#programmatic-poison-handling).
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
    held_until timestamptz  -- RECEIVE without WHERE skips the group until then
);
create index failed_messages_group on servicebroker.failed_messages (conversation_group_id);
create index failed_messages_queue on servicebroker.failed_messages (queue_id);

-- Messages in quarantine, for an operator; their conversations go on.
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

-- ---------------------------------------------------------------- recycled conversations

-- Conversations that many senders use one after the other until each is ended
-- (docs/reference/rules.md#recycled-conversations). A sender holds its row until its transaction ends.
create table servicebroker.session_conversations (
    database_id integer not null references servicebroker.databases on delete cascade,
    from_service text collate "C" not null,
    to_service text collate "C" not null,
    service_contract_name text collate "C" not null,
    session text collate "C" not null,
    conversation_handle uuid unique,  -- null until it has begun
    sent bigint not null,
    end_of_stream text collate "C" not null,  -- the message type that tells the target of the end
    primary key (database_id, from_service, to_service, service_contract_name, session)
) with (fillfactor = 60);

-- Messages that came back on such conversations and need an answer. The transaction that answers locks their rows
-- first.
create table servicebroker.session_answers (
    answer_id bigint generated always as identity primary key,
    database_id integer not null references servicebroker.databases on delete cascade,
    from_service text collate "C" not null,
    conversation_handle uuid not null,
    message_type_id integer not null,
    message_body bytea
);

-- Errors that ended such conversations: the last thousand.
create table servicebroker.session_errors (
    error_id bigint generated always as identity primary key,
    database_id integer not null references servicebroker.databases on delete cascade,
    from_service text collate "C" not null,
    conversation_handle uuid not null,
    code integer not null,
    description text not null,
    received_at timestamptz not null
);
