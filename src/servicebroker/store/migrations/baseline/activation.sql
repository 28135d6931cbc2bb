-- Activation and event notifications.

-- Queue monitors. The process that holds the lease of the queue writes its row (ACTIVATION in store/locks.py).
create unlogged table servicebroker.queue_monitors (
    queue_id integer primary key,
    state text not null,
    last_empty_rowset_time timestamptz,
    last_activated_time timestamptz,
    tasks_waiting integer not null
);

-- Activated tasks. The session of each task writes its row.
create unlogged table servicebroker.activated_tasks (
    spid integer primary key,
    queue_id integer not null,
    procedure_name text not null,
    execute_as integer
);

-- Event notifications on a queue, on a database (queue_id is null) or on the server (is_of_server). Names are unique in
-- each of those.
create table servicebroker.event_notifications (
    object_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text not null,
    queue_id integer references servicebroker.queues on delete cascade,
    events text[] not null,
    is_fan_in boolean not null,
    service_name text collate "C" not null,
    broker_instance text not null,
    owner_id integer not null,
    creator text not null,
    conversation_handle uuid,  -- carries its messages; null until the first
    create_date timestamptz not null default clock_timestamp(),
    is_of_server boolean not null default false
);
create unique index event_notifications_name on servicebroker.event_notifications (queue_id, lower(name));
create unique index event_notifications_of_database on servicebroker.event_notifications (database_id, lower(name))
    where queue_id is null and not is_of_server;
create unique index event_notifications_of_server on servicebroker.event_notifications (lower(name)) where is_of_server;

-- Queues that poison messages have switched off, and whose notification has not been sent.
create table servicebroker.disabled_queues (
    queue_id integer primary key references servicebroker.queues on delete cascade,
    at timestamptz not null default clock_timestamp()
);

-- Events of queues caused by a role that may not post them: an open instance of the owner posts them.
create table servicebroker.events_to_post (
    queue_id integer not null references servicebroker.queues on delete cascade,
    event text not null,
    primary key (queue_id, event)
);
