-- The limits of all workers of a queue together, as the worker that used them last declared them, for status, doctor and
-- dashboard. The functions of store/verbs.sql write them.
alter table servicebroker.queue_rates rename to worker_limits;
alter table servicebroker.worker_limits rename constraint queue_rates_pkey to worker_limits_pkey;
alter table servicebroker.worker_limits rename constraint queue_rates_queue_id_fkey to worker_limits_queue_id_fkey;
alter table servicebroker.worker_limits
    alter column next_time drop not null,
    add column interval_s double precision,  -- seconds between two messages at the declared rate
    add column slots integer,                -- handlers at a time
    add column slots_time timestamptz;       -- when a worker last recorded `slots`, at most once an hour while they stay
