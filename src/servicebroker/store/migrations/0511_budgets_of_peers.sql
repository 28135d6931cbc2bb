-- What single owners of certificates may use instead of the default budget (protocol/budgets.py).
create table servicebroker.peer_budgets (
    owner text not null,
    resource text not null,  -- a field of `Budget`
    amount bigint not null check (amount > 0),
    primary key (owner, resource)
);

-- When a target was made before its first message was whole; null for all others, which costs nothing.
alter table servicebroker.arrivals add column opened_at timestamptz;
create index arrivals_openings on servicebroker.arrivals (opened_at) where opened_at is not null;
