"""Writes batches into a pipeline's tables: Delta, Iceberg and plain Parquet, each batch once.

**The problem.** After a crash Spark repeats a batch, even one that the table has. A table must have each message once,
although table and queue commit separately.

**The flow.** Tasks write data files that no table names yet (`warehouse.py`, `parquet.py`). At the end of the batch
`target.py` checks whether the table already has the batch. If not, one commit adds the files and records query and
batch (`tables.py`, implemented by `delta.py` and `iceberg.py`). In a table with a key, the newest message of each key
replaces or deletes its row (`keyed_rows.py`), and files with such rows are rewritten (`row_replacement.py`).
`evolution.py` plans changes of columns when the rule has changed.

**The rules.**

* A batch that a table has recorded is not written again. An earlier batch is refused, since its checkpoint is old.
* Quarantine is written before the tables of the rules, and tombstones before the table whose rows they delete.
* A table never names a file that is not durable yet.
* Only the environment holds credentials, and only `storage.py` uses them. No log and no error contains them.

Maintenance: `maintenance.py`. Reading without jars: `delta_reader.py`. Begin with `tables.py`, then `target.py`.
"""
