"""Queues into a warehouse: a Spark source, tables that take each message once, and a writer that sends rows.

**The problem.** Spark repeats a batch after a crash, and processes die between two commits: that of a table and that of
the queue. Still each message lands once, and none is lost.

**The flow from a queue to a table.** `Run` (`run.py`) starts one query of Spark for each queue.

1. The process that plans (`stream/reader.py`, `stream/queue_stream.py`) owns the queue by a lock (`attachment.py`). It
   fixes the batch: a page of a window of transactions that have ended (`stream/frontier.py`). The offset is in Spark's
   log before anything is read.
2. Tasks read parts of the page by COPY (`stream/rows.py`) and decode bodies (`decoding`). They sort rows into bronze,
   the tables of the rules and quarantine (`sorting.py`), and write files (`sinks/warehouse.py`).
3. At the end of the batch each table takes its files in one commit, which also notes the batch (`sinks/landing.py`,
   `sinks/tables.py`). Quarantine is first.
4. When Spark asks for the next batch, the messages are deleted (`stream/acknowledge.py`).

**The rules.**

* The same offsets give the same rows at any time, and the same bytes give the same values.
* A table has each batch once: (query, batch) is noted in Delta's log (`sinks/delta.py`), in the properties of an
  Iceberg table (`sinks/iceberg.py`) or in the names of Parquet files (`sinks/landing.py`).
* Messages leave the queue only after the sink has them. A checkpoint that is older than what the queue has given is
  refused (`stream/stream_offsets.py`, `checkpoint.py`).
* A batch of the writer is sent once: its row is written in the transaction that sends (`sending.py`).
* Spark starts a process for each query: import what needs pyarrow or a driver where it is used.

**Where.** The file: `file.py`, `definition.py`. The source: `source.py`, `options.py`. A rule that changes:
`sinks/evolution.py`, `rebuild.py`. The writer: `writer.py`, `staging.py`. Where tables live: `sinks/storage.py`.
Registries: `schema_registry.py`. Begin with `stream/frontier.py`, then `stream/reader.py`.
"""
