"""Errors of PostgreSQL that undo the whole transaction, found among the causes of a failure."""

from __future__ import annotations

import psycopg
import pytest

from servicebroker.model.errors import BrokerError
from servicebroker.store.server_errors import is_transaction_conflict, raise_broker_error


def with_cause(failure: Exception, cause: BaseException) -> Exception:
    failure.__cause__ = cause
    return failure


@pytest.mark.parametrize(
    ("failure", "is_conflict"),
    [
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (BrokerError(1205, "12", "lock"), True),
        (with_cause(ValueError("no such item"), psycopg.errors.SerializationFailure()), True),
        (psycopg.errors.UniqueViolation(), False),
        (BrokerError(8429, "1"), False),
        (ValueError("no such item"), False),
        (None, False),
    ],
    ids=repr,
)
def test_a_conflict_is_found_among_the_causes(failure: Exception | None, is_conflict: bool) -> None:
    assert is_transaction_conflict(failure) == is_conflict


@pytest.mark.timeout(10)
def test_an_exception_may_be_its_own_cause() -> None:
    """`raise problem from problem` in a handler makes a circle."""
    first, second = ValueError("no such item"), KeyError("teapot")
    first.__cause__, second.__cause__ = second, first
    assert not is_transaction_conflict(first)
    second.__cause__ = second
    assert not is_transaction_conflict(second)


def test_an_error_without_a_text_of_the_broker_has_no_cause() -> None:
    with pytest.raises(psycopg.errors.UniqueViolation) as error:
        raise_broker_error(psycopg.errors.UniqueViolation())
    assert error.value.__cause__ is None
