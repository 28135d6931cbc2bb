-- A queue that is watched for readers to start counts its RECEIVEs (store/queue.sql). monitor_version is drawn anew
-- whenever its monitor is to begin anew: at each change of the activation or of the status.
alter table servicebroker.queues
    add column notifies_activation boolean not null default false,  -- there are event notifications for QUEUE_ACTIVATION
    add column is_monitored boolean not null
        generated always as (is_activation_enabled or notifies_activation) stored,
    add column monitor_version bigint not null default 0;

-- a queue monitor is told of arrivals as a reader is, and is none
alter table servicebroker.waiting_readers add column is_monitor boolean not null default false;

-- written by the process that holds the lease of the queue (ACTIVATION in store/locks.py)
create unlogged table servicebroker.queue_monitors (
    queue_id integer primary key,
    state text not null,
    last_empty_rowset_time timestamptz,
    last_activated_time timestamptz,
    tasks_waiting integer not null
);

-- each row is written by the session of the task itself
create unlogged table servicebroker.activated_tasks (
    spid integer primary key,
    queue_id integer not null,
    procedure_name text not null,
    execute_as integer
);
