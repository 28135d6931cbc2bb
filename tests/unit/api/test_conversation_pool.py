"""A pool of conversations: which one a send uses, and what ends one, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.api import pool
from servicebroker.api.pool import MAX_ATTEMPTS, ConversationPool
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError

HANDLES = [UUID(int=number) for number in range(1, 20)]


class Transaction:
    """A stand-in for a transaction. SEND fails with the errors that a test sets, in turn."""

    def __init__(self, *errors: BrokerError | None) -> None:
        self.connection = SimpleNamespace(info=SimpleNamespace(backend_pid=77))
        self.errors = list(errors)
        self.calls: list[tuple[Any, ...]] = []
        self.begun = iter(HANDLES)
        self.found: tuple[UUID | None, int] = (None, 0)
        self.end_of_stream: str | None = "EndOfStream"

    def _do(self, call: tuple[Any, ...]) -> Any:
        self.calls.append(call)
        return {"use": self.found, "release": self.end_of_stream}.get(call[0])

    def begin_dialog(self, *names: str, **options: Any) -> UUID:
        self.calls.append(("begin", *names, options["contract"], options["encryption"]))
        return next(self.begun)

    def begin_conversation_timer(self, handle: UUID, seconds: int) -> None:
        self.calls.append(("timer", handle, seconds))

    def send(self, handle: UUID, message_type: str, body: Any = None) -> None:
        self.calls.append(("send", handle, message_type))
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    def send_batch(self, handle: UUID, message_type: str, bodies: Any) -> None:
        self.send(handle, message_type)

    def end_conversation(self, handle: UUID) -> None:
        self.calls.append(("end", handle))
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the steps by their names and arguments, and let each connection be in a transaction."""
    for name, word in (
        ("use_conversation", "use"), ("release", "release"), ("assign", "assign"), ("unassign", "unassign"),
        ("store_answers", "store"), ("next_answer", "next"), ("remove_answer", "remove"), ("record_error", "record"),
    ):  # fmt: skip
        monkeypatch.setattr(pool.recycling, name, lambda *arguments, word=word: (word, *arguments))
    monkeypatch.setattr(pool, "is_idle", lambda connection: False)


def make(**options: Any) -> ConversationPool:
    database: Any = SimpleNamespace(database_id=3, instance=SimpleNamespace(clock=lambda: "now"))
    return ConversationPool(database, "//from", "//to", contract="//c", seconds=60, **options)


def refusal(number: int) -> BrokerError:
    return BrokerError(number, HANDLES[0], "CO")


def words(transaction: Transaction) -> list[str]:
    return [call[0] for call in transaction.calls]


def test_a_send_begins_a_conversation_and_uses_it_again() -> None:
    transaction: Any = Transaction()
    handle = make().send(transaction, "//t", b"1", key="k")
    assert handle == HANDLES[0]
    assert words(transaction) == ["use", "begin", "timer", "assign", "send"]
    assert transaction.calls[0][2:] == ("key k", 1)
    assert transaction.calls[2] == ("timer", handle, 60)
    again: Any = Transaction()
    again.found = HANDLES[5], 4
    assert make().send(again, "//t", b"1", key="k") == HANDLES[5]
    assert words(again) == ["use", "send"]


def test_senders_without_a_key_have_a_conversation_of_their_own_or_take_turns() -> None:
    transaction: Any = Transaction()
    own, turns = make(), make(conversations=2)
    assert [own._slot_key(transaction, None) for _ in range(2)] == ["session 77"] * 2
    assert [turns._slot_key(transaction, None) for _ in range(3)] == ["turn 0", "turn 1", "turn 0"]
    assert turns._slot_key(transaction, "turn 0") == "key turn 0"


@pytest.mark.parametrize("number", [8426, 8429])
def test_an_unusable_conversation_is_replaced(number: int) -> None:
    transaction: Any = Transaction(refusal(number))
    transaction.found = HANDLES[5], 4
    assert make().send_batch(transaction, "//t", [b"1", b"2"], key="k") == HANDLES[0]
    assert transaction.calls[2] == ("unassign", HANDLES[5], 2)
    assert words(transaction) == ["use", "send", "unassign", "begin", "timer", "assign", "send"]


def test_a_pool_gives_up_after_ten_conversations() -> None:
    transaction: Any = Transaction(*[refusal(8429)] * MAX_ATTEMPTS)
    with pytest.raises(InstanceError, match="10 conversations"):
        make().send(transaction, "//t", b"1")
    assert words(transaction).count("send") == MAX_ATTEMPTS
    other: Any = Transaction(refusal(8432))
    with pytest.raises(sb.BrokerError):
        make().send(other, "//t", b"1")
    assert words(other).count("send") == 1


