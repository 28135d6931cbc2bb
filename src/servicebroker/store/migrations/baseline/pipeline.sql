-- The Spark writer: its batches, its conversations, and the messages that its tasks have staged.

-- The last batch of each query; of a batch job, under its sendId, the only one.
create table servicebroker.writers (
    writer text primary key,
    batch bigint not null,
    messages bigint not null,
    committed_at timestamptz not null default clock_timestamp()
);
create index writers_committed on servicebroker.writers (committed_at);

-- The conversations on which a query sends.
create table servicebroker.writer_conversations (
    conversation_handle uuid primary key,
    writer text not null,
    slot integer not null,
    sent bigint not null default 0,
    begun_at timestamptz not null,
    is_in_use boolean not null default true  -- false: its stream is ended, or its target has ended it
);
create unique index writer_conversations_in_use on servicebroker.writer_conversations (writer, slot) where is_in_use;
create index writer_conversations_retired on servicebroker.writer_conversations (begun_at) where not is_in_use;

-- Messages that tasks have written and no batch has sent yet. A row is a piece: messages of one conversation and one
-- type, in order. Unlogged: what a crash of the server takes away is written again with the batch.
create unlogged table servicebroker.writer_stage (
    attempt uuid not null,
    piece integer not null,
    writer text not null,
    slot integer not null,
    message_type_name text not null,
    messages integer not null,
    staged_at timestamptz not null default clock_timestamp(),
    bodies bytea[] not null,
    primary key (attempt, piece)
);
alter table servicebroker.writer_stage alter column bodies set storage external;
