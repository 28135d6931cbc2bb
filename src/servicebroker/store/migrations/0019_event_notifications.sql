-- Event notifications on queues, each with the conversation that its messages go on (null until the first).
create table servicebroker.event_notifications (
    object_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    name text not null,
    queue_id integer not null references servicebroker.queues on delete cascade,
    events text[] not null,
    is_fan_in boolean not null,
    service_name text collate "C" not null,
    broker_instance text not null,
    owner_id integer not null,
    creator text not null,
    conversation_handle uuid,
    create_date timestamptz not null default clock_timestamp()
);
create unique index event_notifications_name on servicebroker.event_notifications (database_id, lower(name));
create index event_notifications_queue on servicebroker.event_notifications (queue_id);

-- queues that were switched off by themselves and whose alert has not gone out; at most one row for each
create table servicebroker.disabled_queues (
    queue_id integer primary key references servicebroker.queues on delete cascade,
    at timestamptz not null default clock_timestamp()
);
