"""The connection that a pool's borrower gave back last, for who comes next."""

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
def at_hand() -> SpareConnection[Any]:
    return SpareConnection()


def test_who_comes_next_gets_it(at_hand: SpareConnection[Any]) -> None:
    given = connection()
    assert at_hand.keep(given) is None
    assert at_hand.take() is given


def test_the_last_one_lies_there(at_hand: SpareConnection[Any]) -> None:
    """A borrower of a second connection returns that first, and goes on with its own."""
    own, second = connection(), connection()
    assert at_hand.keep(second) is None
    assert at_hand.keep(own) is second
    assert at_hand.take() is own


def test_nothing_is_kept_while_somebody_asks_the_pool(at_hand: SpareConnection[Any]) -> None:
    """A waiter in the pool would not see a connection that is kept here."""
    assert at_hand.take() is None
    assert at_hand.take() is None
    at_hand.asked(None)  # in vain
    given = connection(due=0)
    assert at_hand.keep(given) is given
    at_hand.asked(given)
    assert at_hand.keep(given) is None


def test_the_pool_sees_it_now_and_then(at_hand: SpareConnection[Any]) -> None:
    """The pool replaces old connections."""
    at_hand.take()
    given = connection(due=0)
    at_hand.asked(given)
    assert 0 < given.due - time.monotonic() <= 60
    old = connection(due=-0.001)
    assert at_hand.keep(old) is old


@pytest.mark.parametrize("status", sorted(set(TransactionStatus) - {TransactionStatus.IDLE}))
def test_what_is_not_free_is_the_pools_business(at_hand: SpareConnection[Any], status: TransactionStatus) -> None:
    given = connection(status)
    assert at_hand.keep(given) is given


def test_what_lies_there_goes_back_to_the_pool(at_hand: SpareConnection[Any]) -> None:
    given = connection()
    assert at_hand.remove() is None
    assert at_hand.keep(given) is None
    assert at_hand.remove() is given
    assert at_hand.keep(given) is None
    assert at_hand.remove(and_close=True) is given
    assert at_hand.keep(given) is given
