"""Policies of failures: the engine and the double do the same with each verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import servicebroker as sb
from servicebroker.testing import Clock
from servicebroker.testing import open as open_double
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, define_standard_set, refused


class Place(NamedTuple):
    """A database of either kind, and the clock of its instance."""

    database: Any
    clock: Clock


@pytest.fixture(params=["engine", "double"])
def place(request: pytest.FixtureRequest, make_instance_url: Callable[..., str]) -> Iterator[Place]:
    clock = Clock()
    opened: Any
    if request.param == "engine":
        opened = sb.open(make_instance_url(), clock=clock, upkeep=None)
    else:
        opened = open_double(clock=clock)
    with opened as instance:
        database = instance.database("Test", create=True)
        define_standard_set(database)
        yield Place(database, clock)


class Handler:
    """Fails for bodies that begin with x, or for so many calls, and answers others."""

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


def send(place: Place, *sent: bytes) -> Any:
    handle = place.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for body in sent:
        place.database.send(handle, ORDER, body)
    return handle


def answers(place: Place) -> list[tuple[str, bytes | None]]:
    found = []
    while messages := place.database.receive(ORDERS_QUEUE):
        found += [(message.message_type_name.rpartition("/")[2], message.message_body) for message in messages]
    return found


def letters(place: Place) -> list[tuple[str, bytes | None, int, str]]:
    return [(one.queue, one.message_body, one.failures, one.error) for one in place.database.set_aside_messages()]


def process(place: Place, handler: Handler, policy: sb.Policy, **options: Any) -> int:
    done: int = place.database.process(STOCK_QUEUE, handler, poison=policy, **options)
    return done


def test_a_retry_that_succeeds(place: Place) -> None:
    send(place, b"x", b"2")
    handler, counts = Handler(2), []

    def again(failure: sb.Failure) -> sb.Verdict:
        counts.append((failure.count, failure.first_error, str(failure.error)))
        return sb.Retry()

    process(place, handler, again)
    assert handler.calls == [b"x", b"x", b"x", b"2"]
    assert counts == [(1, "ValueError: no such item", "no such item"), (2, "ValueError: no such item", "no such item")]
    assert answers(place) == [("Reply", b"answer to x"), ("Reply", b"answer to 2")]


def test_each_delivery_is_counted(place: Place) -> None:
    send(place, b"x", b"2")
    assert process(place, Handler(2), lambda failure: sb.Retry()) == 4
    send(place, b"x", b"2", b"3")
    assert process(place, Handler(1), lambda failure: sb.Ignore(), top=3) == 6


def test_numbers_of_dead_letters_are_checked(place: Place) -> None:
    assert place.database.set_aside_messages(after=0) == []
    for after in (False, -1, "1", 0.0, None):
        with refused(402, "after"):
            place.database.set_aside_messages(after=after)


def test_a_retry_waits_for_its_time_and_others_do_not(place: Place) -> None:
    send(place, b"x", b"2")
    send(place, b"3")
    handler = Handler(1)
    process(place, handler, lambda failure: sb.Retry(after=10))
    assert (handler.calls, answers(place)) == ([b"x", b"3"], [("Reply", b"answer to 3")])
    place.clock.jump(seconds=9)
    assert process(place, handler, lambda failure: sb.Retry(after=10)) == 0
    place.clock.jump(seconds=1)
    process(place, handler, lambda failure: sb.Retry(after=10))
    assert answers(place) == [("Reply", b"answer to x"), ("Reply", b"answer to 2")]


def test_the_conversation_ends_with_an_error(place: Place) -> None:
    send(place, b"x", b"2")
    process(place, Handler(), lambda failure: sb.EndWithError(700, "sold out"))
    ((kind, body),) = answers(place)
    assert (kind, sb.read_error(body)) == ("Error", (700, "sold out"))
    assert letters(place) == []


def test_a_dead_letter_is_replayed_and_discarded(place: Place) -> None:
    handle = send(place, b"x1", b"2")
    handler = Handler(2)
    process(place, handler, sb.give_up_after(1, sb.SetAside()))
    assert letters(place) == [(f"dbo.{STOCK_QUEUE}", b"x1", 2, "ValueError: no such item")]
    assert place.database.set_aside_messages(ORDERS_QUEUE) == []
    (letter,) = place.database.set_aside_messages(STOCK_QUEUE)
    assert (letter.far_service, letter.message_type_name) == (ORDERS, ORDER)
    assert "in __call__" in letter.traceback
    (group,) = place.database.dead_letter_groups()
    assert group[:4] == (f"dbo.{STOCK_QUEUE}", ORDER, "ValueError: no such item", 1)
    assert place.database.dead_letter_groups(ORDERS_QUEUE) == []
    found = {"error": "NO SUCH", "message_type": ORDER, "limit": 5}
    none = {"error": "other"}, {"message_type": "Reply"}, {"after": letter.set_aside_id}
    assert place.database.set_aside_messages(**found) == [letter]
    assert [place.database.set_aside_messages(**options) for options in none] == [[], [], []]
    assert place.database.replay_message(letter.set_aside_id) is None
    assert letters(place) == []
    process(place, handler, lambda failure: sb.SetAside())
    assert [body for _, body in answers(place)] == [b"answer to 2", b"answer to x1"]

    handler.failures = 1
    place.database.send(handle, ORDER, b"x3")
    process(place, handler, lambda failure: sb.SetAside())
    (letter,) = place.database.set_aside_messages()
    place.database.end_conversation(handle)
    process(place, handler, lambda failure: sb.SetAside())
    again = place.database.replay_message(letter.set_aside_id, body=b"3, mended")
    assert again not in (None, handle)
    process(place, handler, lambda failure: sb.SetAside())
    assert [body for _, body in answers(place)] == [b"answer to 3, mended"]

    handler.failures = 1
    place.database.send(again, ORDER, b"x4")
    process(place, handler, lambda failure: sb.SetAside())
    (letter,) = place.database.set_aside_messages()
    place.database.discard_message(letter.set_aside_id)
    assert letters(place) == []
    for verb in (place.database.discard_message, place.database.replay_message):
        with refused(402, "set aside"):
            verb(letter.set_aside_id)


def test_what_is_ignored_or_answered(place: Place) -> None:
    send(place, b"x1")
    process(place, Handler(), lambda failure: sb.Ignore())
    send(place, b"x2")
    process(place, Handler(), lambda failure: sb.Reply(REPLY, b"later"))
    assert (answers(place), letters(place)) == ([("Reply", b"later")], [])


def test_a_verdict_that_fails_becomes_a_dead_letter(place: Place) -> None:
    send(place, b"x1", b"2")
    process(place, Handler(), lambda failure: sb.Reply("//test/Nothing", b""))
    assert [body for _, body, _, _ in letters(place)] == [b"x1"]
    assert answers(place) == [("Reply", b"answer to 2")]


def test_a_policy_that_fails_gives_way_to_the_default_one(place: Place) -> None:
    def broken(failure: sb.Failure) -> sb.Verdict:
        raise LookupError

    send(place, b"x1")
    for pause in (0, 1, 2, 4, 8, 16):
        place.clock.jump(seconds=pause)
        process(place, Handler(), broken)
    assert [(body, failures) for _, body, failures, _ in letters(place)] == [(b"x1", 6)]


@pytest.mark.parametrize("options", [{"top": 10}, {"top": 10, "groups": 5}], ids=["top", "groups"])
def test_of_a_batch_only_what_fails_is_set_aside(place: Place, options: dict[str, int]) -> None:
    send(place, b"1", b"x2", b"3")
    send(place, b"4")
    process(place, Handler(), lambda failure: sb.SetAside(), **options)
    assert [body for _, body, _, _ in letters(place)] == [b"x2"]
    assert sorted(body or b"" for _, body in answers(place)) == [b"answer to 1", b"answer to 3", b"answer to 4"]


def test_nothing_of_it_counts_as_poison(place: Place) -> None:
    send(place, b"x")
    process(place, Handler(8), lambda failure: sb.Retry())
    assert answers(place) == [("Reply", b"answer to x")]
