"""The tables that a pipeline writes: Delta, Iceberg and plain Parquet, each batch once.

**The problem.** Spark gives a batch again after a crash, also one that the table has taken. A table must have each
message once, although its commit and that of the queue are two.

**The flow.** Tasks write data files which no table names yet (`warehouse.py`, `parquet.py`). At the end of the batch
`landing.py` compares what the table has noted with the batch, and hands it the files. The table takes them in one
commit, which also notes query, batch and end offset (`tables.py`: `delta.py`, `iceberg.py`). Keyed tables write files
that hold replaced rows anew (`replacing.py`). `evolution.py` changes columns as the rule has changed.

**The rules.**

* A batch that a table has noted is not written again. One with another end offset is refused.
* Quarantine takes its rows before the tables of the rules.
* A table never names a file that is not durable yet.
* The environment and `storage.py` know credentials; no log and no error shows them.

Maintenance: `maintenance.py`. Reading without jars: `delta_reader.py`. Begin with `tables.py`, then `landing.py`.
"""
