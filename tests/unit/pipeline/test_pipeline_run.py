"""Queries of a run: when they end, when they are restarted, and the log of both."""

import json
import logging
import warnings

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import run as pipeline_run
from servicebroker.pipeline.definition import OldCheckpoint, QueueRule
from servicebroker.pipeline.failed_query import reason
from servicebroker.pipeline.held_back import HeldBack, Holder, MessagesHeldBack
from servicebroker.pipeline.metrics import Metrics
from servicebroker.pipeline.queue_run import (
    MAX_RETRY_DELAY_S,
    MAX_STARTS_WITHOUT_BATCH,
    QueueRun,
    QueueState,
    RunningQuery,
)
from servicebroker.pipeline.run import Run

SLOW = "Query q terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
BROKEN = "Query q terminated with exception: servicebroker.model.errors.InstanceError: The disk is full."
STOP = "Query q terminated with exception: servicebroker.pipeline.definition.StopError: The pipeline says stop."


class Progress:
    def __init__(self, batch, rows, **behind):
        self.timestamp = f"{batch} {rows} {behind}"
        told = {"batchId": batch, "numInputRows": rows, "batchDuration": 1500, "sources": [{"latestOffset": behind}]}
        self.json = json.dumps(told)


class Query:
    """A stand-in for a streaming query, with the attributes that a run reads."""

    def __init__(self, is_active=False, problem=None, reports=(), message="Waiting for data to arrive"):
        self.isActive = is_active
        self.status = {"message": message}
        self._problem = problem and StreamingQueryException(problem)
        self.recentProgress = list(reports)

    @property
    def lastProgress(self):
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self):
        return self._problem


class Queries:
    """Starts queries one after the other, with a clock that stands still."""

    def __init__(self, *queries, once=False):
        self.left, self.now, self.cleared = list(queries), 0.0, 0
        self.run = QueueRun(QueueRule("url", "Shop", "StockQueue"), self.start, once, clock=lambda: self.now)

    def start(self):
        query = self.left.pop(0)
        if isinstance(query, Exception):
            raise query
        return RunningQuery(query, self.clear)

    def clear(self):
        self.cleared += 1

    def poll(self):
        """Call `Run.poll`. Return the seconds until the next start, or None if none is due."""
        if self.run.is_due:
            self.run.start_query()
        self.run.poll()
        return self.run._next_start - self.now if self.run.state is QueueState.WAITING else None


def test_an_inactive_query_has_ended():
    queries = Queries(Query(is_active=True))
    assert queries.poll() is None
    assert (queries.run.state, queries.cleared) == (QueueState.RUNNING, 0)
    queries.run._started.query.isActive = False
    queries.poll()
    assert (queries.run.state, queries.cleared) == (QueueState.ENDED, 1)


def test_a_queue_is_told_to_be_read_when_it_was_found(caplog):
    caplog.set_level(logging.INFO, "servicebroker.pipeline")
    refused = Query(problem=BROKEN, message="Getting offsets from servicebroker")
    opening = Query(is_active=True, message="Getting offsets from servicebroker")
    queries = Queries(refused, opening)
    queries.poll()
    queries.now = 1
    queries.poll()
    events = [record.fields["event"] for record in caplog.records]
    assert events == ["queue restarts"]
    opening.status = {"message": "Waiting for data to arrive"}
    for _ in range(2):
        queries.poll()
    assert [record.fields["event"] for record in caplog.records][1:] == ["queue started"]


HOLDER = Holder(4711, "psql", "shop", "broker", "idle in transaction", 75)


