"""Replays of a conversation's first message after both endpoints were removed, also with different clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from remote_support import Pair, Site, introduce, leftovers, open_pair
from servicebroker.broker.departures import Frames
from servicebroker.engine.conversation.endpoints import remove_closed_endpoints
from servicebroker.model.remedies import after_status
from servicebroker.model.states import REPLAY_PROTECTION
from servicebroker.model.waiting import CLOCK_DIFFERS
from servicebroker.protocol.envelope import CAPABILITIES, Header, parse
from servicebroker.store.running import run
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, Clock, bodies, query

MINUTE_S = 60.0


@pytest.fixture
def clock() -> Clock:
    """The clock of west. East has a separate clock."""
    return Clock()


@pytest.fixture
def pair(make_instance_url: Callable[..., str], clock: Clock) -> Iterator[Pair]:
    with open_pair(make_instance_url, clock) as pair:
        yield pair


def send(pair: Pair, text: str) -> Any:
    """Begin a conversation with one message."""
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    pair.west.database.send(handle, ORDER, text)
    return handle


def run_conversation(pair: Pair, text: str = "one") -> list[bytes]:
    """Run a conversation to its end on both sides. Return its first frames, as a forwarder could keep them."""
    handle = send(pair, text)
    pair.west.round([])
    kept_frames = list(pair.west.out.frames)
    arrive(pair, text)
    end_both_sides(pair, handle)
    return kept_frames


def end_both_sides(pair: Pair, handle: Any) -> None:
    """End the conversation on both sides."""
    pair.west.database.end_conversation(handle)
    pair.rounds()
    (end,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.end_conversation(end.conversation_handle)
    pair.rounds()
    assert query(pair.east.database, "select state from sys.conversation_endpoints") == [("CD",)]


def arrive(pair: Pair, text: str) -> None:
    """Run rounds until the message has arrived, with a few seconds between attempts."""
    for _ in range(3):
        pair.rounds()
        if messages := pair.east.database.receive(STOCK_QUEUE):
            assert bodies(messages) == [text.encode()]
            return
        pair.pass_time(5)
    pytest.fail("the message has not arrived")


def advance_clocks(pair: Pair, **by: float) -> None:
    """Advance the wall clock and the relay's timer of both sides."""
    passed = timedelta(**by)
    for clock in (pair.west.clock, pair.east.clock):
        clock.jump(seconds=passed.total_seconds())
    pair.pass_time(passed.total_seconds())


def clean_up(pair: Pair) -> None:
    """Remove closed endpoints after their retention time, as upkeep does."""
    for site in (pair.west, pair.east):
        with site.instance.connection() as connection:
            run(connection, remove_closed_endpoints(site.clock()))
        assert leftovers(site) == {}


def replay(pair: Pair, frames: list[bytes]) -> None:
    """Send frames to east again, as a forwarder could."""
    pair.east.relay.forget()
    pair.east.round(frames)
    pair.rounds()


def without_date(frame: bytes) -> bytes:
    """Return the frame without its date, as a forwarder without the key could forge it."""
    envelope = parse(frame)
    opening = envelope.header.opening
    assert opening is not None
    stripped = structs.replace(envelope.header, opening=structs.replace(opening, sealed_at=None, capabilities=()))
    clear = msgspec.msgpack.Encoder(uuid_format="bytes").encode(stripped)
    return b"".join((len(clear).to_bytes(2, "big"), clear, envelope.sealed))


def header(site: Site) -> Header:
    """Return the header of the only frame that a site has sent."""
    (frame,) = site.out.frames
    return parse(frame).header


