"""The process that Spark forks its Python workers from. It has read our modules; else each worker would read them anew.

Only what starts no thread is imported here, since threads do not survive a fork: not pyarrow, not deltalake.
"""

from __future__ import annotations

import importlib

from pyspark import daemon

for name in (
    "pyspark.worker",
    "pyspark.sql.worker.write_into_data_source",
    "servicebroker.pipeline.stream.reader",
    "servicebroker.pipeline.sending",
    "servicebroker.pipeline.writer",
    "servicebroker.pipeline.sinks.delta",
    "servicebroker.pipeline.sinks.warehouse",
):
    importlib.import_module(name)

if __name__ == "__main__":
    daemon.manager()
