"""Conversations are divided among shares: the share of a frame, the content of each inbox, the number of shares."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from many_sites import Pipe
from servicebroker.broker import inboxes, shares
from servicebroker.broker.conversations import Conversations
from servicebroker.broker.departures import BODY_BUDGET_BYTES, IN_FLIGHT_BYTES, Readahead
from servicebroker.broker.inboxes import Answered, Inboxes, Lost, Outdated, Reached, Unreached, share_for
from servicebroker.broker.processes import ShareProcess
from servicebroker.broker.shares import CORES_OF_ONE_PROCESS, MAX_PROCESSES, MAX_THREADS, Shares, _Opened
from servicebroker.broker.sharing import worker
from servicebroker.broker.sharing.growth import (
    FULL_CPU,
    FULL_LOAD,
    LOW_LOAD,
    POLLS_TO_GROW,
    POLLS_TO_SHRINK,
    Load,
)
from servicebroker.broker.sharing.messages import ProcessExited
from servicebroker.broker.sharing.share import Share
from servicebroker.broker.transport.links import Arrival
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.dialog_keys import UNSECURED
from servicebroker.protocol.division import Division, share_of
from servicebroker.protocol.envelope import Content, Header, Kind, Part, conversation_of, encode
from servicebroker.protocol.forwarding import Passage, wrap
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.mirroring import IN_DOUBT, KnownTimeline
from servicebroker.protocol.routing import Address
from servicebroker.protocol.wire_errors import CorruptedMessage

HERE = Address("here", 4022)


def frame(conversation: UUID) -> bytes:
    header = Header(conversation, True, Kind.RUN, False, "//a", None, "//b", uuid4())
    return encode(header, (Part("//type", Content.DATA, b"body"),), UNSECURED.of(header))


def of_share(number: int, count: int) -> UUID:
    return next(handle for handle in iter(uuid4, None) if share_of(handle, count) == number)


def test_every_conversation_is_of_exactly_one_share() -> None:
    for count in (1, 2, 3, 4, 7):
        for conversation in (uuid4() for _ in range(50)):
            assert [Division(number, count).has(conversation) for number in range(count)].count(True) == 1


def test_shares_are_about_as_large() -> None:
    rng = random.Random(1)
    numbers = [share_of(UUID(int=rng.getrandbits(128), version=4), 3) for _ in range(3_000)]
    assert all(900 < numbers.count(number) < 1_100 for number in range(3))


def test_a_frame_is_for_the_share_of_its_conversation() -> None:
    for _ in range(20):
        conversation = uuid4()
        body = frame(conversation)
        assert conversation_of(body) == conversation
        assert share_for(Arrival(Pipe(), body), 3) == share_of(conversation, 3)
        forwarded = wrap(Passage(uuid4()), body)
        assert share_for(Arrival(Pipe(), forwarded, True), 3) == share_of(conversation, 3)


@pytest.mark.parametrize("body", [b"", b"\0", b"nonsense of a peer", bytes(100), frame(UUID(int=2))[:20], b"\0\1\xc0"])
def test_unreadable_frames_go_to_the_first_share(body: bytes) -> None:
    with pytest.raises(CorruptedMessage):
        conversation_of(body)
    assert share_for(Arrival(Pipe(), body), 3) == 0
    assert share_for(Arrival(Pipe(), body, True), 3) == 0


def test_a_conversation_that_is_written_in_another_way_is_the_same_one() -> None:
    """A peer chooses the encoding of the id: text instead of sixteen bytes."""
    conversation = of_share(2, 3)
    clear = bytes([0x91, 0xD9, 36]) + str(conversation).encode()
    body = len(clear).to_bytes(2, "big") + clear
    assert conversation_of(body) == conversation
    assert share_for(Arrival(Pipe(), body), 3) == 2


# ---------------------------------------------------------------- inboxes


def test_a_frame_goes_to_one_share_and_an_event_to_all() -> None:
    made, link = Inboxes(), Pipe()
    made.divide(3)
    arrival = Arrival(link, frame(of_share(2, 3)))
    told = [Lost(link, "over"), Reached(HERE), Answered(HERE, IN_DOUBT)]
    for item in (arrival, *told):
        made.put(item)
    assert [inbox.take(10) for inbox in made.shares] == [told, told, [*told, arrival]]
    assert [inbox.wake_event.is_set() for inbox in made.shares] == [True] * 3


def test_only_the_first_one_hears_that_another_server_was_promoted() -> None:
    made = Inboxes()
    made.divide(2)
    made.put(Outdated(KnownTimeline("c", 2)))
    assert [inbox.take(10) for inbox in made.shares] == [[Outdated(KnownTimeline("c", 2))], []]


def test_a_new_division_keeps_all_frames_and_the_order_of_each_owner() -> None:
    made, link = Inboxes(), Pipe()
    arrivals = [Arrival(link, frame(uuid4())) for _ in range(60)]
    for arrival in arrivals:
        made.put(arrival)
    made.put(Unreached(HERE, "why"))
    first = made.shares[0]
    for count in (3, 2, 4, 1, 3):
        made.divide(count)
        assert made.shares[0] is first
        assert len(made.shares) == count
        assert (len(made), made.size) == (61, sum(len(arrival.body) for arrival in arrivals))
    for number, inbox in enumerate(made.shares):
        expected = [arrival for arrival in arrivals if share_for(arrival, 3) == number]
        taken = [arrival for arrival in inbox.take(100) if isinstance(arrival, Arrival)]
        assert sorted(taken, key=arrivals.index) == expected


def test_shares_have_the_room_of_one_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "INBOX_BYTES", 12_000)
    made, link, on_room = Inboxes(), Pipe(), []
    made.on_room = lambda: on_room.append(True)
    made.divide(3)
    on_room.clear()
    while not made.is_full(link):
        made.put(Arrival(link, frame(of_share(1, 3))))
    assert len(made) == 4  # about 500 bytes each: 12,000 for three shares, its own line and another one
    made.shares[0].take(10)
    assert not on_room
    made.shares[1].take(10)
    assert on_room
    assert not made.is_full(link)


def test_a_frame_for_nothing_counts_where_it_was_taken() -> None:
    made, link = Inboxes(), Pipe()
    made.divide(2)
    for number in range(2):
        made.put(Arrival(link, frame(of_share(number, 2))))
    made.shares[0].take(10)
    made.waste(link, 1.0)
    assert [inbox._peer_queues[link].useless_frames for inbox in made.shares] == [1.0, 0.0]


def test_a_share_has_more_under_way_where_the_peer_takes_more() -> None:
    """With a slow peer, four shares together have as many bytes in flight as one share would."""
    world: Any = SimpleNamespace(now=0.0)
    conversations = Conversations(world, world, lambda: world.now, world, 10, LIMITS, world)
    entry: Any = SimpleNamespace(link=object(), load=0, dialog=SimpleNamespace(load=0))
    ahead = Readahead(conversations, 100, world, BODY_BUDGET_BYTES, 4)

    def takes(size: int) -> int:
        """Return the bytes that may be in flight if the peer takes `size` bytes in 0.1 s."""
        for load in (IN_FLIGHT_BYTES, IN_FLIGHT_BYTES - size):
            entry.dialog.load = load
            conversations.weigh(entry)
        world.now += 0.1
        return ahead._max_in_flight(entry.link)

    assert [takes(IN_FLIGHT_BYTES // 100) for _ in range(20)] == [IN_FLIGHT_BYTES // 4] * 20
    assert max(takes(IN_FLIGHT_BYTES // 10) for _ in range(10)) == IN_FLIGHT_BYTES // 10 * 5
    assert [takes(IN_FLIGHT_BYTES // 2) for _ in range(10)][-1] == IN_FLIGHT_BYTES
    world.now += 1.0
    assert takes(0) == IN_FLIGHT_BYTES // 4


# ---------------------------------------------------------------- how many


class Busy:
    """A test clock, and the time that each share has spent in rounds."""

    def __init__(self, most: int = MAX_THREADS, *, in_processes: bool = False) -> None:
        self.now = self.computed = 0.0
        self.load, self.worked = Load(most, 0.0, 0.0, in_processes=in_processes), [0.0]

    def passes(self, looks: int, *each: float, computing: float = 0.5) -> int:
        """Let seconds pass in which the shares spend these parts of the time in rounds; return the number of shares
        then.
        """
        for _ in range(looks):
            self.now += 1
            self.computed += computing
            self.worked = [total + part for total, part in zip(self.worked, each, strict=False)]
            expected = self.load.wanted(list(self.worked), self.now, self.computed)
            self.worked += [0.0] * (expected - len(self.worked))
            del self.worked[expected:]
        return len(self.worked)


def test_shares_come_while_they_are_busy_and_go_while_they_rest() -> None:
    busy = Busy()
    assert busy.passes(POLLS_TO_GROW, 1.0) == 1
    assert busy.passes(1, 1.0) == 2
    assert busy.passes(20, 1.0, 2 * FULL_LOAD - 1.1) == 2  # one conversation exceeds the capacity of a share
    # the shares have different numbers of conversations
    assert busy.passes(POLLS_TO_GROW, 1.0, 2 * FULL_LOAD - 1.0) == 3
    assert busy.passes(POLLS_TO_GROW, 1.0, 1.0, 1.0) == 3
    assert busy.passes(1, 1.0, 1.0, 1.0) == 4
    assert busy.passes(20, *[1.0] * 4) == MAX_THREADS
    assert busy.passes(POLLS_TO_SHRINK, *[0.42] * 4) == 4
    assert busy.passes(POLLS_TO_SHRINK, *[0.1] * 4) == 3
    assert busy.passes(2 * POLLS_TO_SHRINK + 2, *[0.01] * 4) == 1
    assert busy.passes(100, 0.0) == 1


def test_no_share_comes_for_a_moment_of_load_nor_where_python_computes_all_the_time() -> None:
    busy = Busy()
    for _ in range(10):
        assert busy.passes(POLLS_TO_GROW - 1, 1.0) == 1
        assert busy.passes(1, FULL_LOAD - 0.1) == 1
    assert busy.passes(30, 1.0, computing=FULL_CPU) == 1


def test_processes_do_not_wait_for_computations_of_the_first() -> None:
    busy = Busy(in_processes=True)
    assert busy.passes(POLLS_TO_GROW + 1, 1.0, computing=1.0) == 2
    assert busy.passes(2 * POLLS_TO_SHRINK, 0.01, 0.01) == 1


def test_a_share_that_is_needed_stays() -> None:
    busy = Busy()
    assert busy.passes(POLLS_TO_GROW + 1, 1.0) == 2
    assert busy.passes(100, LOW_LOAD / 2, LOW_LOAD / 2 + 0.01) == 2


def test_two_cores_are_for_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, 1), (2, 1), (3, 1), (4, 2), (8, 4), (64, MAX_THREADS)):
        monkeypatch.setattr(shares.os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert shares.max_shares() == expected
    busy = Busy(most=1)
    assert busy.passes(100, 1.0) == 1


def test_processes_are_for_more_than_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, 1), (2, 1), (4, 1), (5, 2), (8, 4), (16, MAX_PROCESSES), (64, MAX_PROCESSES)):
        monkeypatch.setattr(shares.os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert shares.has_many_cores() == (cores > CORES_OF_ONE_PROCESS)
        if cores > CORES_OF_ONE_PROCESS:
            assert shares.max_shares(in_processes=True) == expected


class ConnectionStub:
    """A stand-in for a connection."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def start_shares(carry: Callable[[Share], int], start: Any = None) -> Any:
    """Return the shares of a started daemon whose rounds call `carry`."""

    def made() -> Any:
        forwarding = SimpleNamespace(drop_all=lambda number: None)
        return SimpleNamespace(forget=lambda shares: None, forwarding=forwarding, round=lambda store, arrivals: 0)

    of: Any = Shares("", partial(datetime.now, UTC), Inboxes(), made, carry, None, start)
    of.begin(SimpleNamespace(division=Division(), kept=None))
    return of


