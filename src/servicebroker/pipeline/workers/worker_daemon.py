"""The process from which Spark forks its Python workers. It imports servicebroker's modules once for all workers.

Import only modules that start no thread, since threads do not survive a fork: not pyarrow, not deltalake.
"""

from __future__ import annotations

import importlib

from pyspark import daemon

for module in (
    "pyspark.worker",
    "pyspark.sql.worker.write_into_data_source",
    "servicebroker.pipeline.stream.reader",
    "servicebroker.pipeline.sending",
    "servicebroker.pipeline.writer",
    "servicebroker.pipeline.sinks.delta",
    "servicebroker.pipeline.sinks.warehouse",
):
    importlib.import_module(module)

if __name__ == "__main__":
    daemon.manager()
