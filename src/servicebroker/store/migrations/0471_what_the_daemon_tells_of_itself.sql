-- What the daemon tells of itself while it serves: where it listens, and what it fails at; pid is the daemon's session.
create unlogged table servicebroker.daemon_reports (
    pid integer not null,
    subject text primary key,
    report text not null,
    since timestamptz not null
);
