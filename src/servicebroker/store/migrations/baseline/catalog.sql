-- What applications define: broker databases with their message types, contracts, queues, services, priorities and
-- routes.
--
-- Rules that every table of definitions keeps:
--   * Ids come from object_ids, so that they are unique in the instance. Built-in objects have ids below 65536. Built-in
--     message types and contracts have the same ids in every database, so their primary keys begin with the database.
--   * Names of message types, contracts and services are compared byte by byte (collate "C"). Other names are compared
--     without case and keep their spelling: a unique index on lower(name).
--   * owner_id is a principal of the same database (security.sql); 1 is dbo.

create sequence servicebroker.object_ids start 65536;
-- Ids of the built-in queues and services of each database.
create sequence servicebroker.system_ids maxvalue 65535;
-- Values of the columns *_version. A client remembers a version with what it has read, and compares it later.
create sequence servicebroker.catalog_versions;

-- Broker databases.
create table servicebroker.databases (
    database_id integer generated always as identity primary key,
    name text not null,
    service_broker_guid uuid not null default gen_random_uuid(),
    is_broker_enabled boolean not null default true,
    create_date timestamptz not null default clock_timestamp(),
    is_honor_broker_priority_on boolean not null default false,
    routes_version bigint not null default nextval('servicebroker.catalog_versions'),  -- new when a route changes
    is_trustworthy_on boolean not null default false,    -- in other databases its users work as their logins
    is_read_only boolean not null default false,         -- READ_ONLY switches is_broker_enabled off
    broker_when_writable boolean not null default true   -- is_broker_enabled after READ_WRITE
);
create unique index databases_name on servicebroker.databases (lower(name));
-- Identifiers differ among the enabled databases only: a restored copy may stay, disabled.
create unique index databases_service_broker_guid
    on servicebroker.databases (service_broker_guid) where is_broker_enabled;

-- XML schema collections.
create table servicebroker.xml_schema_collections (
    xml_collection_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    schema_name text not null,
    name text not null,
    postgres_schema text not null,  -- the schema of PostgreSQL for queues of that schema
    version bigint not null default nextval('servicebroker.catalog_versions'),  -- new when a document changes
    create_date timestamptz not null default clock_timestamp(),
    modify_date timestamptz not null default clock_timestamp()
);
create unique index xml_schema_collections_name
    on servicebroker.xml_schema_collections (database_id, lower(schema_name), lower(name));

-- The documents of a collection.
create table servicebroker.xml_schemas (
    xml_collection_id integer not null references servicebroker.xml_schema_collections on delete cascade,
    number integer not null,
    target_namespace text collate "C" not null,  -- '' for none
    document text not null,
    primary key (xml_collection_id, number)
);

-- Message types. VALID_XML WITH SCHEMA COLLECTION has the validation X and a collection.
create table servicebroker.message_types (
    database_id integer not null references servicebroker.databases,
    message_type_id integer not null default nextval('servicebroker.object_ids'),
    name text collate "C" not null,
    validation "char" not null check (validation in ('N', 'E', 'X')),  -- NONE, EMPTY, WELL_FORMED_XML
    owner_id integer not null default 1,
    xml_collection_id integer references servicebroker.xml_schema_collections,
    constraint message_types_validation check (xml_collection_id is null or validation = 'X'),
    primary key (database_id, message_type_id),
    unique (database_id, name)
);

-- Contracts.
create table servicebroker.service_contracts (
    database_id integer not null references servicebroker.databases,
    service_contract_id integer not null default nextval('servicebroker.object_ids'),
    name text collate "C" not null,
    owner_id integer not null default 1,
    primary key (database_id, service_contract_id),
    unique (database_id, name)
);

-- The message types of a contract.
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

