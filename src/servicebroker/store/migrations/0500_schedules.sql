-- Schedules of workers (engine/conversation/schedules.py).
create table servicebroker.schedules (
    queue_id integer not null references servicebroker.queues on delete cascade,
    name text collate "C" not null,
    conversation_handle uuid not null unique,  -- its timer fires at the next time
    rule text not null,
    time_zone text not null,
    missed text not null,
    next_time timestamptz not null,
    primary key (queue_id, name)
);
