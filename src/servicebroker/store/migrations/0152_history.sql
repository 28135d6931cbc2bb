-- What happened in the last hour, day and month (engine/diagnosis/history.py). The background of an instance and its daemon
-- take a sample every ten seconds, whichever comes first, and remove what is too old for its step.
create table servicebroker.history_samples (
    slot bigint primary key,      -- ten seconds since 1970; who inserts it takes the sample
    at timestamptz not null,
    step integer not null         -- seconds: 10, 60 or 600, the longest that a round number of has passed with it
);

-- Of each queue that has changed since its last row of this step or a longer one. queue_id 0 is the transmission queue.
create table servicebroker.history (
    queue_id integer not null,
    at timestamptz not null,
    step integer not null,
    arrived bigint not null,      -- messages since PostgreSQL has counted
    departed bigint not null,
    messages bigint not null,     -- that are there, as PostgreSQL's statistics say it
    peak bigint not null,         -- the most that were there since the last row of this step
    primary key (queue_id, at)
);
create index history_age on servicebroker.history (at, step);
