"""Conversations begun by another instance: many in one round, with shared key exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from remote_support import Pair, introduce, leftovers, open_pair
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
    with open_pair(make_instance_url) as pair:
        yield pair


def begin_together(pair: Pair, count: int, text: str = "", *, encryption: bool = True) -> list[UUID]:
    """Begin conversations, each with one message, in one transaction."""
    with pair.west.database.transaction() as transaction:
        handles = [
            transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=encryption) for _ in range(count)
        ]
        for number, handle in enumerate(handles):
            transaction.send(handle, ORDER, f"{text}{number}")
    return handles


def take_exchanges(pair: Pair) -> list[Exchange]:
    """Return the exchanges in the frames of the next round of west."""
    pair.west.round([])
    exchanges = [parse(frame).header.exchange for frame in pair.west.out.frames]
    return [exchange for exchange in exchanges if exchange is not None]


def receive_bodies(pair: Pair) -> list[bytes]:
    return sorted(body for _ in range(CONVERSATION_COUNT) for body in bodies(pair.east.database.receive(STOCK_QUEUE)))


def introduce_capabilities(pair: Pair) -> None:
    """Run a first conversation, which tells each side the capabilities of the other one."""
    begin_together(pair, 1, "first ")
    pair.rounds()
    assert receive_bodies(pair) == [b"first 0"]


def endpoint_states(database: Any) -> Counter[str]:
    return Counter(state for (state,) in query(database, "select state from sys.conversation_endpoints"))


# ---------------------------------------------------------------- shared key exchanges


@pytest.mark.feature(161)
@pytest.mark.parametrize("anonymous", [False, True], ids=["full", "anonymous"])
def test_conversations_of_a_round_share_a_capsule_and_a_signature(pair: Pair, tmp_path: Path, anonymous: bool) -> None:
    introduce(pair, tmp_path, anonymous=anonymous)
    introduce_capabilities(pair)
    begin_together(pair, CONVERSATION_COUNT)
    exchanges = take_exchanges(pair)
    assert (
        len(exchanges)
        == len({exchange.key_id for exchange in exchanges})
        == len({exchange.wrapped for exchange in exchanges})
        == CONVERSATION_COUNT
    )
    assert len({exchange.capsule for exchange in exchanges}) == len({exchange.signature for exchange in exchanges}) == 1
    pair.rounds()
    assert receive_bodies(pair) == sorted(b"%d" % number for number in range(CONVERSATION_COUNT))
    keys = query(pair.east.database, "select first_key, second_key from servicebroker.conversation_keys")
    assert len({first for first, _ in keys}) == len(keys) == CONVERSATION_COUNT + 1
    assert len({second for _, second in keys}) == (1 if anonymous else CONVERSATION_COUNT + 1)


def test_few_private_keys_are_used_for_many_conversations(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    introduce(pair, tmp_path)
    introduce_capabilities(pair)
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
    begin_together(pair, CONVERSATION_COUNT)
    pair.rounds()
    for message in (message for _ in range(CONVERSATION_COUNT) for message in pair.east.database.receive(STOCK_QUEUE)):
        pair.east.database.send(message.conversation_handle, REPLY, "answer")
    pair.rounds()
    # per side: one signed batch, one verified root, one opened exchange key. East has created its key before.
    assert used == {"sign_together": 2, "is_text_signed": 2, "encapsulate": 1, "decapsulate": 2}


@pytest.mark.parametrize("is_secured", [True, False], ids=["secured", "unsecured"])
def test_the_statements_of_a_round_do_not_grow_with_new_conversations(
    pair: Pair, tmp_path: Path, is_secured: bool
) -> None:
    if is_secured:
        introduce(pair, tmp_path)
    counts = []
    for count in (1, 2, CONVERSATION_COUNT):
        begin_together(pair, count, encryption=is_secured)
        pair.west.round([])
        frames = list(pair.west.out.frames)
        pair.west.out.frames.clear()
        take_statement_counts(pair)
        pair.east.round(frames)
        counts.append(take_statement_counts(pair))
        pair.rounds()
    assert counts[1] == counts[2]
    assert counts[2]["remote_opening.insert_with_messages"] == 1
    assert not [name for name in counts[2] if name.startswith("arriving.advance") or name == "arriving.apply_ends"]
    assert endpoint_states(pair.east.database) == {"CO": CONVERSATION_COUNT + 3}


def take_statement_counts(pair: Pair) -> dict[str, int]:
    """Return the executions of each statement at east since the previous call, by name."""
    return {name: calls for name, (calls, _) in counts_of(pair.east.connection).take().items()}


# ---------------------------------------------------------------- brokers of older versions, without batches


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make targets behave as an older version without batches, until `undo`."""
    monkeypatch.setattr(dialog, "CAPABILITIES", (DATED,))
    opened = DialogSecurity._open

    def open_exchange(self: Any, store: Any, database: int, exchange: Exchange, *rest: Any) -> Any:
        return opened(self, store, database, structs.replace(exchange, sides=0, siblings=None), *rest)

    monkeypatch.setattr(DialogSecurity, "_open", open_exchange)
    return monkeypatch


