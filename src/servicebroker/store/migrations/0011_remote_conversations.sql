-- Conversations with other instances.

-- who this instance is to others; a copy of it must get another one
create table servicebroker.instance (instance_id uuid not null default gen_random_uuid());
create unique index instance_once on servicebroker.instance ((true));
insert into servicebroker.instance default values;

-- the peer is in another instance, or may be: something was, or is about to be, sent there
alter table servicebroker.conversation_endpoints add column is_remote boolean not null default false;
-- and it has acknowledged a message: from then on the broker that has it is known, and not asked to open it
alter table servicebroker.conversation_endpoints add column is_acknowledged boolean not null default false;

-- How far the peer's messages have come: all below receive_sequence. Not in the endpoint's row, which a transaction
-- that sends holds as long as it lasts. failure_... is what the peer is told again when it has not heard.
create table servicebroker.arrivals (
    conversation_handle uuid primary key references servicebroker.conversation_endpoints on delete cascade,
    receive_sequence bigint not null default 0,
    last_stamp xid8 not null default '0',
    failure_code integer,
    failure_text text
) with (fillfactor = 50);

-- What has arrived and is not in its queue: fragments, what came too early, and what came while the queue was off
-- (whole, below receive_sequence). content is 0 for a message, 1 for an EndDialog, 2 for an Error.
create table servicebroker.arrived_fragments (
    conversation_handle uuid not null references servicebroker.conversation_endpoints on delete cascade,
    message_sequence_number bigint not null,
    fragment integer not null,
    fragments integer not null,
    message_type_name text not null,
    content smallint not null,
    enqueue_time timestamptz not null default clock_timestamp(),
    message_body bytea,
    primary key (conversation_handle, message_sequence_number, fragment)
);

-- what was committed since a snapshot is found by its writer
create index transmission_queue_writer
    on servicebroker.transmission_queue (xact)
    include (conversation_handle, message_sequence_number, is_end_of_dialog, is_conversation_error);
-- fragments are cut out of a body without reading all of it
alter table servicebroker.transmission_queue alter column message_body set storage external;
