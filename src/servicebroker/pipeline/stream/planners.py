"""Finds and ends planners: the processes in which Spark plans the batches of a query. A planner owns its queue.

Spark does not wait until a planner has ended. If a query fails during its start, Spark does not end its planner.
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
_POLL_INTERVAL_S = 0.02  # the time between two checks whether the processes have ended


def planners(spark: SparkSession) -> frozenset[int]:
    """Return the process ids of a session's planners. Java must run on this machine."""
    processes = _java(spark).current().descendants().toArray()
    return frozenset(process.pid() for process in processes if _MODULE in process.info().commandLine().orElse(""))


def end_planners(spark: SparkSession, processes: frozenset[int], timeout_s: float = 5.0) -> None:
    """Wait until planners have ended. After `timeout_s` seconds, kill them."""
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