-- Queues. The messages of each lie in a table of its own, queue_<queue_id> (store/queue.sql).
create table servicebroker.queues (
    queue_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    schema_name text not null,
    name text not null,
    postgres_schema text not null,  -- schema and name of the view that shows the queue
    postgres_name text not null,
    is_receive_enabled boolean not null default true,
    is_enqueue_enabled boolean not null default true,
    create_date timestamptz not null default clock_timestamp(),
    -- New when something changes that a SEND into the queue relies on.
    catalog_version bigint not null default nextval('servicebroker.catalog_versions'),
    service_changes integer not null default 0,  -- counts changes that waiting readers must be told
    is_poison_message_handling_enabled boolean not null default true,  -- rollbacks switch the queue off
    is_retention_enabled boolean not null default false,
    keeps_retained boolean not null default false,  -- RETENTION is on, or was on and rows may be left
    owner_id integer not null default 1,
    activation_procedure text,
    max_readers smallint check (max_readers >= 0),
    execute_as_principal_id integer,  -- -2: OWNER
    is_activation_enabled boolean not null default false,
    modify_date timestamptz not null default clock_timestamp(),
    notifies_activation boolean not null default false,  -- an event notification for QUEUE_ACTIVATION exists
    is_monitored boolean not null
        generated always as (is_activation_enabled or notifies_activation) stored,  -- RECEIVEs are counted
    monitor_version bigint not null default 0,  -- new when activation or status changes: the monitor starts over
    held_until timestamptz,  -- RECEIVE looks for groups that failed_messages holds only before then
    schema_id integer not null default 0,  -- 1: dbo; 0: CREATE SCHEMA has not made the schema yet
    -- Fingerprint of the queue's objects when they were made (servicebroker.fingerprint); `check` skips objects that still
    -- have it. 0: not made yet; null: `check` compares their definitions each time.
    fingerprint bigint default 0,
    unique (postgres_schema, postgres_name)
);
create unique index queues_name on servicebroker.queues (database_id, lower(schema_name), lower(name));

-- Services.
create table servicebroker.services (
    service_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text collate "C" not null,
    queue_id integer not null references servicebroker.queues,
    owner_id integer not null default 1,
    unique (database_id, name)
);
create index services_name on servicebroker.services (name);
create index services_queue on servicebroker.services (queue_id);

-- The contracts on which a service is a target.
create table servicebroker.service_contract_usages (
    database_id integer not null,
    service_id integer not null references servicebroker.services on delete cascade,
    service_contract_id integer not null,
    primary key (service_id, service_contract_id),
    foreign key (database_id, service_contract_id) references servicebroker.service_contracts
);

-- Broker priorities. Null stands for ANY.
create table servicebroker.broker_priorities (
    priority_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text not null,
    service_contract_id integer,
    local_service_id integer references servicebroker.services,
    remote_service_name text collate "C",
    priority smallint not null check (priority between 1 and 10),
    foreign key (database_id, service_contract_id) references servicebroker.service_contracts
);
create unique index broker_priorities_name on servicebroker.broker_priorities (database_id, lower(name));
create unique index broker_priorities_criteria on servicebroker.broker_priorities
    (database_id, service_contract_id, local_service_id, remote_service_name) nulls not distinct;

-- Routes: the broker at which a service is reached.
create table servicebroker.routes (
    route_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text not null,
    remote_service_name text collate "C",  -- null: any
    broker_instance text,                  -- null: any
    lifetime timestamptz,                  -- the instant of expiry; null: never
    address text not null,
    mirror_address text,
    owner_id integer not null default 1
);
create unique index routes_name on servicebroker.routes (database_id, lower(name));

-- Requests to the dynamic routing service. A request is pending until the service has ended its conversation.
create table servicebroker.route_requests (
    database_id integer not null references servicebroker.databases,  -- whose routes lack it; msdb for what comes in
    service_name text not null collate "C",
    conversation_handle uuid not null,
    answered timestamptz,
    about text not null default 'Route' check (about in ('Route', 'RemoteServiceBinding')),
    was_useless boolean not null default false,  -- the last answer was no error, and yet brought none
    primary key (database_id, about, service_name)
);
