-- What tells a message for another instance from every other one of its number (decision 180). Messages that wait already
-- have none, and are compared with nothing.
alter table servicebroker.transmission_queue add column token bytea;
alter table servicebroker.transmission_queue
    alter column token set default substr(uuid_send(gen_random_uuid()), 1, 8);

-- of the last message that has arrived in order
alter table servicebroker.arrivals add column token bytea;
alter table servicebroker.arrived_fragments add column token bytea;

-- Which databases have turned out to be older than those of their conversations' peers, or these than ours: for doctor.
create table servicebroker.old_copies (
    own_broker uuid not null,
    far_broker text not null,
    is_here boolean not null,  -- our database is the one that was restored
    far_service text not null,
    times bigint not null,
    last_time timestamptz not null,
    last_detail text not null,
    primary key (own_broker, far_broker, is_here)
);
