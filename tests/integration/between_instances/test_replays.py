"""Replays of a conversation's first message after both endpoints were removed, also with different clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from remote_support import Pair, Site, introduce, leftovers, paired
from servicebroker.broker.departures import Frames
from servicebroker.engine.conversation.endpoints import remove_closed
from servicebroker.model.remedies import after_status
from servicebroker.model.states import REPLAY_PROTECTION
from servicebroker.model.waiting import CLOCK_DIFFERS
from servicebroker.protocol.envelope import CAPABILITIES, Header, parse
from servicebroker.store.running import run
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, Clock, bodies, query

MINUTE_S = 60.0  # seconds


@pytest.fixture
def clock() -> Clock:
    """The clock of west; east has one of its own."""
    return Clock()


@pytest.fixture
def pair(make_instance_url: Callable[..., str], clock: Clock) -> Iterator[Pair]:
    with paired(make_instance_url, clock) as pair:
        yield pair


def send(pair: Pair, text: str) -> Any:
    """Begin a conversation with one message."""
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    pair.west.database.send(handle, ORDER, text)
    return handle


def talked(pair: Pair, text: str = "one") -> list[bytes]:
    """A conversation that is over on both sides; returns the frames that a forwarder has kept of its beginning."""
    handle = send(pair, text)
    pair.west.round([])
    kept = list(pair.west.out.frames)
    arrive(pair, text)
    over(pair, handle)
    return kept


def over(pair: Pair, handle: Any) -> None:
    """Both sides end."""
    pair.west.database.end_conversation(handle)
    pair.rounds()
    (end,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.end_conversation(end.conversation_handle)
    pair.rounds()
    assert query(pair.east.database, "select state from sys.conversation_endpoints") == [("CD",)]


def arrive(pair: Pair, text: str) -> None:
    """Send what waits, again after a few seconds if need be, until the message is there."""
    for _ in range(3):
        pair.rounds()
        if messages := pair.east.database.receive(STOCK_QUEUE):
            assert bodies(messages) == [text.encode()]
            return
        pair.pass_time(5)
    pytest.fail("the message has not arrived")


def wait(pair: Pair, **by: float) -> None:
    """Let time pass for both sides, by all of their clocks."""
    passed = timedelta(**by)
    for clock in (pair.west.clock, pair.east.clock):
        clock.jump(seconds=passed.total_seconds())
    pair.pass_time(passed.total_seconds())


def clean_up(pair: Pair) -> None:
    """Remove closed endpoints whose time is over, as upkeep does."""
    for site in (pair.west, pair.east):
        with site.instance.connection() as connection:
            run(connection, remove_closed(site.clock()))
        assert leftovers(site) == {}


def bring(pair: Pair, frames: list[bytes]) -> None:
    """Somebody between the two brings frames again."""
    pair.east.relay.forget()
    pair.east.round(frames)
    pair.rounds()


def without_date(frame: bytes) -> bytes:
    """A frame as a version without dates would have made it, by somebody who has not the key."""
    envelope = parse(frame)
    opening = envelope.header.opening
    assert opening is not None
    stripped = structs.replace(envelope.header, opening=structs.replace(opening, sealed_at=None, capabilities=()))
    clear = msgspec.msgpack.Encoder(uuid_format="bytes").encode(stripped)
    return b"".join((len(clear).to_bytes(2, "big"), clear, envelope.sealed))


def header(site: Site) -> Header:
    """The header of the only frame that a site has sent."""
    (frame,) = site.out.frames
    return parse(frame).header


@pytest.mark.feature(99)
@pytest.mark.parametrize("anonymous", [False, True], ids=["full", "anonymous"])
def test_an_opening_that_is_brought_again_when_both_sides_have_gone_opens_nothing(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, anonymous: bool
) -> None:
    introduce(pair, tmp_path, anonymous=anonymous)
    kept = talked(pair)
    wait(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    with caplog.at_level("INFO", "servicebroker.broker"):
        bring(pair, kept)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert leftovers(pair.east) == leftovers(pair.west) == {}
    assert "it is a replay, or one of the clocks is wrong" in caplog.text


# Of the initiator's clock against the target's, in minutes.
DIFFERENCES = [-10_000, -25, -15, -10, -9, 0, 9, 10, 11, 25, 10_000]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("minutes", DIFFERENCES)
def test_clocks_that_differ_lose_no_message_and_let_none_come_twice(
    pair: Pair, tmp_path: Path, clock: Clock, minutes: int
) -> None:
    introduce(pair, tmp_path, start_date=clock() - timedelta(days=30))
    clock.jump(minutes=minutes)
    kept = talked(pair)
    wait(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    bring(pair, kept)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert leftovers(pair.east) == {}


@pytest.mark.parametrize("minutes", [-25, 25])
def test_it_says_that_the_clocks_differ_until_the_target_has_it(
    pair: Pair, tmp_path: Path, clock: Clock, minutes: int
) -> None:
    introduce(pair, tmp_path, start_date=clock() - timedelta(days=30))
    clock.jump(minutes=minutes)
    handle = send(pair, "one")
    pair.west.database.send(handle, ORDER, "x" * 3_000_000)  # more than a window: the rest waits
    pair.rounds(2)
    assert pair.west.database.get_transmission_status(handle) == CLOCK_DIFFERS
    assert "Set the clock" in after_status(CLOCK_DIFFERS)
    pair.pass_time(5)
    pair.rounds(2)
    assert pair.west.database.get_transmission_status(handle) == ""
    assert pair.east.database.receive(STOCK_QUEUE)[0].message_body == b"one"


def test_what_was_sealed_by_a_clock_that_is_ahead_is_refused_also_if_it_has_not_come_before(
    pair: Pair, tmp_path: Path, clock: Clock
) -> None:
    """The forwarder lets one attempt through, and keeps the later ones until the initiator is told the time."""
    introduce(pair, tmp_path, start_date=clock() - timedelta(days=30))
    clock.jump(minutes=25)
    handle = send(pair, "one")
    pair.rounds(1)
    (answer,) = pair.east.out.frames
    pair.east.out.frames.clear()
    kept = []
    for _ in range(3):
        wait(pair, seconds=70)
        pair.west.round([])
        kept += pair.west.out.frames
        pair.west.out.frames.clear()
    pair.west.round([answer])
    wait(pair, seconds=70)
    arrive(pair, "one")
    over(pair, handle)
    for _ in range(60):
        wait(pair, minutes=1)
        with pair.east.instance.connection() as connection:
            run(connection, remove_closed(pair.east.clock()))
        bring(pair, kept)
        assert pair.east.database.receive(STOCK_QUEUE) == []


def test_a_message_that_waited_for_hours_is_sealed_anew(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = send(pair, "one")
    pair.west.round([])
    kept = list(pair.west.out.frames)
    pair.west.out.frames.clear()
    for _ in range(5):
        wait(pair, hours=1)
        pair.west.round([])
        pair.west.out.frames.clear()
    bring(pair, kept)  # the first copy comes hours late: of no use any more
    assert pair.east.database.receive(STOCK_QUEUE) == []
    wait(pair, minutes=2)
    arrive(pair, "one")
    assert pair.west.database.get_transmission_status(handle) == ""


def test_a_frame_says_when_it_was_sealed_until_the_conversation_is_open(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = send(pair, "one")
    pair.west.round([])
    opening = header(pair.west).opening
    assert opening is not None
    assert opening.capabilities == CAPABILITIES
    assert opening.sealed_at == pytest.approx(pair.west.clock().timestamp(), abs=30)
    pair.west.out.frames.clear()
    wait(pair, minutes=1)
    pair.west.round([])
    again = header(pair.west).opening
    assert again is not None
    assert again.sealed_at == pytest.approx(opening.sealed_at + MINUTE_S, abs=2)
    arrive(pair, "one")
    pair.west.database.send(handle, ORDER, "two")
    pair.west.round([])
    assert header(pair.west).opening is None


def test_an_unsecured_opening_has_no_date(pair: Pair) -> None:
    """A date would prove nothing: a forwarder can write any date into such a frame."""
    send(pair, "one")
    pair.west.round([])
    opening = header(pair.west).opening
    assert opening is not None
    assert (opening.sealed_at, opening.capabilities) == (None, ())
    arrive(pair, "one")


# ---------------------------------------------------------------- brokers of versions without dates


@pytest.fixture
def undated(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """West is of a version that does not say when an opening was sealed, until this is undone."""
    monkeypatch.setattr(Frames, "_dated", lambda self, entry, header: header)
    return monkeypatch


def test_a_broker_of_an_older_version_is_understood(pair: Pair, tmp_path: Path, undated: pytest.MonkeyPatch) -> None:
    introduce(pair, tmp_path)
    for text in ("one", "two"):
        talked(pair, text)
        wait(pair, seconds=REPLAY_PROTECTION.total_seconds())
        clean_up(pair)
    assert query(pair.east.database, "select * from servicebroker.known_brokers") == []


def test_what_a_broker_has_sealed_before_its_upgrade_opens_nothing_after_it(
    pair: Pair, tmp_path: Path, undated: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(pair, tmp_path)
    kept = talked(pair, "old")
    wait(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    undated.undo()
    talked(pair, "new")
    wait(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    with caplog.at_level("INFO", "servicebroker.broker"):
        bring(pair, kept)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert "it does not say when it was sealed" in caplog.text
    pair.east.database.drop_certificate("orders!")  # and with it what was told under it
    assert query(pair.east.database, "select * from servicebroker.known_brokers") == []


def test_a_date_that_is_taken_out_breaks_the_seal(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    send(pair, "one")
    pair.west.round([])
    (frame,) = pair.west.out.frames
    pair.west.out.frames.clear()
    bring(pair, [without_date(frame)])
    assert pair.east.database.receive(STOCK_QUEUE) == []
    bring(pair, [frame])
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"one"]