@pytest.mark.feature(99)
@pytest.mark.parametrize("anonymous", [False, True], ids=["full", "anonymous"])
def test_a_replayed_opening_is_dropped_after_both_endpoints_were_removed(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, anonymous: bool
) -> None:
    introduce(pair, tmp_path, anonymous=anonymous)
    kept_frames = run_conversation(pair)
    advance_clocks(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    with caplog.at_level("INFO", "servicebroker.broker"):
        replay(pair, kept_frames)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert leftovers(pair.east) == leftovers(pair.west) == {}
    assert "it is a replay, or one of the clocks is wrong" in caplog.text


# the initiator's clock minus the target's
CLOCK_OFFSETS_MIN = [-10_000, -25, -15, -10, -9, 0, 9, 10, 11, 25, 10_000]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("minutes", CLOCK_OFFSETS_MIN)
def test_different_clocks_neither_lose_nor_duplicate_messages(
    pair: Pair, tmp_path: Path, clock: Clock, minutes: int
) -> None:
    introduce(pair, tmp_path, start_date=clock() - timedelta(days=30))
    clock.jump(minutes=minutes)
    kept_frames = run_conversation(pair)
    advance_clocks(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    replay(pair, kept_frames)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert leftovers(pair.east) == {}


@pytest.mark.parametrize("minutes", [-25, 25])
def test_transmission_status_reports_different_clocks_until_delivery(
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


def test_openings_dated_by_a_fast_clock_are_refused_after_the_conversation(
    pair: Pair, tmp_path: Path, clock: Clock
) -> None:
    """The forwarder forwards the first attempt, and keeps the later ones until after the conversation."""
    introduce(pair, tmp_path, start_date=clock() - timedelta(days=30))
    clock.jump(minutes=25)
    handle = send(pair, "one")
    pair.rounds(1)
    (answer,) = pair.east.out.frames
    pair.east.out.frames.clear()
    kept_frames = []
    for _ in range(3):
        advance_clocks(pair, seconds=70)
        pair.west.round([])
        kept_frames += pair.west.out.frames
        pair.west.out.frames.clear()
    pair.west.round([answer])
    advance_clocks(pair, seconds=70)
    arrive(pair, "one")
    end_both_sides(pair, handle)
    for _ in range(60):
        advance_clocks(pair, minutes=1)
        with pair.east.instance.connection() as connection:
            run(connection, remove_closed_endpoints(pair.east.clock()))
        replay(pair, kept_frames)
        assert pair.east.database.receive(STOCK_QUEUE) == []


def test_a_message_that_waited_for_hours_is_sealed_again(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = send(pair, "one")
    pair.west.round([])
    kept_frames = list(pair.west.out.frames)
    pair.west.out.frames.clear()
    for _ in range(5):
        advance_clocks(pair, hours=1)
        pair.west.round([])
        pair.west.out.frames.clear()
    replay(pair, kept_frames)  # the first copy arrives hours late, and is refused
    assert pair.east.database.receive(STOCK_QUEUE) == []
    advance_clocks(pair, minutes=2)
    arrive(pair, "one")
    assert pair.west.database.get_transmission_status(handle) == ""


def test_frames_have_the_date_of_their_sealing_until_the_conversation_is_open(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = send(pair, "one")
    pair.west.round([])
    opening = header(pair.west).opening
    assert opening is not None
    assert opening.capabilities == CAPABILITIES
    assert opening.sealed_at == pytest.approx(pair.west.clock().timestamp(), abs=30)
    pair.west.out.frames.clear()
    advance_clocks(pair, minutes=1)
    pair.west.round([])
    second_opening = header(pair.west).opening
    assert second_opening is not None
    assert second_opening.sealed_at == pytest.approx(opening.sealed_at + MINUTE_S, abs=2)
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


# ---------------------------------------------------------------- brokers of older versions, which omit dates


@pytest.fixture
def omit_dates(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make west omit the date of openings, as older versions do, until `undo`."""
    monkeypatch.setattr(Frames, "_dated", lambda self, entry, header: header)
    return monkeypatch


def test_a_broker_of_an_older_version_is_understood(pair: Pair, tmp_path: Path, omit_dates: pytest.MonkeyPatch) -> None:
    introduce(pair, tmp_path)
    for text in ("one", "two"):
        run_conversation(pair, text)
        advance_clocks(pair, seconds=REPLAY_PROTECTION.total_seconds())
        clean_up(pair)
    assert query(pair.east.database, "select * from servicebroker.known_brokers") == []


def test_frames_sealed_before_an_upgrade_open_nothing_after_it(
    pair: Pair, tmp_path: Path, omit_dates: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(pair, tmp_path)
    kept_frames = run_conversation(pair, "old")
    advance_clocks(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    omit_dates.undo()
    run_conversation(pair, "new")
    advance_clocks(pair, seconds=REPLAY_PROTECTION.total_seconds())
    clean_up(pair)
    with caplog.at_level("INFO", "servicebroker.broker"):
        replay(pair, kept_frames)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert "it does not say when it was sealed" in caplog.text
    pair.east.database.drop_certificate("orders!")  # also deletes the capabilities recorded for this certificate
    assert query(pair.east.database, "select * from servicebroker.known_brokers") == []


def test_a_frame_whose_date_was_removed_is_refused(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    send(pair, "one")
    pair.west.round([])
    (frame,) = pair.west.out.frames
    pair.west.out.frames.clear()
    replay(pair, [without_date(frame)])
    assert pair.east.database.receive(STOCK_QUEUE) == []
    replay(pair, [frame])
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"one"]
