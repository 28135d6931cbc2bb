-- What was refused between this instance and its peers, for each peer and reason once (engine/remote/refusals.py): connections
-- that were not let in, messages that were not taken. is_ours: this side has refused, else the peer has. The daemon adds to it
-- once a second, and keeps it small.
create table servicebroker.refusals (
    is_ours boolean not null,
    peer text not null,
    number integer not null,
    times bigint not null,
    first_time timestamptz not null,
    last_time timestamptz not null,
    last_text text not null,
    primary key (is_ours, peer, number)
);
