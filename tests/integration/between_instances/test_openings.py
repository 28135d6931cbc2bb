"""Conversations begun by another instance: many in one round, with shared key exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from remote_support import Pair, introduce, leftovers, paired
from servicebroker.broker import exchanges
from servicebroker.broker.dialog_security import DialogSecurity
from servicebroker.model.waiting import UNANSWERED
from servicebroker.protocol import dialog, envelope
from servicebroker.protocol.envelope import BATCHED, DATED, Exchange, parse
from servicebroker.store.statement_counts import counts_of
from support import CONTRACT, ORDER, ORDERS, REPLY, STOCK, STOCK_QUEUE, bodies, query

CONVERSATION_COUNT = 60


@pytest.fixture
def pair(make_instance_url: Callable[..., str]) -> Iterator[Pair]:
    with paired(make_instance_url) as pair:
        yield pair


def begin(pair: Pair, count: int, text: str = "", *, encryption: bool = True) -> list[UUID]:
    """Begin conversations with a message each, in one transaction."""
    with pair.west.database.transaction() as transaction:
        handles = [
            transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=encryption) for _ in range(count)
        ]
        for number, handle in enumerate(handles):
            transaction.send(handle, ORDER, f"{text}{number}")
    return handles


def exchanged(pair: Pair) -> list[Exchange]:
    """Return the exchanges in the frames of the next round of west."""
    pair.west.round([])
    found = [parse(frame).header.exchange for frame in pair.west.out.frames]
    return [one for one in found if one is not None]


def received(pair: Pair) -> list[bytes]:
    return sorted(body for _ in range(CONVERSATION_COUNT) for body in bodies(pair.east.database.receive(STOCK_QUEUE)))


def acquaint(pair: Pair) -> None:
    """A first conversation, by which each side learns what the other one can do."""
    begin(pair, 1, "first ")
    pair.rounds()
    assert received(pair) == [b"first 0"]


def states(database: Any) -> Counter[str]:
    return Counter(state for (state,) in query(database, "select state from sys.conversation_endpoints"))


# ---------------------------------------------------------------- what they share


@pytest.mark.feature(161)
@pytest.mark.parametrize("anonymous", [False, True], ids=["full", "anonymous"])
def test_many_that_begin_at_once_share_a_capsule_and_a_signature_and_no_session_key(
    pair: Pair, tmp_path: Path, anonymous: bool
) -> None:
    introduce(pair, tmp_path, anonymous=anonymous)
    acquaint(pair)
    begin(pair, CONVERSATION_COUNT)
    found = exchanged(pair)
    assert len(found) == len({one.key_id for one in found}) == len({one.wrapped for one in found}) == CONVERSATION_COUNT
    assert len({one.capsule for one in found}) == len({one.signature for one in found}) == 1
    pair.rounds()
    assert received(pair) == sorted(b"%d" % number for number in range(CONVERSATION_COUNT))
    keys = query(pair.east.database, "select first_key, second_key from servicebroker.conversation_keys")
    assert len({first for first, _ in keys}) == len(keys) == CONVERSATION_COUNT + 1
    assert len({second for _, second in keys}) == (1 if anonymous else CONVERSATION_COUNT + 1)


def test_few_private_keys_are_used_for_many_conversations(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    introduce(pair, tmp_path)
    acquaint(pair)
    used: Counter[str] = Counter()
    for name in (
        "sign",
        "sign_together",
        "is_signed",
        "is_text_signed",
        "decapsulate",
        "encapsulate",
        "wrap",
        "unwrap",
    ):
        function = getattr(exchanges, name)

        def count(*arguments: Any, name: str = name, function: Any = function) -> Any:
            used[name] += 1
            return function(*arguments)

        monkeypatch.setattr(exchanges, name, count)
    begin(pair, CONVERSATION_COUNT)
    pair.rounds()
    for message in (message for _ in range(CONVERSATION_COUNT) for message in pair.east.database.receive(STOCK_QUEUE)):
        pair.east.database.send(message.conversation_handle, REPLY, "answer")
    pair.rounds()
    # each side: one batch signed, one root verified, one key exchange key opened; east has made its own before
    assert used == {"sign_together": 2, "is_text_signed": 2, "encapsulate": 1, "decapsulate": 2}


@pytest.mark.parametrize("is_secured", [True, False], ids=["secured", "unsecured"])
def test_the_statements_of_a_round_do_not_grow_with_what_begins(pair: Pair, tmp_path: Path, is_secured: bool) -> None:
    if is_secured:
        introduce(pair, tmp_path)
    counts = []
    for count in (1, 2, CONVERSATION_COUNT):
        begin(pair, count, encryption=is_secured)
        pair.west.round([])
        frames = list(pair.west.out.frames)
        pair.west.out.frames.clear()
        taken(pair)
        pair.east.round(frames)
        counts.append(taken(pair))
        pair.rounds()
    assert counts[1] == counts[2]
    assert counts[2]["remote_opening.insert_with_messages"] == 1
    assert not [name for name in counts[2] if name.startswith("arriving.advance") or name == "arriving.take_ends"]
    assert states(pair.east.database) == {"CO": CONVERSATION_COUNT + 3}


def taken(pair: Pair) -> dict[str, int]:
    """The statements that were run at east since the last time, by name."""
    return {name: calls for name, (calls, _) in counts_of(pair.east.connection).take().items()}


# ---------------------------------------------------------------- brokers of versions without batches


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Targets are of a version without batches, until this is undone."""
    monkeypatch.setattr(dialog, "CAPABILITIES", (DATED,))
    opened = DialogSecurity._open

    def open_exchange(self: Any, store: Any, database: int, exchange: Exchange, *rest: Any) -> Any:
        return opened(self, store, database, structs.replace(exchange, sides=0, siblings=None), *rest)

    monkeypatch.setattr(DialogSecurity, "_open", open_exchange)
    return monkeypatch


