"""Fixtures for the tests of workers and activation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import servicebroker as sb
from activation_support import CallRecorder
from servicebroker.activation import procedures


@pytest.fixture
def remove_activation_afterwards(database: sb.Database) -> Iterator[None]:
    """Remove the registered procedures, and disable activation on all queues, after the test."""
    yield
    procedures._registered.clear()
    with database.instance.connection() as connection:
        connection.execute("update servicebroker.queues set is_activation_enabled = false")


@pytest.fixture
def recorder() -> CallRecorder:
    return CallRecorder()


@pytest.fixture
def active(database: sb.Database) -> Iterator[sb.Database]:
    with sb.activate(database.instance, interval=0.4):
        yield database
