-- A conversation changes its state without a new entry in each index (decision 466). An UPDATE of a column that the
-- condition of an index names makes entries in all of them. This index names a column that changes only when the
-- conversation fails or is closed.

alter table servicebroker.conversation_endpoints
    add column can_expire boolean not null generated always as (state in ('SO', 'SI', 'CO', 'DI', 'DO')) stored;

drop index servicebroker.conversation_endpoints_lifetime;
create index conversation_endpoints_lifetime
    on servicebroker.conversation_endpoints (queue_id, lifetime) where can_expire;