def opened() -> _Opened:
    return _Opened(ConnectionStub(), SimpleNamespace(division=Division(1, 2)))  # type: ignore[arg-type]


def test_a_share_that_fails_while_its_last_round_is_waited_for_is_not_overlooked() -> None:
    """Its commit may not have reached the standby, so nothing may be acknowledged before the failure is handled."""

    def carry(share: Share) -> int:
        of._over.wait()
        raise InstanceError("A commit did not reach the synchronous standby.")

    of = start_shares(carry)
    of._divide([opened()])
    with pytest.raises(InstanceError, match="did not reach"):
        of._divide([])
    of.end()
    assert of.problem is None
    assert len(of.all) == 1


def test_rounds_go_on_while_more_shares_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """New interpreters and connections are slow to start. The daemon's own share does not wait for them."""
    may_open, is_ready = threading.Event(), threading.Event()

    def open_slowly(*_: object) -> _Opened:
        may_open.wait()
        return opened()

    monkeypatch.setattr(shares, "open_share", open_slowly)
    of = start_shares(lambda share: is_ready.set() or 0)  # type: ignore[func-returns-value]
    of._growth.fixed = 2
    for _ in range(3):
        of.adapt()
        assert len(of.all) == 1
    may_open.set()
    of._opening.result()
    of.adapt()
    assert len(of.all) == 2
    assert is_ready.wait(5)
    of.end()


