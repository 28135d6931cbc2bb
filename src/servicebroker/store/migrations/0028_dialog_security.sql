-- How a conversation with another instance is secured: N not, A anonymously, F fully; null: not decided, or inside.
alter table servicebroker.conversation_endpoints add column security "char" check (security in ('N', 'A', 'F'));
update servicebroker.conversation_endpoints set security = 'N' where is_remote;

-- The session keys of secured conversations, encrypted by the master key of the database. The initiator makes the first
-- one, in full security the target the second one. exchange: what tells the peer of ours until it has acknowledged.
create table servicebroker.conversation_keys (
    conversation_handle uuid primary key references servicebroker.conversation_endpoints on delete cascade,
    principal_id integer not null,        -- whose certificate is used here, 0 for nobody's
    far_principal_id integer not null,
    first_key_id uuid not null,
    first_key bytea not null,
    second_key_id uuid,
    second_key bytea,
    exchange bytea
);
