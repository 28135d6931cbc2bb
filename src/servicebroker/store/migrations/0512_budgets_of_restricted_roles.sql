-- What a restricted role may use (servicebroker rights budget); null: no limit.
alter table servicebroker.fenced_roles
    add column max_conversations bigint check (max_conversations > 0),
    add column max_messages bigint check (max_messages > 0),
    add column max_bytes bigint check (max_bytes > 0);

-- The conversations that a role with a limit for them has begun.
create table servicebroker.conversations_of_roles (
    role_key uuid not null references servicebroker.fenced_roles (key) on delete cascade,
    conversation_handle uuid not null,
    primary key (role_key, conversation_handle)
);

drop function if exists servicebroker.caller(uuid, integer);  -- it says more now