def test_a_target_without_batches_gets_what_it_knows(pair: Pair, tmp_path: Path, older: pytest.MonkeyPatch) -> None:
    introduce(pair, tmp_path)
    acquaint(pair)
    begin(pair, 3)
    found = exchanged(pair)
    assert [one.siblings for one in found] == [None] * 3
    assert len({one.capsule for one in found}) == len({one.signature for one in found}) == 3
    pair.rounds()
    assert received(pair) == [b"0", b"1", b"2"]
    older.undo()  # upgraded; the next conversation shows that
    begin(pair, 1, "new ")
    pair.rounds()
    begin(pair, 2, "newer ")
    assert all(one.siblings is not None for one in exchanged(pair))
    pair.rounds()
    assert received(pair) == [b"new 0", b"newer 0", b"newer 1"]


def test_while_a_batch_is_unanswered_the_next_conversation_gets_the_other_form(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    acquaint(pair)
    begin(pair, 1)
    assert [one.siblings is None for one in exchanged(pair)] == [False]
    for _ in range(6):  # the frames are lost
        pair.west.out.frames.clear()
        pair.pass_time(9)
        if [one.siblings for one in exchanged(pair)] == [None]:
            break
    else:
        pytest.fail("the other form has not been tried")
    pair.west.out.frames.clear()
    begin(pair, 1, "next ")
    assert [one.siblings for one in exchanged(pair)] == [None]


def test_a_target_that_is_of_an_older_version_again_gets_the_other_form_after_two_attempts(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    introduce(pair, tmp_path)
    acquaint(pair)
    request.getfixturevalue("older")
    (handle,) = begin(pair, 1)
    pair.rounds()
    assert received(pair) == []
    for _ in range(3):
        pair.pass_time(9)
        pair.rounds()
        if found := received(pair):
            assert found == [b"0"]
            break
    else:
        pytest.fail("it has not arrived")
    assert pair.west.database.get_transmission_status(handle) in ("", UNANSWERED)
    begin(pair, 1, "next ")
    assert [one.siblings for one in exchanged(pair)] == [None]
    pair.rounds()
    assert received(pair) == [b"next 0"]


def test_an_initiator_without_batches_is_understood_and_answered(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    introduce(pair, tmp_path)
    monkeypatch.setattr("servicebroker.broker.departures.CAPABILITIES", (DATED,))
    monkeypatch.setattr(DialogSecurity, "_is_batching", lambda self, endpoint: False)
    begin(pair, 3)
    pair.rounds()
    for message in (message for _ in range(3) for message in pair.east.database.receive(STOCK_QUEUE)):
        pair.east.database.send(message.conversation_handle, REPLY, "answer")
    pair.east.round([])
    answers = [parse(frame).header.exchange for frame in pair.east.out.frames]
    assert [one and one.siblings for one in answers] == [None] * 3
    pair.rounds()
    assert states(pair.west.database) == {"CO": 3}
    assert (
        len(query(pair.west.database, "select from servicebroker.conversation_keys where second_key is not null")) == 3
    )


def test_capabilities_are_told_only_until_the_conversation_is_known_to_be_open(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    (handle,) = begin(pair, 1)
    pair.west.round([])
    frames = list(pair.west.out.frames)
    pair.west.out.frames.clear()
    pair.east.round(frames)
    (answer,) = pair.east.out.frames
    assert parse(answer).header.capabilities == envelope.CAPABILITIES == (DATED, BATCHED)
    pair.rounds()
    pair.west.database.send(handle, ORDER, "second")
    pair.west.round([])
    frames = list(pair.west.out.frames)
    pair.west.out.frames.clear()
    pair.east.round(frames)
    assert [parse(frame).header.capabilities for frame in pair.east.out.frames] == [()]


# ---------------------------------------------------------------- what is not that simple


def test_some_of_a_round_are_refused_and_the_others_begin(pair: Pair) -> None:
    """Bodies that are no XML are answered with an Error; an end and fragments take the way of all messages."""
    pair.east.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    contents = ("<a/>", "<no xml", "<b/>", "<c>" + "x" * 100_000 + "</c>", "<d/>")
    with pair.west.database.transaction() as transaction:
        handles = [transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(5)]
        for handle, body in zip(handles, contents, strict=True):
            transaction.send(handle, ORDER, body)
        transaction.end_conversation(handles[4])
    pair.rounds()
    assert states(pair.east.database) == {"CO": 3, "ER": 1, "DI": 1}
    assert states(pair.west.database)["ER"] == 1


def test_a_queue_that_is_off_keeps_what_begins_beside_it(pair: Pair) -> None:
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    begin(pair, 3, encryption=False)
    pair.rounds()
    assert states(pair.east.database) == {"SI": 3}
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    assert received(pair) == [b"0", b"1", b"2"]
    assert states(pair.east.database) == {"CO": 3}


def test_several_frames_of_one_conversation_in_the_round_that_opens_it(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    (handle,) = begin(pair, 1)
    pair.west.round([])
    pair.west.database.send(handle, ORDER, "1")
    pair.west.round([])
    frames = list(pair.west.out.frames)
    pair.west.out.frames.clear()
    pair.east.round([*frames, *frames])
    pair.rounds()
    assert received(pair) == [b"0", b"1"]
    assert states(pair.east.database) == {"CO": 1}


def test_a_conversation_of_which_both_sides_are_here_begins_nothing(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Its frames come back, as by a route that was turned round."""
    begin(pair, 1, encryption=False)
    pair.west.round([])
    frames = list(pair.west.out.frames)
    pair.rounds()
    pair.east.database.end_conversation(pair.east.database.receive(STOCK_QUEUE)[0].conversation_handle)
    pair.rounds()
    pair.east.relay.forget()
    before = leftovers(pair.east)
    pair.east.round(frames)
    pair.rounds()
    assert leftovers(pair.east) == before
