"""Fixtures of pytest: an instance in memory, a database, its clock, and workers that a test runs step by step.

They are there wherever servicebroker is installed. A fixture of a test's own with the same name takes their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from servicebroker.model.workers import Worker
    from servicebroker.testing import Clock, Database, Instance


@pytest.fixture
def broker() -> Iterator[Instance]:
    """An instance in memory, new for each test."""
    from servicebroker import testing  # here: runs of other packages do not need it

    with testing.open() as instance:
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
def run_worker_once(database: Database) -> Callable[[Worker], int]:
    """A function that lets a worker take once from its queue in `database`, and returns the number of its messages.

    Its policy judges failures. A message that waits for its retry is not taken.
    """
    return database.run_worker_once
