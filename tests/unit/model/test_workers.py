"""Worker objects without a database: registration, refused arguments, the default failure policy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import servicebroker as sb
from support import refused

NOW = datetime.now(UTC)


def failure(error: Exception, count: int) -> sb.Failure:
    message: Any = None
    return sb.Failure(message, error, count, first_failed_at=NOW, first_error="", now=NOW)


def test_the_default_policy_retries_with_growing_pauses_and_then_sets_aside() -> None:
    policy = sb.Worker("Q").poison
    verdicts = [policy(failure(ValueError(), count)) for count in range(1, 7)]
    assert verdicts == [*(sb.Retry(after) for after in (1, 2, 4, 8, 16)), sb.SetAside()]


def test_the_default_policy_does_not_retry_a_permanent_error() -> None:
    policy = sb.Worker("Q").poison
    assert policy(failure(sb.BrokerError(8429, "DI"), 1)) == sb.SetAside()
    assert policy(failure(sb.BrokerError(8426, "x"), 1)) == sb.SetAside()
    assert policy(failure(sb.BrokerError(1205, 1, "lock"), 1)) == sb.Retry(1)


@pytest.mark.parametrize("error", [sb.BrokerError(8429, "DI"), sb.BrokerError(8426, "x"), sb.BodyError("no JSON")])
def test_give_up_after_does_not_retry_a_permanent_error(error: Exception) -> None:
    assert sb.give_up_after(3, sb.SetAside(), pause=1)(failure(error, 1)) == sb.SetAside()
    assert sb.give_up_after(3)(failure(error, 1)) == sb.EndWithError()
    assert failure(error, 1).is_permanent
    assert not failure(ValueError(), 1).is_permanent


def test_a_pause_doubles_up_to_a_minute() -> None:
    policy = sb.give_up_after(1_000_000, pause=10)
    assert [policy(failure(ValueError(), count)).after for count in (1, 2, 3, 4, 9_999)] == [10, 20, 40, 60, 60]
    assert sb.give_up_after(2, pause=300)(failure(ValueError(), 2)) == sb.Retry(300)
    assert sb.give_up_after(2)(failure(ValueError(), 2)) == sb.Retry(0)


def test_registering() -> None:
    worker = sb.Worker("Q")

    @worker.on("//t/A", "//t/B")
    def handler(tx: Any, message: Any) -> str:
        return "it stays a function"

    assert handler(None, None) == "it stays a function"
    with refused(402, "'//t/B', which has a handler"):
        worker.on("//t/B")(handler)
    with refused(402, '@worker.on("//shop/Order")'):
        worker.on(handler)  # type: ignore[arg-type]

    async def other(tx: Any, message: Any) -> None: ...

    with refused(402, "async def beside def"):
        worker.on("//t/C")(other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sb.Worker(7),  # type: ignore[arg-type]
        lambda: sb.Worker("Q", batch=0),
        lambda: sb.Worker("Q", poison="none"),  # type: ignore[arg-type]
        lambda: sb.give_up_after(3, pause=-1),
        lambda: sb.Worker("Q").check(is_async=False),
    ],
)
def test_refused_arguments(make: Any) -> None:
    with refused(402):
        make()


def test_a_blocking_handler_is_refused_under_asyncio() -> None:
    worker = sb.Worker("Q")
    worker.on()(lambda tx, message: None)
    worker.check(is_async=False)
    with refused(402, "coroutine functions (async def) here"):
        worker.check(is_async=True)
