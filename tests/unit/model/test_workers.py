"""Workers as values: what is registered, what is refused, and what becomes of failures by default."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import servicebroker as sb
from support import refused

NOW = datetime.now(UTC)


def failure(error: Exception, count: int) -> sb.Failure:
    message: Any = None
    return sb.Failure(message, error, count, NOW, "", NOW)


def test_by_default_it_is_tried_ever_later_and_then_set_aside() -> None:
    judge = sb.Worker("Q").poison
    verdicts = [judge(failure(ValueError(), count)) for count in range(1, 7)]
    assert verdicts == [*(sb.Retry(after) for after in (1, 2, 4, 8, 16)), sb.SetAside()]


def test_no_second_try_where_none_can_help() -> None:
    judge = sb.Worker("Q").poison
    assert judge(failure(sb.BrokerError(8429, "DI"), 1)) == sb.SetAside()
    assert judge(failure(sb.BrokerError(8426, "x"), 1)) == sb.SetAside()
    assert judge(failure(sb.BrokerError(1205, 1, "lock"), 1)) == sb.Retry(1)


def test_a_pause_doubles_up_to_a_minute() -> None:
    judge = sb.give_up_after(1_000_000, pause=10)
    assert [judge(failure(ValueError(), count)).after for count in (1, 2, 3, 4, 9_999)] == [10, 20, 40, 60, 60]
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


def test_the_other_form_is_refused() -> None:
    worker = sb.Worker("Q")
    worker.on()(lambda tx, message: None)
    worker.check(is_async=False)
    with refused(402, "coroutine functions (async def) here"):
        worker.check(is_async=True)
