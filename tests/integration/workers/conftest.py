"""Fixtures of the tests of workers and activation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import servicebroker as sb
from servicebroker.activation import procedures


@pytest.fixture
def nothing_left(database: sb.Database) -> Iterator[None]:
    """The queues of a test start no procedures of the next one."""
    yield
    procedures._registered.clear()
    with database.instance.connection() as connection:
        connection.execute("update servicebroker.queues set is_activation_enabled = false")
