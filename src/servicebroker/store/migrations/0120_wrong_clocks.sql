-- Machines whose clock is not the server's, as the processes there have found it (engine/diagnosis/wrong_clocks.py). A row for
-- each program and host, written again every ten seconds while it is so.
create table servicebroker.wrong_clocks (
    program text not null,
    host text not null,
    seconds_ahead integer not null,
    last_time timestamptz not null,
    primary key (program, host)
);
