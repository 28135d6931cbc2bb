-- The catalog, the conversations and what waits for delivery. One instance = one schema in one PostgreSQL database.

create table servicebroker.databases (
    database_id integer generated always as identity primary key,
    name text not null,
    service_broker_guid uuid not null unique default gen_random_uuid(),
    is_broker_enabled boolean not null default true,
    create_date timestamptz not null default clock_timestamp()
);
create unique index databases_name on servicebroker.databases (lower(name));

-- user-defined ids, unique in the instance; below 65536 lie the built-in objects that every database has
create sequence servicebroker.object_ids start 65536;

-- names of types, contracts and services are compared byte by byte
create table servicebroker.message_types (
    database_id integer not null references servicebroker.databases,
    message_type_id integer not null default nextval('servicebroker.object_ids'),
    name text collate "C" not null,
    validation "char" not null check (validation in ('N', 'E', 'X')),
    primary key (database_id, message_type_id),
    unique (database_id, name)
);

create table servicebroker.service_contracts (
    database_id integer not null references servicebroker.databases,
    service_contract_id integer not null default nextval('servicebroker.object_ids'),
    name text collate "C" not null,
    primary key (database_id, service_contract_id),
    unique (database_id, name)
);

create table servicebroker.service_contract_message_usages (
    database_id integer not null,
    service_contract_id integer not null,
    message_type_id integer not null,
    is_sent_by_initiator boolean not null,
    is_sent_by_target boolean not null,
    primary key (database_id, service_contract_id, message_type_id),
    foreign key (database_id, service_contract_id) references servicebroker.service_contracts,
    foreign key (database_id, message_type_id) references servicebroker.message_types
);

-- queues are compared without case, their spelling kept
create table servicebroker.queues (
    queue_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    schema_name text not null,
    name text not null,
    postgres_schema text not null,  -- where the view of the queue's own name stands
    postgres_name text not null,
    is_receive_enabled boolean not null default true,
    is_enqueue_enabled boolean not null default true,
    create_date timestamptz not null default clock_timestamp(),
    unique (postgres_schema, postgres_name)
);
create unique index queues_name on servicebroker.queues (database_id, lower(schema_name), lower(name));

create table servicebroker.services (
    service_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text collate "C" not null,
    queue_id integer not null references servicebroker.queues,
    unique (database_id, name)
);
create index services_name on servicebroker.services (name);
create index services_queue on servicebroker.services (queue_id);

create table servicebroker.service_contract_usages (
    database_id integer not null,
    service_id integer not null references servicebroker.services on delete cascade,
    service_contract_id integer not null,
    primary key (service_id, service_contract_id),
    foreign key (database_id, service_contract_id) references servicebroker.service_contracts
);

create table servicebroker.conversation_groups (
    conversation_group_id uuid primary key,
    service_id integer not null
);

-- One row per endpoint; a conversation inside the instance has two. SEND updates its own row only, and finds
-- there where to deliver (far_handle ... far_priority), kept true by whoever moves the far side. No index
-- covers a column that SEND updates, and pages keep room, so these updates stay HOT.
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
    lifetime timestamptz not null,              -- the instant of expiry
    dialog_timer timestamptz,                   -- when the timer fires
    security_timestamp timestamptz,             -- when a closed target endpoint may be removed
    far_service text collate "C" not null,
    far_broker_instance text,
    far_handle uuid,
    far_group_id uuid,
    far_queue_id integer,
    far_service_id integer,
    far_contract_id integer,
    far_priority smallint,
    send_sequence bigint not null default 0,    -- the next number to send
    last_stamp xid8 not null default '0'
) with (fillfactor = 60);
create unique index conversation_endpoints_conversation
    on servicebroker.conversation_endpoints (conversation_id, is_initiator);
create index conversation_endpoints_group on servicebroker.conversation_endpoints (conversation_group_id);
create index conversation_endpoints_timer
    on servicebroker.conversation_endpoints (queue_id, dialog_timer) where dialog_timer is not null;
create index conversation_endpoints_closed
    on servicebroker.conversation_endpoints (security_timestamp) where security_timestamp is not null;

-- Messages that are sent and not delivered. xact is the writer's own transaction id, never raised.
create table servicebroker.transmission_queue (
    conversation_handle uuid not null,
    message_sequence_number bigint not null,
    xact xid8 not null default pg_current_xact_id(),
    enqueue_time timestamptz not null default clock_timestamp(),
    message_type_name text not null,
    is_conversation_error boolean not null default false,
    is_end_of_dialog boolean not null default false,
    message_body bytea,
    transmission_status text not null default '',
    primary key (conversation_handle, message_sequence_number)
);

-- Readers that sleep in a RECEIVE with wait: a SEND notifies only where one is listed. A reader that died
-- leaves its row until the next reader of its process number, or the next open, sweeps it: one NOTIFY too many.
create unlogged table servicebroker.waiting_readers (
    queue_id integer not null,
    pid integer not null,
    primary key (queue_id, pid)
);