def test_a_share_opened_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    may_open, is_closed = threading.Event(), threading.Event()

    def open_slowly(*_: object) -> Any:
        may_open.wait()
        return SimpleNamespace(ready=lambda: None, close=is_closed.set)

    monkeypatch.setattr(shares, "open_share", open_slowly)
    of = start_shares(lambda share: 0)
    of._growth.fixed = 2
    of.adapt()
    of.end()
    may_open.set()
    assert is_closed.wait(5)


class KilledProcess(ShareProcess):
    """A stand-in for a killed process."""

    ending = "was killed (SIGKILL)"

    def __init__(self) -> None:
        self._status = None

    def ready(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("is_over_before", [True, False])
def test_no_process_begins_where_conversations_are_divided_anew(
    *, is_over_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit of the last round is unacknowledged: it may not be on a standby yet."""
    started: list[object] = []

    def carry(share: Share) -> int:
        if is_over_before:
            of._over.wait()
        raise ProcessExited

    of = start_shares(carry, lambda *about: started.append(about))
    of._divide([KilledProcess()])
    while not is_over_before and "takes its place" not in caplog.text:
        time.sleep(0.01)
    with pytest.raises(ProcessExited):
        of._divide([])
    assert started == []
    assert of._replaced.keys() == (set() if is_over_before else {2})
    of.end()


# ---------------------------------------------------------------- questions of a process to its daemon


class QuestionReceived:
    """A daemon that counts the questions it gets."""

    def __init__(self) -> None:
        self.rounds, self.asked = 1, list[str]()

    def ask(self, what: str, about: object) -> object:
        self.asked.append(what)
        answers = {"reach": (7, "who", 1_000), "owner_at": "who", "budgets": {"who": {"openings": len(self.asked)}}}
        return answers[what]

    def tell(self, *_: object, **__: object) -> None: ...


def test_a_link_that_two_addresses_lead_to_has_its_room_once() -> None:
    links: Any = worker.Links(QuestionReceived())  # type: ignore[arg-type]
    link = links.reach(HERE)
    link.send(bytes(600))
    assert links.reach(Address("there", 4022)) is link
    assert link.room == 400


def test_the_owner_at_an_address_is_cached_per_version() -> None:
    asked: Any = QuestionReceived()
    peers = worker.KnownPeers(asked)
    for version in (1, 1, 2):
        peers.begin(version, proves=True)
        assert [peers.owner_at(HERE), peers.owner_at(HERE)] == ["who", "who"]
    assert asked.asked == ["budgets", "owner_at"] * 2
    assert peers.budgets.of("who").openings == 3
