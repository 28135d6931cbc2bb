-- What the daemon has found out about the brokers that mirrored routes lead to. It is kept: an old primary that comes
-- back while the new one cannot be reached is known by its lower timeline.
create table servicebroker.mirrored_pairs (
    address text not null,
    mirror_address text not null,
    principal text,  -- its address; null: neither is known to be it
    system text not null,  -- the identifier of the PostgreSQL cluster
    timeline bigint not null,  -- the highest that was seen of it
    explanation text not null,
    since timestamptz not null,
    primary key (address, mirror_address)
);