def test_a_query_with_an_end_waits_for_a_transaction_that_holds_messages_back_and_names_it(caplog):
    queries = Queries(Query(is_active=True), once=True)
    held = [HeldBack(800, 805, 20, 10, HOLDER, True)]
    queries.run.find_held_back = lambda before: held[0]
    for second in range(31):
        queries.now = second
        queries.poll()
        assert queries.run.state is (QueueState.WAITING if second < 30 else QueueState.RUNNING)
    queries.run._started.query.isActive = False
    run = Run([queries.run])
    queries.poll()
    assert (queries.run.state, run.is_over) == (QueueState.HELD_BACK, True)
    with pytest.raises(
        MessagesHeldBack, match=r"10 committed messages are held back by process 4711 of the server"
    ) as error:
        run.check()
    assert error.value.exit_code == 4
    assert [record.fields["event"] for record in caplog.records] == ["queue waits", "queue ended"]
    assert queries.run.counts()["held_back"] == 10

    for later in (None, HeldBack(805, 900, 30, 1, HOLDER, True)):  # the second: of a busy server, by others
        waiting = Queries(Query(is_active=True), once=True)
        waiting.run.find_held_back = lambda before: held[0]
        held[0] = HeldBack(804, 805, 20, 10, HOLDER, True)
        waiting.poll()
        held[0], waiting.now = later, 1
        waiting.poll()
        assert waiting.run.state is QueueState.RUNNING
        waiting.run._started.query.isActive = held[0] = None
        waiting.poll()
        assert waiting.run.state is QueueState.ENDED


def test_a_queue_that_is_stopped_does_not_run_any_more():
    queries = Queries(Query(is_active=True))
    queries.poll()
    queries.run._started.query.stop = lambda: None
    queries.run.stop()
    assert queries.run.state is QueueState.STOPPED


PYTHON_FAILURE = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "/opt/pyspark/runner.py", line 1, in main
    latest_offset_func(reader, outfile)
{kind}: {text}
. SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("kind", "text", "expected_text"),
    [
        ("psycopg.errors.AdminShutdown", "terminating connection", "AdminShutdown: terminating connection"),
        ("KeyError", "'x'", "KeyError: 'x'"),
        ("servicebroker.model.errors.Unreachable", "It is away.", "It is away."),
        ("servicebroker.pipeline.sinks.tables.Conflict", "Another commit.", "Another commit."),
    ],
)
def test_a_failure_in_python_is_told_without_its_traceback(kind, text, expected_text):
    assert reason(StreamingQueryException(PYTHON_FAILURE.format(kind=kind, text=text))) == expected_text


def test_pauses_grow_up_to_a_minute_and_a_batch_makes_them_short_again(caplog):
    landed = Query(problem=BROKEN, reports=[Progress(0, 2, messagesRead=3)])
    queries = Queries(*[Query(problem=BROKEN)] * 9, landed)
    pauses = []
    for _ in range(10):
        pauses.append(queries.poll())
        queries.now = queries.run._next_start
    assert pauses == [1, 2, 4, 8, 16, 32, MAX_RETRY_DELAY_S, MAX_RETRY_DELAY_S, MAX_RETRY_DELAY_S, 1]
    assert (queries.run.restarts, queries.run.reason, queries.cleared) == (10, "The disk is full.", 10)
    records = [record for record in caplog.records if record.fields["event"] == "queue restarts"]
    assert records[2].getMessage() == (
        "The queue 'Shop.StockQueue' is started again in 4 s (restart 3): The disk is full."
    )
    assert records[2].fields | {"pause": 4.0, "restarts": 3, "reason": "The disk is full."} == records[2].fields


def test_a_query_that_is_to_end_is_not_started_for_ever():
    queries = Queries(*[Query(problem=SLOW), InstanceError("It cannot be read.")] * MAX_STARTS_WITHOUT_BATCH, once=True)
    for _ in range(MAX_STARTS_WITHOUT_BATCH):
        assert queries.run.state is QueueState.WAITING
        queries.poll()
        queries.now = queries.run._next_start
    assert (queries.run.state, queries.run.restarts) == (QueueState.FAILED, MAX_STARTS_WITHOUT_BATCH - 1)


def test_a_rule_that_says_stop_is_obeyed_at_once():
    queries = Queries(Query(problem=STOP))
    queries.poll()
    assert (queries.run.state, queries.run.restarts) == (QueueState.FAILED, 0)


