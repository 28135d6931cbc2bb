"""A pipeline that runs: a query of Spark for each of its queues."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.frontier import Frontier
from servicebroker.pipeline.landing import target
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.spark_session import register_formats, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STARTS = 5  # of one query
# Spark gives the process that plans a query ten seconds to start, and no setting changes that.
_STARTED_TOO_SLOWLY = "Python worker failed to connect back"


@dataclass
class QueueRun:
    """The query of one queue, and what it has told so far.

    Attributes:
        start: starts the query where it has stopped.
        batches, messages: that have landed since it was started.
        behind: what the source says of how far behind it is (`Attachment.progress`).
    """

    queue: QueueRule
    query: StreamingQuery
    start: Callable[[], StreamingQuery]
    batches: int = 0
    messages: int = 0
    behind: dict[str, Any] = field(default_factory=dict)
    _seen: int = -1
    _last: dict[str, Any] | None = None
    _starts: int = 1

    def update(self) -> None:
        """Take in what Spark has reported since the last look."""
        for progress in self.query.recentProgress:
            told = json.loads(progress.json)
            (source,) = told["sources"]
            self.behind = source.get("latestOffset") or self.behind
            self.messages = self.behind.get("messagesRead", 0)
            self._last = source.get("endOffset") or self._last
            if told["batchId"] > self._seen and told["numInputRows"]:
                self._seen = told["batchId"]
                self.batches += 1

    def has_ended(self) -> bool:
        """Whether its query has come to its end. One for which this machine was too busy at its start gets another.

        Raises:
            InstanceError: what broke the query, with the innermost reason.
        """
        from servicebroker.pipeline.failed_query import reason

        is_active = self.query.isActive  # asked first: a query that breaks in between is seen at the next look
        problem = self.query.exception()
        if problem is None:
            return not is_active
        if _STARTED_TOO_SLOWLY not in str(problem) or self._starts == STARTS:
            raise InstanceError(f"The queue '{self.queue.label}' is not read any more: {reason(problem)}")
        self._starts += 1
        self.query = self.start()
        return False

    def acknowledge_last(self) -> None:
        """A query that has ended leaves its last batch in the queue: Spark acknowledges one with the next."""
        if not self._last:
            return
        options = source_options(self.queue.source_options())
        attached = Attachment.open(options)
        try:
            attached.claim(options.claim_timeout)
            attached.acknowledge(Frontier.from_json(self._last), options.end_of_stream)
        finally:
            attached.close()


@contextmanager
def running(pipeline: Pipeline, *, once: bool, master: str | None = None) -> Iterator[list[QueueRun]]:
    """The pipeline's queries, started: with `once` they end when they have read what was there. Stopped at the end.

    Raises:
        InstanceError: Spark does not start, a queue cannot be found, or a table is another one.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for table in pipeline.table_names():
        target(pipeline, table).ensure()
    for queue in pipeline.queues:  # what cannot be found is said before Java has started
        Attachment.open(source_options(queue.source_options())).close()
    spark = spark_session(f"servicebroker pipeline {pipeline.name}", master=master)
    runs: list[QueueRun] = []
    try:
        for queue in pipeline.queues:
            start = partial(_start, spark, pipeline, queue, once=once)
            runs.append(QueueRun(queue, start(), start))
        yield runs
    finally:
        with contextlib.suppress(PySparkException, Py4JError):  # Ctrl-C may have broken the connection to Java
            for run in runs:
                run.query.stop()
        with contextlib.suppress(PySparkException, Py4JError):
            spark.stop()


def _start(spark: SparkSession, pipeline: Pipeline, queue: QueueRule, *, once: bool) -> StreamingQuery:
    from pyspark.errors import PySparkException

    from servicebroker.pipeline.failed_query import reason

    register_formats(spark)  # one for each query
    try:
        source = spark.readStream.format("servicebroker").options(**queue.source_options(), deliver="parts")
        sink = (
            source.load()
            .writeStream.format("servicebroker_warehouse")
            .option("pipeline", pipeline.to_text())
            .option("queue", queue.label)
            .option("checkpointLocation", str(pipeline.checkpoint(queue)))
            .queryName(f"{pipeline.name}: {queue.label}")
        )
        if once:
            return sink.trigger(availableNow=True).start()
        return sink.trigger(processingTime=f"{round(pipeline.trigger_seconds * 1000)} milliseconds").start()
    except PySparkException as problem:
        raise InstanceError(f"The queue '{queue.label}' cannot be read: {reason(problem)}") from None
