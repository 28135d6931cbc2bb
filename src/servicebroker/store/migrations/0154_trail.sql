-- The life of conversations, where somebody has asked for it (engine/diagnosis/trail.py): written by triggers that are only
-- there while it is on (store/trail.sql).
create table servicebroker.trail_settings (
    is_on boolean not null,
    share integer not null,           -- of 10,000 conversations
    services text[] not null,         -- database.service; none: of all
    conversations uuid[] not null     -- their identifiers: followed whatever the share
);
insert into servicebroker.trail_settings values (false, 10000, '{}', '{}');

-- Partitions are dropped whole; what comes while nobody makes them lies in the last one.
create table servicebroker.trail (
    at timestamptz not null default clock_timestamp(),
    transaction_id bigint not null default pg_current_xact_id()::text::bigint,
    conversation_handle uuid not null,
    what "char" not null,             -- see engine/diagnosis/trail.py
    first_number bigint,              -- of a run of messages
    last_number bigint,
    messages integer,
    message_type_id integer,          -- null: of several types
    conversation_id uuid,
    detail text
) partition by range (at);
create index trail_conversation on servicebroker.trail (conversation_handle);
create index trail_begun on servicebroker.trail (conversation_id) where what = 'B';
create table servicebroker.trail_rest partition of servicebroker.trail default;
