-- How far Spark's streams have read, so that a checkpoint that is older than what was read is refused (decision 360).

-- Of each queue: the offset up to which messages have left it, and the batch that was planned last and not acknowledged.
create table servicebroker.stream_offsets (
    queue_id integer primary key references servicebroker.queues on delete cascade,
    acknowledged jsonb,
    planned_start jsonb,
    planned_end jsonb
);

-- Of each query and each of its sources: the last batch that its tasks have read, and a digest of the offset it ends at.
create table servicebroker.stream_batches (
    source text not null,  -- a digest of the broker database and the queues
    query uuid not null,
    batch bigint not null,
    end_offset text not null,
    noted_at timestamptz not null default clock_timestamp(),
    primary key (source, query)
);
create index stream_batches_ends on servicebroker.stream_batches (source, end_offset);
