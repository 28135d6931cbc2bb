"""When the query of a queue has ended, and when it is started again."""

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import run as pipeline_run
from servicebroker.pipeline.definition import QueueRule
from servicebroker.pipeline.run import STARTS, QueueRun

SLOW = "Query q terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
BROKEN = "Query q terminated with exception: servicebroker.model.errors.InstanceError: The disk is full."


class Query:
    """As far as it is looked at."""

    def __init__(self, is_active=False, problem=None):
        self.isActive = is_active
        self._problem = problem and StreamingQueryException(problem)

    def exception(self):
        return self._problem


def run_of(*queries):
    queries = iter(queries)
    return QueueRun(QueueRule("url", "Shop", "StockQueue"), next(queries), lambda: next(queries))


def test_it_has_ended_when_it_is_not_active():
    assert not run_of(Query(is_active=True)).has_ended()
    assert run_of(Query()).has_ended()


def test_a_query_that_was_started_too_slowly_is_started_again():
    run = run_of(Query(problem=SLOW), Query(problem=SLOW), Query(is_active=True))
    assert not run.has_ended()
    assert not run.has_ended()
    assert not run.has_ended()
    assert run.query.isActive


def test_it_is_not_started_for_ever():
    run = run_of(*[Query(problem=SLOW)] * STARTS)
    for _ in range(STARTS - 1):
        assert not run.has_ended()
    with pytest.raises(InstanceError, match=r"StockQueue' is not read any more: .*failed to connect back"):
        run.has_ended()


def test_what_is_broken_is_not_started_again():
    with pytest.raises(InstanceError, match=r"is not read any more: The disk is full\."):
        run_of(Query(problem=BROKEN)).has_ended()


def test_each_query_registers_the_formats_before_it_is_defined(monkeypatch):
    told = []

    class Spark:
        """Of a session, only the beginning of a query."""

        @property
        def readStream(self):
            told.append("defined")
            raise InstanceError("seen")

    monkeypatch.setattr(pipeline_run, "register_formats", lambda spark: told.append("registered"))
    for _ in range(2):
        with pytest.raises(InstanceError, match="seen"):
            pipeline_run._start(Spark(), None, QueueRule("url", "Shop", "StockQueue"), once=True)
    assert told == ["registered", "defined"] * 2
