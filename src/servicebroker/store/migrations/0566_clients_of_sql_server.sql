-- What serves SQL Server's clients, for status, doctor, metrics and views. `pid` is a session of the serving process;
-- rows of ended sessions do not count, and the next process deletes them.
create unlogged table servicebroker.tds_servers (
    pid integer primary key,
    address text not null,             -- where it listens
    has_own_certificate boolean not null,  -- it has made its certificate itself
    max_clients integer not null,
    since timestamptz not null default clock_timestamp()
);

-- The clients that have signed in.
create unlogged table servicebroker.tds_clients (
    pid integer not null,
    number integer not null,
    login text not null,
    host text not null,     -- as the client says; so are program and library
    program text not null,
    library text not null,
    address text not null,
    is_encrypted boolean not null,
    database_name text not null,
    backend integer,        -- its session of PostgreSQL; null while it is idle without one
    connect_time timestamptz not null default clock_timestamp(),
    primary key (pid, number)
);

-- Clients that were refused, by the kind of the reason (tds/refusals.py).
create unlogged table servicebroker.tds_refusals (
    pid integer not null,
    kind text not null,
    times bigint not null,
    last_time timestamptz not null,
    last_address text not null,
    last_login text not null,
    last_text text not null,
    primary key (pid, kind)
);
