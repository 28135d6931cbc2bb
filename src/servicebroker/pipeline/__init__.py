"""Moves messages between queues and Spark: a source, sinks that write each message once into tables, and a writer.

**The problem.** Spark repeats a batch after a crash, and a process may die between two commits: that of a table and
that of the queue. Still each message must be written once, and none may be lost.

**The flow from a queue to a table.** `Run` (`run.py`) starts one Spark query for each queue.

1. One process plans the batches (`stream/reader.py`, `stream/queue_stream.py`) and owns the queue by a lock
   (`queue_lease.py`). A batch is a page of a window of ended transactions (`stream/frontier.py`). Spark logs the
   batch's offset before anything is read.
2. Tasks read parts of the page by COPY (`stream/rows.py`) and decode bodies (`decoding`). They sort rows into bronze
   (the raw table), the tables of the rules, and quarantine, for unreadable messages (`sorting.py`). They write files
   (`sinks/warehouse.py`).
3. At the end of the batch each table takes its files in one commit, which also records the batch (`sinks/target.py`,
   `sinks/tables.py`). Quarantine is committed first. Messages that delete rows: `deletes.py`.
4. When Spark asks for the next batch, the messages are deleted (`stream/acknowledgement.py`).

**The rules.**

* The same offsets give the same rows at any time, and the same bytes give the same values.
* A table has each batch once. (query, batch) is recorded in Delta's log (`sinks/delta.py`), in the properties of an
  Iceberg table (`sinks/iceberg.py`), or in the names of Parquet files (`sinks/target.py`).
* Messages leave the queue only after the sink has them. A checkpoint older than the acknowledged offset is refused
  (`stream/stream_offsets.py`, `checkpoint.py`).
* A batch of the writer is sent once: its record is written in the transaction that sends (`sending.py`).
* Spark starts a process for each query (`workers`): import pyarrow and drivers only where they are used.

**Subjects.** The pipeline file: `file.py`, `definition.py`. The source: `source.py`, `options.py`. A changed rule:
`sinks/evolution.py`, `rebuild.py`. The writer: `writer.py`, `staging.py`. Storage of tables: `sinks/storage.py`. Schema
registries: `schema_registry.py`. Begin with `stream/frontier.py`, then `stream/reader.py`.
"""
