"""Failure policies: the engine and the test double do the same with each verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import servicebroker as sb
from servicebroker.testing import Clock
from servicebroker.testing import open as open_double
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, define_standard_set, refused


class System(NamedTuple):
    """A database of the engine or of the double, and the clock of its instance."""

    database: Any
    clock: Clock


@pytest.fixture(params=["engine", "double"])
def system(request: pytest.FixtureRequest, make_instance_url: Callable[..., str]) -> Iterator[System]:
    clock = Clock()
    opened: Any
    if request.param == "engine":
        opened = sb.open(make_instance_url(), clock=clock, upkeep=None)
    else:
        opened = open_double(clock=clock)
    with opened as instance:
        database = instance.database("Test", create=True)
        define_standard_set(database)
        yield System(database, clock)


class Handler:
    """Fails for bodies that begin with x, at most `failures` times, and answers all others."""

    def __init__(self, failures: int = 1_000_000) -> None:
        self.failures = failures
        self.calls: list[bytes] = []

    def __call__(self, transaction: Any, messages: list[sb.Message]) -> None:
        for message in messages:
            body = bytes(message.message_body or b"")
            self.calls.append(body)
            if message.is_end_dialog or message.is_error:
                continue
            transaction.send(message.conversation_handle, REPLY, b"answer to " + body)
            if body.startswith(b"x") and self.failures:
                self.failures -= 1
                raise ValueError("no such item")


def send(system: System, *sent: bytes) -> Any:
    handle = system.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for body in sent:
        system.database.send(handle, ORDER, body)
    return handle


def receive_answers(system: System) -> list[tuple[str, bytes | None]]:
    answers = []
    while messages := system.database.receive(ORDERS_QUEUE):
        answers += [(message.message_type_name.rpartition("/")[2], message.message_body) for message in messages]
    return answers


def list_dead_letters(system: System) -> list[tuple[str, bytes | None, int, str]]:
    return [
        (letter.queue, letter.message_body, letter.failures, letter.error)
        for letter in system.database.set_aside_messages()
    ]


def process(system: System, handler: Handler, policy: sb.Policy, **options: Any) -> int:
    done: int = system.database.process(STOCK_QUEUE, handler, poison=policy, **options)
    return done


def test_a_retry_that_succeeds(system: System) -> None:
    send(system, b"x", b"2")
    handler, counts = Handler(2), []

    def retry(failure: sb.Failure) -> sb.Verdict:
        counts.append((failure.count, failure.first_error, str(failure.error)))
        return sb.Retry()

    process(system, handler, retry)
    assert handler.calls == [b"x", b"x", b"x", b"2"]
    assert counts == [(1, "ValueError: no such item", "no such item"), (2, "ValueError: no such item", "no such item")]
    assert receive_answers(system) == [("Reply", b"answer to x"), ("Reply", b"answer to 2")]


def test_each_delivery_is_counted(system: System) -> None:
    send(system, b"x", b"2")
    assert process(system, Handler(2), lambda failure: sb.Retry()) == 4
    send(system, b"x", b"2", b"3")
    assert process(system, Handler(1), lambda failure: sb.Ignore(), top=3) == 6


def test_a_timeout_names_the_dead_letter(system: System) -> None:
    handle = system.database.begin_request(ORDERS, STOCK, ORDER, b"x", contract=CONTRACT)
    process(system, Handler(), lambda failure: sb.SetAside())
    (letter,) = system.database.set_aside_messages()
    expected = (
        f"Message 0 ({ORDER}) is dead letter {letter.set_aside_id} of Test.dbo.{STOCK_QUEUE}, since it failed 1 time: "
        f"ValueError: no such item Mend the cause, then: servicebroker dead-letters replay {letter.set_aside_id} "
        "--database Test"
    )
    with pytest.raises(sb.RequestTimeout) as late:
        system.database.wait_for_answer(handle, timeout=0)
    assert late.value.reason == expected


def test_numbers_of_dead_letters_are_checked(system: System) -> None:
    assert system.database.set_aside_messages(after=0) == []
    for after in (False, -1, "1", 0.0, None):
        with refused(402, "after"):
            system.database.set_aside_messages(after=after)


def test_a_retry_waits_for_its_time_and_others_do_not(system: System) -> None:
    send(system, b"x", b"2")
    send(system, b"3")
    handler = Handler(1)
    process(system, handler, lambda failure: sb.Retry(after=10))
    assert (handler.calls, receive_answers(system)) == ([b"x", b"3"], [("Reply", b"answer to 3")])
    system.clock.jump(seconds=9)
    assert process(system, handler, lambda failure: sb.Retry(after=10)) == 0
    system.clock.jump(seconds=1)
    process(system, handler, lambda failure: sb.Retry(after=10))
    assert receive_answers(system) == [("Reply", b"answer to x"), ("Reply", b"answer to 2")]


def test_the_conversation_ends_with_an_error(system: System) -> None:
    send(system, b"x", b"2")
    process(system, Handler(), lambda failure: sb.EndWithError(700, "sold out"))
    ((kind, body),) = receive_answers(system)
    assert (kind, sb.read_error(body)) == ("Error", (700, "sold out"))
    assert list_dead_letters(system) == []


def test_a_dead_letter_is_replayed_and_discarded(system: System) -> None:
    handle = send(system, b"x1", b"2")
    handler = Handler(2)
    process(system, handler, sb.give_up_after(1, sb.SetAside()))
    assert list_dead_letters(system) == [(f"dbo.{STOCK_QUEUE}", b"x1", 2, "ValueError: no such item")]
    assert system.database.set_aside_messages(ORDERS_QUEUE) == []
    (letter,) = system.database.set_aside_messages(STOCK_QUEUE)
    assert (letter.far_service, letter.message_type_name) == (ORDERS, ORDER)
    assert "in __call__" in letter.traceback
    (group,) = system.database.dead_letter_groups()
    assert group[:4] == (f"dbo.{STOCK_QUEUE}", ORDER, "ValueError: no such item", 1)
    assert system.database.dead_letter_groups(ORDERS_QUEUE) == []
    filters = {"error": "NO SUCH", "message_type": ORDER, "limit": 5}
    none = {"error": "other"}, {"message_type": "Reply"}, {"after": letter.set_aside_id}
    assert system.database.set_aside_messages(**filters) == [letter]
    assert [system.database.set_aside_messages(**options) for options in none] == [[], [], []]
    assert system.database.replay_message(letter.set_aside_id) is None
    assert list_dead_letters(system) == []
    process(system, handler, lambda failure: sb.SetAside())
    assert [body for _, body in receive_answers(system)] == [b"answer to 2", b"answer to x1"]

    handler.failures = 1
    system.database.send(handle, ORDER, b"x3")
    process(system, handler, lambda failure: sb.SetAside())
    (letter,) = system.database.set_aside_messages()
    system.database.end_conversation(handle)
    process(system, handler, lambda failure: sb.SetAside())
    again = system.database.replay_message(letter.set_aside_id, body=b"3, mended")
    assert again not in (None, handle)
    process(system, handler, lambda failure: sb.SetAside())
    assert [body for _, body in receive_answers(system)] == [b"answer to 3, mended"]

    handler.failures = 1
    system.database.send(again, ORDER, b"x4")
    process(system, handler, lambda failure: sb.SetAside())
    (letter,) = system.database.set_aside_messages()
    system.database.discard_message(letter.set_aside_id)
    assert list_dead_letters(system) == []
    for verb in (system.database.discard_message, system.database.replay_message):
        with refused(402, "dead-letters list"):
            verb(letter.set_aside_id)


def test_ignore_and_reply_in_the_double(system: System) -> None:
    send(system, b"x1")
    process(system, Handler(), lambda failure: sb.Ignore())
    send(system, b"x2")
    process(system, Handler(), lambda failure: sb.Reply(REPLY, b"later"))
    assert (receive_answers(system), list_dead_letters(system)) == ([("Reply", b"later")], [])


def test_a_verdict_that_fails_becomes_a_dead_letter(system: System) -> None:
    send(system, b"x1", b"2")
    process(system, Handler(), lambda failure: sb.Reply("//test/Nothing", b""))
    assert [body for _, body, _, _ in list_dead_letters(system)] == [b"x1"]
    assert receive_answers(system) == [("Reply", b"answer to 2")]


def test_a_policy_that_fails_gives_way_to_the_default_one(system: System) -> None:
    def failing_policy(failure: sb.Failure) -> sb.Verdict:
        raise LookupError

    send(system, b"x1")
    for pause in (0, 1, 2, 4, 8, 16):
        system.clock.jump(seconds=pause)
        process(system, Handler(), failing_policy)
    assert [(body, failures) for _, body, failures, _ in list_dead_letters(system)] == [(b"x1", 6)]


@pytest.mark.parametrize("options", [{"top": 10}, {"top": 10, "groups": 5}], ids=["top", "groups"])
def test_only_the_failing_message_of_a_batch_becomes_a_dead_letter(system: System, options: dict[str, int]) -> None:
    send(system, b"1", b"x2", b"3")
    send(system, b"4")
    process(system, Handler(), lambda failure: sb.SetAside(), **options)
    assert [body for _, body, _, _ in list_dead_letters(system)] == [b"x2"]
    assert sorted(body or b"" for _, body in receive_answers(system)) == [
        b"answer to 1",
        b"answer to 3",
        b"answer to 4",
    ]


def test_retries_of_a_policy_do_not_count_as_rollbacks(system: System) -> None:
    send(system, b"x")
    process(system, Handler(8), lambda failure: sb.Retry())
    assert receive_answers(system) == [("Reply", b"answer to x")]
