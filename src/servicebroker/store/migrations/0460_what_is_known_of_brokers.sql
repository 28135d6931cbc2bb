-- What is known of a broker that has signed by a certificate of this database (decision 460): what it has said that it
-- can, and the latest time that its clock showed when that was ahead. A forwarder can keep both kinds of frames: what was
-- sealed before the broker had the capability, and what is dated ahead.

create table servicebroker.known_brokers (
    certificate_id integer not null references servicebroker.certificates on delete cascade,
    broker uuid not null,
    capabilities text[] not null,
    ahead_until bigint not null,  -- seconds since 1970, as on the wire
    primary key (certificate_id, broker)
);
