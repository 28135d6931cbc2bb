"""The spare connection of a pool, which was returned last and is kept for the next caller."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.pq import TransactionStatus

from servicebroker.store.direct import SpareConnection


def connection(status: TransactionStatus = TransactionStatus.IDLE, *, due: float = 1_000.0) -> Any:
    return SimpleNamespace(pgconn=SimpleNamespace(transaction_status=status), due=time.monotonic() + due)


@pytest.fixture
def spare() -> SpareConnection[Any]:
    return SpareConnection()


def test_the_next_caller_gets_it(spare: SpareConnection[Any]) -> None:
    returned = connection()
    assert spare.keep(returned) is None
    assert spare.take() is returned


def test_the_last_returned_connection_is_kept(spare: SpareConnection[Any]) -> None:
    """A borrower of a second connection returns the second one first, and continues with the first."""
    own, second = connection(), connection()
    assert spare.keep(second) is None
    assert spare.keep(own) is second
    assert spare.take() is own


def test_no_connection_is_kept_while_a_caller_waits_for_the_pool(spare: SpareConnection[Any]) -> None:
    """A caller that waits for the pool would not get a kept connection."""
    assert spare.take() is None
    assert spare.take() is None
    spare.asked(None)  # the pool returned no connection
    returned = connection(due=0)
    assert spare.keep(returned) is returned
    spare.asked(returned)
    assert spare.keep(returned) is None


def test_a_spare_connection_returns_to_the_pool_after_a_minute(spare: SpareConnection[Any]) -> None:
    """The pool replaces old connections."""
    spare.take()
    returned = connection(due=0)
    spare.asked(returned)
    assert 0 < returned.due - time.monotonic() <= 60
    old = connection(due=-0.001)
    assert spare.keep(old) is old


@pytest.mark.parametrize("status", sorted(set(TransactionStatus) - {TransactionStatus.IDLE}))
def test_a_connection_in_a_transaction_is_not_kept(spare: SpareConnection[Any], status: TransactionStatus) -> None:
    returned = connection(status)
    assert spare.keep(returned) is returned


def test_remove_returns_the_kept_connection(spare: SpareConnection[Any]) -> None:
    returned = connection()
    assert spare.remove() is None
    assert spare.keep(returned) is None
    assert spare.remove() is returned
    assert spare.keep(returned) is None
    assert spare.remove(and_close=True) is returned
    assert spare.keep(returned) is returned