@pytest.mark.parametrize(("sent", "has_ended"), [(4, False), (5, True), (6, True)])
def test_a_conversation_ends_after_its_messages(sent: int, has_ended: bool) -> None:
    transaction: Any = Transaction()
    transaction.found = HANDLES[5], sent
    make(messages=5).send(transaction, "//t", b"1")
    ends = [("release", HANDLES[5]), ("send", HANDLES[5], "EndOfStream")]
    assert transaction.calls[2:] == (ends if has_ended else [])
    first: Any = Transaction()
    make(messages=2).send_batch(first, "//t", [b"1", b"2"])
    assert words(first)[-2:] == ["release", "send"]


@pytest.mark.parametrize(
    ("end_of_stream", "error", "calls"),
    [("E", None, 2), ("E", 8426, 2), ("E", 8429, 2), (None, None, 1), ("E", 8432, 2)],
)
def test_a_stream_is_ended_once(end_of_stream: str | None, error: int | None, calls: int) -> None:
    transaction: Any = Transaction(refusal(error) if error else None)
    transaction.end_of_stream = end_of_stream
    if error == 8432:
        with pytest.raises(BrokerError):
            make()._end_stream(transaction, HANDLES[0])
    else:
        make()._end_stream(transaction, HANDLES[0])
    assert words(transaction) == ["release", "send"][:calls]


def test_a_pool_sends_in_a_transaction_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "is_idle", lambda connection: True)
    transaction: Any = Transaction()
    with pytest.raises(InstanceError, match="inside a transaction"):
        make().send(transaction, "//t", b"1")
    assert transaction.calls == []


# ---------------------------------------------------------------- messages that come back


def message(kind: str, handle: UUID = HANDLES[0], name: str = "//t") -> Any:
    flags = {word: kind == word for word in ("timer", "end_dialog", "error")}
    return SimpleNamespace(
        conversation_handle=handle, message_type_name=name, **{f"is_{word}": flag for word, flag in flags.items()}
    )


def test_only_system_messages_come_back() -> None:
    transaction: Any = Transaction()
    known = [message(kind) for kind in ("timer", "end_dialog", "error")]
    make().note(transaction, known)
    assert transaction.calls == [("store", 3, known)]
    for others in ([message("other")], [*known, message("other")]):
        with pytest.raises(InstanceError, match="pass only DialogTimer, EndDialog and Error"):
            make().note(transaction, others)
    assert len(transaction.calls) == 1


@pytest.mark.parametrize(
    ("type_id", "calls"),
    [
        (names.DIALOG_TIMER_ID, ["next", "release", "send", "remove"]),
        (names.END_DIALOG_ID, ["next", "release", "end", "remove"]),
        (names.ERROR_ID, ["next", "release", "record", "end", "remove"]),
    ],
)
@pytest.mark.parametrize("error", [None, 8426, 8427])
def test_each_answer_is_handled_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, type_id: int, calls: list[str], error: int | None
) -> None:
    transaction: Any = Transaction(None if error is None else refusal(error))
    answer = SimpleNamespace(
        message_type_id=type_id, conversation_handle=HANDLES[0], message_body=None, from_service="//from"
    )
    monkeypatch.setattr(pool, "read_error", lambda body: (5, "no"))
    made = make()

    @contextmanager
    def begin() -> Iterator[Any]:
        yield transaction

    made.database.transaction = begin  # type: ignore[method-assign]
    monkeypatch.setattr(
        transaction, "_do", lambda call: transaction.calls.append(call) or {"next": answer, "release": "E"}.get(call[0])
    )
    is_refused = error == 8427
    if is_refused:
        with pytest.raises(BrokerError):
            made._recycle_one()
    else:
        assert made._recycle_one()
    assert words(transaction) == (calls[:-1] if is_refused else calls)


def test_a_target_ends_each_conversation_after_its_other_messages() -> None:
    transaction: Any = Transaction()
    handled: list[list[Any]] = []
    run = ConversationPool.target(lambda tx, messages: handled.append(messages), end_of_stream="E")
    first, second, third = HANDLES[:3]
    others = [message("other", first), message("other", second)]
    ends = [message("other", first, "E"), message("end_dialog", first), message("error", third)]
    run(transaction, [others[0], *ends, others[1]])
    assert handled == [others]
    assert transaction.calls == [("end", first), ("end", third)]
    run(transaction, ends[2:])
    assert len(handled) == 1  # no call without messages
