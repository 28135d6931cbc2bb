"""Fixtures of pytest: an instance in memory, a database, its clock, and workers that a test runs step by step.

pytest loads them wherever servicebroker is installed. A fixture of a test suite with the same name replaces one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from servicebroker.model.workers import Worker
    from servicebroker.pipeline.rules.trial import Trial
    from servicebroker.testing import Clock, Database, Instance


class RunWorkerOnce(Protocol):
    """Runs a worker for one RECEIVE, and returns the number of messages."""

    def __call__(self, worker: Worker, *, database: Database | None = None) -> int:
        """Run the worker on its queue in `database`, by default that of the fixture."""
        ...


@pytest.fixture
def broker_connect() -> Callable[[], Any] | None:
    """The function that opens `tx.connection` for each transaction of `broker`. None until a test suite replaces it."""
    return None


@pytest.fixture
def broker(broker_connect: Callable[[], Any] | None) -> Iterator[Instance]:
    """An instance in memory, new for each test. Its connections to the application's tables are of `broker_connect`."""
    from servicebroker import testing  # here: runs of other packages do not need it

    with testing.open(connect=broker_connect) as instance:
        yield instance


@pytest.fixture
def database(broker: Instance) -> Database:
    """An empty broker database of the instance in memory."""
    return broker.database("Test", create=True)


@pytest.fixture
def clock(broker: Instance) -> Clock:
    """The clock of the instance in memory: it stands still until `jump`."""
    return broker.clock


@pytest.fixture
def run_worker_once(request: pytest.FixtureRequest) -> RunWorkerOnce:
    """A function that runs a worker for one RECEIVE from its queue, and returns the number of messages.

    The queue is one of the fixture `database`, or of the argument `database=`. The worker's policy handles failures. A
    message that waits for its retry is not received.
    """

    def run(worker: Worker, *, database: Database | None = None) -> int:
        return (database or request.getfixturevalue("database")).run_worker_once(worker)

    return run


@pytest.fixture
def try_pipeline() -> Callable[[Path | str, str, Any], Trial]:
    """A function that applies the rules of a pipeline file to one message, given its type and body, without Spark.

    Returns a `Trial` with `table` and `row`, or with the `reason` and `detail` of quarantine.
    """
    import os
    from functools import cache
    from pathlib import Path

    from servicebroker.pipeline.file import read_pipeline
    from servicebroker.pipeline.rules.trial import try_message
    from servicebroker.pipeline.variables import Placeholders

    read = cache(lambda path: read_pipeline(path, Placeholders(os.environ)))
    return lambda path, message_type, body: try_message(read(Path(path)), message_type, body)
