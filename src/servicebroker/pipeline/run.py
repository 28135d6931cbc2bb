"""Runs a pipeline: one Spark query for each queue. If a query fails, the others continue."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from servicebroker.model.errors import InstanceError, ServiceBrokerError, Unreachable
from servicebroker.pipeline.checkpoint import Checkpoints
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.held_back import DEFAULT_WAIT_S, HeldBack, MessagesHeldBack
from servicebroker.pipeline.last_run import LastRun
from servicebroker.pipeline.lineage import lineage_listener
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.quarantine_counts import (
    Counts,
    check_limits,
    counts_path,
    limits_of,
    read_counts,
    remove_counts,
)
from servicebroker.pipeline.queue_lease import QueueLease
from servicebroker.pipeline.queue_run import QueueRun, QueueState, RunningQuery
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.spark_session import (
    check_settings,
    how_java_ended,
    is_running,
    register_formats,
    spark_session,
)
from servicebroker.pipeline.stream.planners import end_planners, planners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_INTERVAL_S = 0.3  # the time between two polls of the Spark queries
# Spark gives the process that plans a query ten seconds to start, and no setting changes that. So queries start one by
# one: the next query starts when the planning process of the last one is up, or after this timeout.
_PLANNER_START_TIMEOUT_S = 30.0
_RELEASE_TIMEOUT_S = 5  # the time for PostgreSQL to notice that the planner of a queue has ended

_log = logging.getLogger("servicebroker.pipeline")


@dataclass
class Run:
    """The Spark queries of a pipeline. The caller polls until `is_over`.

    Attributes:
        limits: maximum number of messages in quarantine, by message type.
        fails_on_quarantine: the run fails if any message goes to quarantine.
        quarantine: name of the quarantine table.
    """

    queues: list[QueueRun]
    limits: Mapping[str, int] = field(default_factory=dict)
    fails_on_quarantine: bool = False
    quarantine: str = "quarantine"

    @property
    def is_over(self) -> bool:
        """True if no query runs and none will be started."""
        return all(queue.is_over for queue in self.queues)

    def poll(self) -> None:
        """Read progress from Spark, and start one query that is due.

        Raises:
            InstanceError: Java has ended, and so have all queries.
            TooManyQuarantined: in a continuous run, more messages are in quarantine than allowed.
        """
        from py4j.protocol import Py4JError

        try:
            for queue in self.queues:
                queue.poll()
            due_queue = next((queue for queue in self.queues if queue.is_due), None)
            if due_queue is not None:
                due_queue.start_query()
        except (Py4JError, OSError) as problem:
            raise InstanceError(
                f"Java, in which Spark runs, {how_java_ended(problem)}. Nothing is lost: run the same command again "
                "and it goes on from there."
            ) from problem
        if not all(queue.once for queue in self.queues):
            self.check_quarantine()

    def wait(self) -> None:
        """Poll until the run ends.

        Raises:
            InstanceError: Java has ended, or a query has failed and will not be restarted.
            TooManyQuarantined: more messages are in quarantine than allowed.
            MessagesHeldBack: an open transaction holds back committed messages.
        """
        while not self.is_over:
            self.poll()
            time.sleep(POLL_INTERVAL_S)
        self.check()

    def check(self) -> None:
        """Check the result of the run: failed queries first, then the quarantine, then messages that are held back.

        Raises:
            InstanceError: queries have failed; the text has the reason of each.
            TooManyQuarantined: more messages are in quarantine than allowed.
            MessagesHeldBack: an open transaction holds back committed messages.
        """
        failed_queues = [queue for queue in self.queues if queue.state is QueueState.FAILED]
        if failed_queues:
            raise InstanceError(
                " ".join(
                    f"The queue '{queue.label}' is not read any more: {queue.reason.rstrip('.')}."
                    for queue in failed_queues
                )
            )
        self.check_quarantine()
        held_back = [queue for queue in self.queues if queue.state is QueueState.HELD_BACK]
        if held_back:
            raise MessagesHeldBack(" ".join(f"The queue '{queue.label}': {queue.reason}." for queue in held_back))

    def check_quarantine(self) -> None:
        """Compare the quarantine counts with their limits.

        Raises:
            TooManyQuarantined: more messages are in quarantine than allowed.
        """
        counts: Counts = sum((queue.quarantined for queue in self.queues), Counter())
        check_limits(counts, self.limits, self.quarantine, fails_on_any=self.fails_on_quarantine)


@contextmanager
def running(
    pipeline: Pipeline,
    *,
    once: bool,
    master: str | None = None,
    fails_on_quarantine: bool = False,
    wait_s: float = DEFAULT_WAIT_S,
    config: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """Run the pipeline's queries during the `with` block, and stop them at its end.

    With `once` the queries end when they have read the messages that were available. Before, they wait up to `wait_s`
    seconds for an open transaction that holds back committed messages. At the end, the Spark session stops only if this
    function has started it. The state of the run is recorded beside the checkpoints (`LastRun`). `config` has further
    settings for a Spark session that this function starts.

    Raises:
        InstanceError: Spark does not start, or runs already and gets a `config`; a queue cannot be found; or a table
            does not fit its rule.
    """
    check_settings(config or {})
    with LastRun.recording(pipeline) as last_run:
        for table in pipeline.table_names():
            target(pipeline, table).create_or_extend()
        _check_queues(pipeline)
        is_foreign_session = is_running()
        spark = spark_session(f"servicebroker pipeline {pipeline.name}", master=master, config=config)
        checkpoints = Checkpoints(pipeline)
        starts = [partial(_start, spark, pipeline, checkpoints, queue, once=once) for queue in pipeline.queues]
        on_event = lineage_listener(pipeline)
        queue_runs = []
        for queue, start in zip(pipeline.queues, starts, strict=True):
            path = counts_path(pipeline, queue)
            remove_counts(path)
            queue_runs.append(
                QueueRun(
                    queue,
                    start,
                    once,
                    on_event=on_event,
                    read_quarantine=partial(read_counts, path),
                    find_held_back=partial(_find_held_back, queue),
                    wait_s=wait_s,
                )
            )
        run = Run(queue_runs, limits_of(pipeline), fails_on_quarantine, pipeline.quarantine)
        last_run.queues = run.queues
        try:
            yield run
        finally:
            _end(run, None if is_foreign_session else spark)


def _check_queues(pipeline: Pipeline) -> None:
    """Check that every queue exists, before Java starts, which takes seconds.

    If a server is unreachable, the queues of other servers are read.

    Raises:
        InstanceError: a queue does not exist, or no server can be reached.
    """
    problems = []
    for queue in pipeline.queues:
        try:
            QueueLease.open(source_options(queue.source_options())).close()
        except Unreachable as problem:
            problems.append(problem)
    if len(problems) == len(pipeline.queues):
        raise problems[0]


def _end(run: Run, spark: SparkSession | None) -> None:
    """Stop the queries, and the Spark session unless it is None. Return when other readers can own the queues."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    errors_of_dead_java = PySparkException, Py4JError, OSError
    started_queues = [queue_run for queue_run in run.queues if queue_run.has_run]
    for queue_run in run.queues:
        with contextlib.suppress(*errors_of_dead_java):
            queue_run.stop()
    if spark is not None:
        with contextlib.suppress(*errors_of_dead_java):
            spark.stop()
    for queue_run in started_queues:
        _wait_until_free(queue_run.queue)


