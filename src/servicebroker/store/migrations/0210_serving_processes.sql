-- What the daemon tells of the processes that run its rounds; written while it holds the lease of the instance. pid is its
-- session's, replaced how often another process has taken the place of one, last_time and ending are of the last of those.
create unlogged table servicebroker.serving_processes (
    pid integer not null,
    number integer primary key,
    process_id integer not null,
    memory bigint,  -- bytes
    replaced integer not null,
    last_time timestamptz,
    ending text
);
