"""The processes in which Spark plans batches of our source: one for each query, which owns the queue while it lives.

Spark lets such a process go without waiting for its end, and keeps it if a query fails while it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODULE = "python_streaming_source_runner"  # the module of PySpark that such a process runs
_POLL_INTERVAL_S = 0.02  # between two looks at the processes while they end


def planners(spark: SparkSession) -> frozenset[int]:
    """Return the process ids of a session's planners, if its Java runs on this machine."""
    processes = _java(spark).current().descendants().toArray()
    return frozenset(process.pid() for process in processes if _MODULE in process.info().commandLine().orElse(""))


def end_planners(spark: SparkSession, processes: frozenset[int], timeout_s: float = 5.0) -> None:
    """Wait until planners have ended. After `timeout_s` they are killed."""
    deadline = time.monotonic() + timeout_s
    while living := processes & planners(spark):
        if time.monotonic() > deadline:
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_INTERVAL_S)


def _java(spark: SparkSession) -> Any:
    java: Any = spark._jvm
    return java.java.lang.ProcessHandle
