"""Worker objects without a database: registration, refused arguments, the default failure policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.model.poison import MAXIMUM_PAUSE_S
from servicebroker.model.workers import ExpectedType
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


def test_jitter_shortens_the_pauses_of_messages_differently() -> None:
    policy = sb.give_up_after(3, pause=10, jitter=0.5)
    messages = [SimpleNamespace(conversation_handle=UUID(int=n), message_sequence_number=0) for n in range(50)]
    pauses = {policy(replace(failure(ValueError(), 1), message=message)).after for message in messages}
    assert len(pauses) == 50
    assert min(pauses) < 6
    assert max(pauses) > 9
    assert all(5 <= pause <= 10 for pause in pauses)
    for wrong in (-0.1, 1.1, True, "1"):
        with refused(402, "jitter"):
            sb.give_up_after(3, jitter=wrong)  # type: ignore[arg-type]


def test_a_worker_that_only_answers_ends_needs_no_handler() -> None:
    for is_async in (False, True):
        sb.Worker("OrderQueue", groups=50, answers_ends=True).check(is_async=is_async)
        with refused(402, "the worker of OrderQueue is one without handlers"):
            sb.Worker("OrderQueue", groups=50).check(is_async=is_async)


def test_a_pause_doubles_up_to_a_minute() -> None:
    policy = sb.give_up_after(1_000_000, pause=10)
    assert [policy(failure(ValueError(), count)).after for count in (1, 2, 3, 4, 9_999)] == [10, 20, 40, 60, 60]
    assert sb.give_up_after(2, pause=300)(failure(ValueError(), 2)) == sb.Retry(300)
    assert sb.give_up_after(2)(failure(ValueError(), 2)) == sb.Retry(0)


def test_on_registers_a_handler_and_returns_it() -> None:
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
def test_invalid_worker_arguments_are_refused(make: Any) -> None:
    with refused(402):
        make()


def test_a_blocking_handler_is_refused_under_asyncio() -> None:
    worker = sb.Worker("Q")
    worker.on()(lambda tx, message: None)
    worker.check(is_async=False)
    with refused(402, "coroutine functions (async def) here"):
        worker.check(is_async=True)


@pytest.mark.parametrize("after", [-0.1, MAXIMUM_PAUSE_S, float("inf"), float("nan"), True, "1", None])
def test_a_pause_is_a_number_of_seconds(after: Any) -> None:
    with refused(402, "a number of seconds, 0 or more"):
        sb.Retry(after)
    assert [sb.Retry(seconds).after for seconds in (0, 0.5, MAXIMUM_PAUSE_S - 1)] == [0, 0.5, MAXIMUM_PAUSE_S - 1]


def test_a_body_that_cannot_be_read_is_not_retried() -> None:
    assert sb.Worker("Q").poison(failure(sb.BodyError("no JSON"), 1)) == sb.SetAside()


@pytest.mark.parametrize(
    ("groups", "answers_ends", "is_refused"), [(1, True, True), (1, False, False), (2, True, False), (61, False, True)]
)
def test_ends_are_answered_for_many_groups(groups: int, answers_ends: bool, is_refused: bool) -> None:
    def make() -> sb.Worker:
        return sb.Worker("Q", groups=groups, answers_ends=answers_ends)

    if is_refused:
        with refused(402):
            make()
    else:
        worker = make()
        if answers_ends:
            with refused(402, "with answers_ends the worker answers EndDialog itself"):
                worker.on(sb.END_DIALOG)(lambda tx, message: None)


ORDER, OTHER = "//t/Order", "//t/Other"


@pytest.mark.parametrize(
    ("handled", "message_type", "expected"),
    [
        ([ORDER], ORDER, ORDER),
        ([ORDER, ""], ORDER, ORDER),
        ([ORDER, ""], OTHER, ""),
        ([ORDER], OTHER, "refused"),
        ([ORDER], sb.DIALOG_TIMER, "refused"),
        ([ORDER, ""], sb.DIALOG_TIMER, ""),
        ([ORDER], sb.END_DIALOG, None),
        ([ORDER, ""], sb.END_DIALOG, None),
        ([ORDER, ""], sb.ERROR, None),
        ([sb.END_DIALOG], sb.END_DIALOG, sb.END_DIALOG),
        ([sb.ERROR], sb.ERROR, sb.ERROR),
    ],
)
def test_the_handler_of_a_message(handled: list[str], message_type: str, expected: str | None) -> None:
    worker = sb.Worker("Q")
    functions: dict[str, Any] = {name: lambda tx, message: None for name in handled}
    for name, function in functions.items():
        (worker.on(name) if name else worker.on())(function)
    message: Any = SimpleNamespace(
        message_type_name=message_type,
        is_end_dialog=message_type == sb.END_DIALOG,
        is_error=message_type == sb.ERROR,
    )
    if expected == "refused":
        with pytest.raises(sb.InstanceError, match="has no handler for messages of type"):
            worker.handler_of(message)
    else:
        assert worker.handler_of(message) is (None if expected is None else worker._handlers[expected])


def test_a_worker_handles_what_initiators_may_send() -> None:
    expected = [ExpectedType(ORDER, "//t/Contract", "//t/Service")]
    for handled, is_refused in (([ORDER], False), ([OTHER, ORDER], False), ([OTHER], True), ([OTHER, ""], False)):
        worker = sb.Worker("Q")
        for name in handled:
            (worker.on(name) if name else worker.on())(lambda tx, message: None)
        worker.check_handles([])
        if is_refused:
            with refused(402, f"one without a handler of '{ORDER}'"):
                worker.check_handles(expected)
        else:
            worker.check_handles(expected)
