"""The processes in which Spark asks our source for batches: one for each query, which holds the queue while it lives.

Spark lets such a process go without waiting for it, and leaves it alone when a query fails as it starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODULE = "python_streaming_source_runner"  # of PySpark, which such a process runs
_LOOK = 0.02  # seconds


def planners(spark: SparkSession) -> frozenset[int]:
    """Those of a session, whose Java is on this machine: numbers of processes."""
    found = _java(spark).current().descendants().toArray()
    return frozenset(one.pid() for one in found if _MODULE in one.info().commandLine().orElse(""))


def end_planners(spark: SparkSession, processes: frozenset[int], patience: float = 5.0) -> None:
    """Return when these have ended: by themselves, or after `patience` seconds by force."""
    give_up = time.monotonic() + patience
    while left := processes & planners(spark):
        if time.monotonic() > give_up:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK)


def _java(spark: SparkSession) -> Any:
    java: Any = spark._jvm
    return java.java.lang.ProcessHandle
