-- A key of the application names a conversation of a service and a principal: a second BEGIN DIALOG with it begins nothing.
-- begin_conversation in store/verbs.sql and store/fence.sql has other parameters, so that the old ones have to go.
create table servicebroker.idempotency_keys (
    service_id integer not null references servicebroker.services on delete cascade,
    principal_id integer not null,
    key text collate "C" not null,
    conversation_handle uuid not null,  -- it may have ended
    expires_at timestamptz not null,
    primary key (service_id, principal_id, key)
);
create index idempotency_keys_expiry on servicebroker.idempotency_keys (expires_at);

drop function if exists servicebroker.begin_conversation(
    integer, text, text, text, integer, text, uuid, uuid, boolean, integer[], boolean, uuid);
drop function if exists servicebroker_fence.begin_conversation(
    integer, text, text, text, integer, text, uuid, uuid, boolean, uuid);