@pytest.mark.parametrize(("once", "state"), [(True, QueueState.FAILED), (False, QueueState.WAITING)])
def test_an_old_checkpoint_ends_a_run_that_is_to_end_at_once(once, state):
    queries = Queries(OldCheckpoint("It is older."), once=once)
    queries.run.start_query()
    assert (queries.run.state, queries.run.reason) == (state, "It is older.")


def test_a_failing_query_does_not_stop_the_others():
    bad, good = Queries(Query(problem=STOP)), Queries(Query(is_active=True))
    run = Run([bad.run, good.run])
    for _ in range(3):
        run.poll()
    assert [queue.state for queue in run.queues] == [QueueState.FAILED, QueueState.RUNNING]
    assert not run.is_over
    good.run._started.query.isActive = False
    run.poll()
    assert run.is_over
    with pytest.raises(InstanceError, match=r"'Shop.StockQueue' is not read any more: The pipeline says stop\."):
        run.check()


def test_queues_start_one_after_the_other():
    waiting = [Queries(Query(is_active=True)) for _ in range(3)]
    run = Run([query.run for query in waiting])
    for count in range(1, 4):
        run.poll()
        assert [queue.state for queue in run.queues].count(QueueState.RUNNING) == count


def test_batches_are_told_and_counted_over_restarts(caplog):
    caplog.set_level(logging.INFO, "servicebroker.pipeline")
    idle = Progress(1, 0, messagesRead=5, bytesRead=50)
    first = Query(
        problem=BROKEN,
        reports=[
            Progress(0, 2, messagesRead=3, bytesRead=30, messagesBehind=1200, oldestMessageSeconds=7),
            Progress(1, 2, messagesRead=5, bytesRead=50),
            idle,
        ],
    )
    again = [Progress(2, 2), Progress(3, 0, messagesRead=4, bytesRead=4), Progress(3, 2, messagesRead=5, bytesRead=6)]
    queries = Queries(first, Query(is_active=True, reports=again))
    for _ in range(3):
        queries.poll()
        queries.now += 1
    assert queries.run.totals() == {"batches": 4, "messages": 10, "bytes": 56, "quarantined": 0, "restarts": 1}
    records = [record for record in caplog.records if record.fields["event"] == "batch"]
    assert [(record.fields["batch"], record.fields["messages"], record.fields["bytes"]) for record in records] == [
        (0, 3, 30),
        (1, 2, 20),
        (2, 0, 0),  # with the next report
        (3, 1, 2),
    ]
    assert records[0].getMessage() == (
        "The queue 'Shop.StockQueue' batch 0: 3 messages, 30 bytes, 1.5 s, 1,200 behind, the oldest of them 7 s."
    )
    assert ": written again after a restart, 1.5 s, " in records[2].getMessage()
    metrics = Metrics("orders")
    metrics.queues = [queries.run]
    labels = {"pipeline": "orders", "queue": "Shop.StockQueue"}
    expected = {"messages_total": 10, "bytes_total": 56, "batches_total": 4, "restarts_total": 1, "up": 1}
    for name, value in {**expected, "batch_seconds": 1.5}.items():
        assert metrics.registry.get_sample_value(f"servicebroker_pipeline_{name}", labels) == value, name


def test_each_query_registers_the_formats_before_it_is_defined(monkeypatch):
    told = []

    class Spark:
        """A stand-in for a Spark session that can only start a query."""

        @property
        def readStream(self):
            told.append("defined")
            raise InstanceError("seen")

    class Unseen:
        """Checkpoints that refuse nothing."""

        def check(self, queue):
            pass

    monkeypatch.setattr(pipeline_run, "register_formats", lambda spark: told.append("registered"))
    monkeypatch.setattr(pipeline_run, "planners", lambda spark: frozenset())
    for _ in range(2):
        with pytest.raises(InstanceError, match="seen"):
            pipeline_run._start(Spark(), None, Unseen(), QueueRule("url", "Shop", "StockQueue"), once=True)
    assert told == ["registered", "defined"] * 2


def test_pyspark_says_nothing_of_the_installed_pandas():
    """PySpark warns on standard error in each process about an unknown version of pandas."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_minimum_pandas_version()
