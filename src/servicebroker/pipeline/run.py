"""A pipeline that runs: a query of Spark for each of its queues, of which one may fail while the others go on."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from servicebroker.model.errors import InstanceError, Unreachable
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.checkpoint import Checkpoints
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.last_run import LastRun
from servicebroker.pipeline.lineage import lineage
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.quarantine_counts import Counts, check_limits, forget, limits_of, place, read_noted
from servicebroker.pipeline.queue_run import QueueRun, Started, State
from servicebroker.pipeline.sinks.landing import target
from servicebroker.pipeline.spark_session import how_java_ended, is_running, register_formats, spark_session
from servicebroker.pipeline.stream.planners import end_planners, planners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK = 0.3  # seconds between looks at the queries
# Spark gives the process that plans a query ten seconds to start, and no setting changes that: one starts at a time
_PLANNED = 30.0  # seconds until the next one starts anyway
_FREE = 5  # seconds that a queue has to be free at the end

_log = logging.getLogger("servicebroker.pipeline")


@dataclass
class Run:
    """The queries of a pipeline. Whoever has it looks, again and again, until it is over.

    Attributes:
        limits: of message types: messages that may go into quarantine.
        fails_on_quarantine: none may.
        quarantine: name of the table.
    """

    queues: list[QueueRun]
    limits: Mapping[str, int] = field(default_factory=dict)
    fails_on_quarantine: bool = False
    quarantine: str = "quarantine"

    @property
    def is_over(self) -> bool:
        """No query runs or will run any more."""
        return all(one.is_over for one in self.queues)

    def look(self) -> None:
        """Take in what Spark has reported, and start a query that is to be started.

        Raises:
            InstanceError: Java has ended, and all queries with it.
            TooManyQuarantined: of queries that go on: more messages went into quarantine than may.
        """
        from py4j.protocol import Py4JError

        try:
            for one in self.queues:
                one.look()
            due = next((one for one in self.queues if one.is_due), None)
            if due is not None:
                due.begin()
        except (Py4JError, OSError) as problem:
            raise InstanceError(
                f"Java, in which Spark runs, {how_java_ended(problem)}. Nothing is lost: run the same command again "
                "and it goes on from there."
            ) from problem
        if not all(one.once for one in self.queues):
            self.check_quarantine()

    def wait(self) -> None:
        """Look until it is over.

        Raises:
            InstanceError: Java has ended, or a queue is not read any more.
            TooManyQuarantined: more messages went into quarantine than may.
        """
        while not self.is_over:
            self.look()
            time.sleep(LOOK)
        self.check()

    def check(self) -> None:
        """Tell which queues are not read any more, then whether too much is in quarantine.

        Raises:
            InstanceError: some are not; with the reason of each.
            TooManyQuarantined: more messages went into quarantine than may.
        """
        failed = [one for one in self.queues if one.state is State.FAILED]
        if failed:
            raise InstanceError(
                " ".join(f"The queue '{one.label}' is not read any more: {one.reason.rstrip('.')}." for one in failed)
            )
        self.check_quarantine()

    def check_quarantine(self) -> None:
        """Look whether too much is in quarantine.

        Raises:
            TooManyQuarantined: more messages went there than may.
        """
        counts: Counts = sum((one.quarantined for one in self.queues), Counter())
        check_limits(counts, self.limits, self.quarantine, allows_none=self.fails_on_quarantine)


@contextmanager
def running(
    pipeline: Pipeline, *, once: bool, master: str | None = None, fails_on_quarantine: bool = False
) -> Iterator[Run]:
    """The pipeline's queries: with `once` they end when they have read what was there. Stopped at the end.

    A session of Spark that was there before goes on; ours ends. How the run stands is noted beside the checkpoints
    (`LastRun`).

    Raises:
        InstanceError: Spark does not start, a queue cannot be found, or a table is another one.
    """
    with LastRun.noted(pipeline) as noted:
        for table in pipeline.table_names():
            target(pipeline, table).ensure()
        _check_queues(pipeline)
        is_theirs = is_running()
        spark = spark_session(f"servicebroker pipeline {pipeline.name}", master=master)
        checkpoints = Checkpoints(pipeline)
        starts = [partial(_start, spark, pipeline, checkpoints, queue, once=once) for queue in pipeline.queues]
        hear = lineage(pipeline)
        queries = []
        for queue, start in zip(pipeline.queues, starts, strict=True):
            notes = place(pipeline, queue)
            forget(notes)
            queries.append(QueueRun(queue, start, once, hear=hear, noted=partial(read_noted, notes)))
        run = Run(queries, limits_of(pipeline), fails_on_quarantine, pipeline.quarantine)
        noted.queues = run.queues
        try:
            yield run
        finally:
            _end(run, None if is_theirs else spark)


def _check_queues(pipeline: Pipeline) -> None:
    """What cannot be found is said before Java has started. A server that cannot be reached stops the others not.

    Raises:
        InstanceError: a queue cannot be found, or no server be reached.
    """
    problems = []
    for queue in pipeline.queues:
        try:
            Attachment.open(source_options(queue.source_options())).close()
        except Unreachable as problem:
            problems.append(problem)
    if len(problems) == len(pipeline.queues):
        raise problems[0]


def _end(run: Run, spark: SparkSession | None) -> None:
    """Stop what runs, with it a session of ours, and return when the queues are free."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    broken = PySparkException, Py4JError, OSError  # of Java that has ended
    for one in run.queues:
        with contextlib.suppress(*broken):
            one.stop()
    if spark is not None:
        with contextlib.suppress(*broken):
            spark.stop()
    for one in run.queues:
        if one.state in (State.RUNS, State.ENDED):
            _wait_until_free(one.queue)


def _wait_until_free(queue: QueueRule) -> None:
    """The server has seen that the process which has planned a query is gone."""
    options = source_options(queue.source_options())
    with contextlib.suppress(InstanceError):  # the server is gone, or somebody else reads the queue already
        attached = Attachment.open(options)
        try:
            attached.claim(_FREE)
        finally:
            attached.close()


def _start(
    spark: SparkSession, pipeline: Pipeline, checkpoints: Checkpoints, queue: QueueRule, *, once: bool
) -> Started:
    """The query of a queue, when the process that plans it has started.

    Raises:
        InstanceError: Spark refuses it, or its checkpoint is older than a table.
    """
    from pyspark.errors import PySparkException

    from servicebroker.pipeline.failed_query import reason

    checkpoints.check(queue)
    register_formats(spark)  # one for each query
    before = planners(spark)
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
            query = sink.trigger(availableNow=True).start()
        else:
            query = sink.trigger(processingTime=f"{round(pipeline.trigger_seconds * 1000)} milliseconds").start()
    except PySparkException as problem:
        raise InstanceError(f"The queue '{queue.label}' cannot be read: {reason(problem)}") from None
    give_up = time.monotonic() + _PLANNED
    while query.isActive and "Initializing" in query.status["message"] and time.monotonic() < give_up:
        time.sleep(LOOK / 3)
    return Started(query, partial(end_planners, spark, planners(spark) - before))
