"""Writers of a pipeline's tables: Delta, Iceberg and plain Parquet, each batch once.

**The problem.** After a crash Spark repeats a batch, even one that the table has. A table must have each message once,
although table and queue commit separately.

**The flow.** Tasks write data files that no table names yet (`warehouse.py`, `parquet.py`). At the end of the batch
`landing.py` compares the batch with the table's record, and hands the files to the table. The table takes them in one
commit, which also records query and batch (`tables.py`: `delta.py`, `iceberg.py`). Tables with a key
rewrite files that hold replaced rows (`row_replacement.py`). `evolution.py` changes columns when the rule has changed.

**The rules.**

* A batch that a table has recorded is not written again. An earlier batch is refused, since its checkpoint is old.
* Quarantine takes its rows before the tables of the rules.
* A table never names a file that is not durable yet.
* Only the environment and `storage.py` know credentials; no log and no error shows them.

Maintenance: `maintenance.py`. Reading without jars: `delta_reader.py`. Begin with `tables.py`, then `landing.py`.
"""