def test_a_target_without_batches_gets_single_exchanges(pair: Pair, tmp_path: Path, older: pytest.MonkeyPatch) -> None:
    introduce(pair, tmp_path)
    introduce_capabilities(pair)
    begin_together(pair, 3)
    exchanges = take_exchanges(pair)
    assert [exchange.siblings for exchange in exchanges] == [None] * 3
    assert len({exchange.capsule for exchange in exchanges}) == len({exchange.signature for exchange in exchanges}) == 3
    pair.rounds()
    assert receive_bodies(pair) == [b"0", b"1", b"2"]
    older.undo()  # upgraded: the next conversation tells the initiator
    begin_together(pair, 1, "new ")
    pair.rounds()
    begin_together(pair, 2, "newer ")
    assert all(exchange.siblings is not None for exchange in take_exchanges(pair))
    pair.rounds()
    assert receive_bodies(pair) == [b"new 0", b"newer 0", b"newer 1"]


def test_conversations_during_an_unanswered_batch_get_single_exchanges(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    introduce_capabilities(pair)
    begin_together(pair, 1)
    assert [exchange.siblings is None for exchange in take_exchanges(pair)] == [False]
    for _ in range(6):  # the frames are lost
        pair.west.out.frames.clear()
        pair.pass_time(9)
        if [exchange.siblings for exchange in take_exchanges(pair)] == [None]:
            break
    else:
        pytest.fail("the other form has not been tried")
    pair.west.out.frames.clear()
    begin_together(pair, 1, "next ")
    assert [exchange.siblings for exchange in take_exchanges(pair)] == [None]


def test_a_downgraded_target_gets_single_exchanges_after_two_attempts(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    introduce(pair, tmp_path)
    introduce_capabilities(pair)
    request.getfixturevalue("older")
    (handle,) = begin_together(pair, 1)
    pair.rounds()
    assert receive_bodies(pair) == []
    for _ in range(3):
        pair.pass_time(9)
        pair.rounds()
        if exchanges := receive_bodies(pair):
            assert exchanges == [b"0"]
            break
    else:
        pytest.fail("it has not arrived")
    assert pair.west.database.get_transmission_status(handle) in ("", UNANSWERED)
    begin_together(pair, 1, "next ")
    assert [exchange.siblings for exchange in take_exchanges(pair)] == [None]
    pair.rounds()
    assert receive_bodies(pair) == [b"next 0"]


def test_an_initiator_without_batches_is_answered(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    introduce(pair, tmp_path)
    monkeypatch.setattr("servicebroker.broker.departures.CAPABILITIES", (DATED,))
    monkeypatch.setattr(DialogSecurity, "_is_batching", lambda self, endpoint: False)
    begin_together(pair, 3)
    pair.rounds()
    for message in (message for _ in range(3) for message in pair.east.database.receive(STOCK_QUEUE)):
        pair.east.database.send(message.conversation_handle, REPLY, "answer")
    pair.east.round([])
    answers = [parse(frame).header.exchange for frame in pair.east.out.frames]
    assert [exchange and exchange.siblings for exchange in answers] == [None] * 3
    pair.rounds()
    assert endpoint_states(pair.west.database) == {"CO": 3}
    assert (
        len(query(pair.west.database, "select from servicebroker.conversation_keys where second_key is not null")) == 3
    )


def test_capabilities_are_sent_until_the_conversation_is_open(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    (handle,) = begin_together(pair, 1)
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


# ---------------------------------------------------------------- special cases


def test_refused_openings_do_not_affect_others_of_the_round(pair: Pair) -> None:
    """Bodies that are not XML are answered with an Error. Ends and fragments are stored like other messages."""
    pair.east.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    contents = ("<a/>", "<no xml", "<b/>", "<c>" + "x" * 100_000 + "</c>", "<d/>")
    with pair.west.database.transaction() as transaction:
        handles = [transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(5)]
        for handle, body in zip(handles, contents, strict=True):
            transaction.send(handle, ORDER, body)
        transaction.end_conversation(handles[4])
    pair.rounds()
    assert endpoint_states(pair.east.database) == {"CO": 3, "ER": 1, "DI": 1}
    assert endpoint_states(pair.west.database)["ER"] == 1


def test_openings_for_a_disabled_queue_wait_beside_it(pair: Pair) -> None:
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    begin_together(pair, 3, encryption=False)
    pair.rounds()
    assert endpoint_states(pair.east.database) == {"SI": 3}
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    assert receive_bodies(pair) == [b"0", b"1", b"2"]
    assert endpoint_states(pair.east.database) == {"CO": 3}


def test_frames_of_one_opening_that_arrive_together_create_one_target(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    (handle,) = begin_together(pair, 1)
    pair.west.round([])
    pair.west.database.send(handle, ORDER, "1")
    pair.west.round([])
    frames = list(pair.west.out.frames)
    pair.west.out.frames.clear()
    pair.east.round([*frames, *frames])
    pair.rounds()
    assert receive_bodies(pair) == [b"0", b"1"]
    assert endpoint_states(pair.east.database) == {"CO": 1}


def test_an_opening_that_returns_to_its_initiator_is_dropped(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The frames come back, for example because of a wrong route."""
    begin_together(pair, 1, encryption=False)
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