def _find_held_back(queue: QueueRule, previous: HeldBack | None) -> HeldBack | None:
    """Return the messages of a queue that an open transaction holds back; `previous` if the server is unreachable."""
    try:
        with closing(QueueLease.open(source_options(queue.source_options()))) as lease:
            return lease.find_held_back(previous)
    except (ServiceBrokerError, psycopg.Error):
        return previous


def _wait_until_free(queue: QueueRule) -> None:
    """Wait until PostgreSQL has noticed that the planner has ended, and has released its lock on the queue."""
    options = source_options(queue.source_options())
    with contextlib.suppress(InstanceError):  # the server is unreachable, or another reader owns the queue
        lease = QueueLease.open(options)
        try:
            lease.claim(_RELEASE_TIMEOUT_S)
        finally:
            lease.close()


def _start(
    spark: SparkSession, pipeline: Pipeline, checkpoints: Checkpoints, queue: QueueRule, *, once: bool
) -> RunningQuery:
    """Start the query of a queue, and return when its planning process is up.

    Raises:
        InstanceError: Spark refuses the query, or its checkpoint is older than a table.
    """
    from pyspark.errors import PySparkException

    from servicebroker.pipeline.failed_query import reason

    checkpoints.check(queue)
    register_formats(spark)  # each query needs a registration of its own (decision 96)
    planners_before = planners(spark)
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
    deadline = time.monotonic() + _PLANNER_START_TIMEOUT_S
    while query.isActive and "Initializing" in query.status["message"] and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S / 3)
    return RunningQuery(query, partial(end_planners, spark, planners(spark) - planners_before))
