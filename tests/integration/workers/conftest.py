"""Fixtures for the tests of workers and activation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import servicebroker as sb
from activation_support import Seen
from servicebroker.activation import procedures


@pytest.fixture
def nothing_left(database: sb.Database) -> Iterator[None]:
    """Check that no queue activates procedures in the next test."""
    yield
    procedures._registered.clear()
    with database.instance.connection() as connection:
        connection.execute("update servicebroker.queues set is_activation_enabled = false")


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def active(database: sb.Database) -> Iterator[sb.Database]:
    with sb.activate(database.instance, interval=0.4):
        yield database
