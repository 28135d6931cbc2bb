-- The rate of all workers of a queue (store/verbs.sql). A crash of the server may forget it, so that taking a place writes no WAL.
create unlogged table servicebroker.queue_rates (
    queue_id integer primary key references servicebroker.queues on delete cascade,
    next_time timestamptz not null  -- from which the next message may be received
);
