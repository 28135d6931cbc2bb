from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model.errors import BrokerError
from servicebroker.protocol import adjacent
from servicebroker.protocol.adjacent import (
    HANDSHAKE_TIME,
    IDLE_TIMEOUT_S,
    KEEP_ALIVE,
    MIRRORING,
    SILENCE_TIMEOUT_S,
    Alive,
    Arrived,
    Closed,
    Connection,
    Corrupted,
    Event,
    Greeted,
    LocalIdentity,
    Online,
    Phase,
    QuestionReceived,
    StandingReceived,
)
from servicebroker.protocol.frames import MAXIMUM_BODY, MAXIMUM_GREETING, FrameKind, encode_frame
from servicebroker.protocol.mirroring import IN_DOUBT, KnownTimeline, Role, RoleReport

ONE = LocalIdentity(UUID(int=1), UUID(int=11), ("fragments", "one"))
TWO = LocalIdentity(UUID(int=2), UUID(int=22), ("two", "fragments"))


def connected_pair(one: LocalIdentity = ONE, two: LocalIdentity = TWO) -> tuple[Connection, Connection, list[Event]]:
    """Return two connections after the greeting, opener first, and the events of the second."""
    opener, acceptor = Connection(one, is_opener=True, now=0.0), Connection(two, is_opener=False, now=0.0)
    assert opener.phase is Phase.INITIAL
    opener.begin(5, 0.0)
    acceptor.begin(0, 0.0)
    return opener, acceptor, acceptor.receive(opener.outgoing(), 0.0)


def online() -> tuple[Connection, Connection]:
    opener, acceptor, _ = connected_pair()
    acceptor.welcome(7, 0.0)
    opener.receive(acceptor.outgoing(), 0.0)
    return opener, acceptor


def test_both_go_online_and_know_each_other() -> None:
    opener, acceptor, events = connected_pair()
    (greeted,) = events
    assert isinstance(greeted, Greeted)
    assert (greeted.hello.daemon_id, greeted.hello.connection_number) == (ONE.daemon_id, 5)
    assert acceptor.phase is Phase.ARBITRATING
    assert acceptor.welcome(7, 0.0) == Online(ONE.daemon_id, ONE.incarnation, 5)
    assert opener.receive(acceptor.outgoing(), 0.0) == [Online(TWO.daemon_id, TWO.incarnation, 7)]
    assert opener.phase is acceptor.phase is Phase.ONLINE
    assert opener.capabilities == acceptor.capabilities == {"fragments"}
    assert opener.version == acceptor.version == 1


def test_messages_go_both_ways() -> None:
    opener, acceptor = online()
    opener.send(b"there", 1.0)
    opener.send(b"again", 1.0)
    acceptor.send(b"back", 1.0)
    assert acceptor.receive(opener.outgoing(), 1.0) == [Arrived(b"there"), Arrived(b"again")]
    assert opener.receive(acceptor.outgoing(), 1.0) == [Arrived(b"back")]
    assert opener.outgoing() == b""


def test_frames_after_a_greeting_wait_for_the_arbitration() -> None:
    _, acceptor, _ = connected_pair()
    assert acceptor.receive(encode_frame(FrameKind.DIALOG, b"early"), 0.0) == []
    acceptor.welcome(1, 0.0)
    assert acceptor.resume(0.0) == [Arrived(b"early")]


@pytest.mark.parametrize(("oldest", "newest", "version"), [(1, 3, 3), (2, 9, 4), (4, 4, 4)])
def test_the_newest_version_that_both_speak(oldest: int, newest: int, version: int) -> None:
    opener, acceptor, _ = connected_pair(ONE._replace(oldest=oldest, newest=newest), TWO._replace(newest=4))
    acceptor.welcome(1, 0.0)
    opener.receive(acceptor.outgoing(), 0.0)
    assert opener.version == acceptor.version == version


@pytest.mark.parametrize(("oldest", "newest"), [(2, 3), (0, 0)])
def test_no_version_in_common(oldest: int, newest: int) -> None:
    opener, acceptor, events = connected_pair(ONE._replace(oldest=oldest, newest=newest))
    assert [event.number for event in events if isinstance(event, Closed)] == [28027]
    (closed,) = opener.receive(acceptor.outgoing(), 0.0)
    assert isinstance(closed, Closed)
    assert closed.number == 28027


def test_a_welcome_with_a_version_that_was_not_offered() -> None:
    opener, _, _ = connected_pair()
    welcome = adjacent.Welcome(TWO.daemon_id, TWO.incarnation, 1, 2)
    (closed,) = opener.receive(encode_frame(FrameKind.WELCOME, adjacent._encoder.encode(welcome)), 0.0)
    assert isinstance(closed, Closed)
    assert closed.number == 28027


def test_a_rejection_says_why() -> None:
    opener, acceptor, _ = connected_pair()
    assert acceptor.reject(BrokerError(28032), 0.0).number == 28032
    (closed,) = opener.receive(acceptor.outgoing(), 0.0)
    assert isinstance(closed, Closed)
    assert (closed.number, "arbitration" in closed.text) == (28032, True)
    assert opener.phase is acceptor.phase is Phase.CLOSED


def test_a_closed_connection_is_silent() -> None:
    opener, acceptor = online()
    assert opener.close(0, "done", 1.0) == Closed(0, "done")
    assert acceptor.receive(opener.outgoing(), 1.0) == [Closed(0, "done", is_by_peer=True)]
    opener.close(0, "done", 1.0)
    assert opener.outgoing() == b""
    assert opener.receive(b"anything", 1.0) == opener.tick(1_000.0) == opener.end_of_stream() == []
    assert opener.wake_at == float("inf")
    with pytest.raises(ValueError, match="CLOSED"):
        opener.send(b"", 1.0)


def test_a_message_that_was_changed_is_dropped_and_the_connection_stays() -> None:
    opener, acceptor = online()
    opener.send(b"one", 0.0)
    opener.send(b"two", 0.0)
    data = bytearray(opener.outgoing())
    data[16] ^= 1
    assert acceptor.receive(bytes(data), 0.0) == [Corrupted(3), Arrived(b"two")]


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 11235),
        (encode_frame(FrameKind.HELLO, b"\xc1"), 11235),
        (encode_frame(FrameKind.HELLO, b"x" * (MAXIMUM_GREETING + 1)), 11235),
        (encode_frame(FrameKind.HELLO, b"abc")[:-1] + b"d", 11235),
        (encode_frame(FrameKind.DIALOG, b"before the greeting"), 28029),
        (encode_frame(FrameKind.WELCOME), 28029),
    ],
)
def test_a_peer_that_speaks_otherwise_is_refused(data: bytes, number: int) -> None:
    connection = Connection(TWO, is_opener=False, now=0.0)
    connection.begin(0, 0.0)
    (closed,) = connection.receive(data, 0.0)
    assert isinstance(closed, Closed)
    assert closed.number == number
    assert connection.phase is Phase.CLOSED


@given(st.binary(max_size=300), st.booleans(), st.sampled_from(FrameKind))
def test_any_bytes_end_in_an_event(junk: bytes, is_opener: bool, kind: FrameKind) -> None:
    for data in (junk, encode_frame(kind, junk)):
        connection = Connection(ONE, is_opener=is_opener, now=0.0)
        connection.begin(1, 0.0)
        for index in range(len(data)):
            connection.receive(data[index : index + 1], 0.0)
        assert connection.phase in (Phase.NEGOTIATING, Phase.ARBITRATING, Phase.CLOSED)
        for side in online():
            assert all(isinstance(event, (Arrived, Alive, Closed)) for event in side.receive(data, 0.0))


def test_a_connection_without_a_greeting_is_closed_in_time() -> None:
    connection = Connection(TWO, is_opener=False, now=0.0)
    connection.begin(0, 0.0)
    assert connection.wake_at == HANDSHAKE_TIME
    assert connection.tick(HANDSHAKE_TIME - 1) == []
    (closed,) = connection.tick(HANDSHAKE_TIME)
    assert isinstance(closed, Closed)
    assert closed.number == 28029


def test_the_end_of_the_stream() -> None:
    connection = Connection(TWO, is_opener=False, now=0.0)
    connection.begin(0, 0.0)
    (closed,) = connection.end_of_stream()
    assert isinstance(closed, Closed)
    assert closed.number == 28028
    assert online()[0].end_of_stream() == [Closed(0, "")]


def test_keep_alives_keep_it_open_until_it_is_idle() -> None:
    opener, acceptor = online()
    opener.send(b"x", 10.0)
    acceptor.receive(opener.outgoing(), 10.0)
    now, ticks = 10.0, 0
    while opener.phase is Phase.ONLINE:
        now = min(opener.wake_at, acceptor.wake_at)
        for side, peer in ((opener, acceptor), (acceptor, opener)):
            side.tick(now)
            peer.receive(side.outgoing(), now)
        ticks += 1
        assert ticks < 50
    assert now == 10.0 + IDLE_TIMEOUT_S
    assert acceptor.phase is Phase.CLOSED


def test_a_peer_that_went_silent_is_given_up() -> None:
    opener, _ = online()
    events: list[Event] = []
    while not events:
        now = opener.wake_at
        events = opener.tick(now)
        if now < SILENCE_TIMEOUT_S:
            assert now % KEEP_ALIVE == 0
    (closed,) = events
    assert isinstance(closed, Closed)
    assert (now, closed.number) == (SILENCE_TIMEOUT_S, 9753)


@pytest.mark.parametrize("fields", [[], [["one"]], [[], UUID(int=7).bytes]])
def test_a_greeting_may_omit_fields_unknown_to_older_versions(fields: list[object]) -> None:
    connection = Connection(TWO, is_opener=False, now=0.0)
    connection.begin(0, 0.0)
    hello = [ONE.daemon_id.bytes, ONE.incarnation.bytes, 5, 1, 1, *fields]
    (greeted,) = connection.receive(encode_frame(FrameKind.HELLO, msgspec.msgpack.encode(hello)), 0.0)
    assert isinstance(greeted, Greeted)
    assert greeted.hello.instance == (UUID(int=7) if len(fields) == 2 else None)


def test_fields_of_a_later_version_are_skipped() -> None:
    connection = Connection(TWO, is_opener=False, now=0.0)
    connection.begin(0, 0.0)
    hello = [ONE.daemon_id.bytes, ONE.incarnation.bytes, 5, 1, 9, ["later"], None, {"more": True}]
    (greeted,) = connection.receive(encode_frame(FrameKind.HELLO, msgspec.msgpack.encode(hello)), 0.0)
    assert isinstance(greeted, Greeted)
    assert connection.version == 1


# ---------------------------------------------------------------- bounds and damage of single frames


def send_each_kind(kind: FrameKind) -> tuple[bytes, Connection]:
    """Return the bytes of a control frame that a peer sends, and the connection that receives them."""
    opener, other, _ = connected_pair()
    if kind is FrameKind.HELLO:
        sender, receiver = Connection(ONE, is_opener=True, now=0.0), Connection(TWO, is_opener=False, now=0.0)
        receiver.begin(0, 0.0)
        sender.begin(5, 0.0)
        return sender.outgoing(), receiver
    if kind in (FrameKind.WELCOME, FrameKind.REJECT):
        _ = other.welcome(7, 0.0) if kind is FrameKind.WELCOME else other.reject(BrokerError(28032), 0.0)
        return other.outgoing(), opener
    one, two = MIRRORED
    opener, other, _ = connected_pair(one, two)
    other.welcome(7, 0.0)
    opener.receive(other.outgoing(), 0.0)
    if kind is FrameKind.QUESTION:
        opener.ask(KnownTimeline("cluster", 3, b"signature"), 0.0)
    elif kind is FrameKind.STANDING:
        opener.send_role(ROLE, 0.0)
    else:
        opener.close(9753, "reason", 0.0)
    return opener.outgoing(), other


MIRRORED = ONE._replace(capabilities=(MIRRORING,)), TWO._replace(capabilities=(MIRRORING,))
ROLE = RoleReport(Role.MIRROR, "cluster", 3, True, b"signature")
CONTROL_FRAMES = [kind for kind in FrameKind if kind not in (*adjacent.MESSAGE_FRAMES, FrameKind.KEEP_ALIVE)]


@pytest.mark.parametrize("kind", CONTROL_FRAMES)
def test_a_control_frame_that_was_changed_ends_the_connection(kind: FrameKind) -> None:
    """Its last byte is within a name, a text or a signature, so that the frame could still be read."""
    data, receiver = send_each_kind(kind)
    assert not any(isinstance(event, Closed) and event.number == 11235 for event in receiver.receive(data, 0.0))
    data, receiver = send_each_kind(kind)
    (closed,) = receiver.receive(data[:-1] + bytes([data[-1] ^ 1]), 0.0)
    assert isinstance(closed, Closed)
    assert closed.number == 11235


def test_a_reason_of_any_length_arrives() -> None:
    reason = "x" * 10_000
    opener, other = online()
    opener.close(9753, reason, 0.0)
    assert other.receive(opener.outgoing(), 0.0) == [Closed(9753, reason[:500], is_by_peer=True)]
    opener, other, _ = connected_pair()
    other.reject(BrokerError(28035, reason), 0.0)
    (closed,) = opener.receive(other.outgoing(), 0.0)
    assert isinstance(closed, Closed)
    assert (closed.number, len(closed.text)) == (28035, 500)


def test_bodies_may_be_large_after_the_greeting_and_not_before() -> None:
    largest = bytes(MAXIMUM_BODY)
    for sender, receiver in (online(), online()[::-1]):
        sender.send(largest, 0.0)
        assert receiver.receive(sender.outgoing(), 0.0) == [Arrived(largest)]
    for is_opener, kind in ((True, FrameKind.WELCOME), (False, FrameKind.HELLO)):
        connection = Connection(ONE, is_opener=is_opener, now=0.0)
        connection.begin(1, 0.0)
        (closed,) = connection.receive(encode_frame(kind, bytes(MAXIMUM_GREETING + 1))[:100], 0.0)
        assert isinstance(closed, Closed)
        assert closed.number == 11235


def test_a_connection_is_idle_after_its_greeting_and_not_before() -> None:
    opener, other, _ = connected_pair()
    late = HANDSHAKE_TIME - 1
    other.welcome(7, late)
    opener.receive(other.outgoing(), late)
    for side in (opener, other):
        side.receive(encode_frame(FrameKind.KEEP_ALIVE), IDLE_TIMEOUT_S)
        assert side.tick(late + IDLE_TIMEOUT_S - 1) == []
        assert [type(event) for event in side.tick(late + IDLE_TIMEOUT_S)] == [Closed]


def test_keep_alives_do_not_keep_an_idle_connection_and_forwarded_messages_do() -> None:
    for kind, is_open in ((FrameKind.KEEP_ALIVE, False), (FrameKind.DIALOG, True), (FrameKind.FORWARDED, True)):
        _, other = online()
        other.receive(encode_frame(kind), IDLE_TIMEOUT_S - 1)
        assert (other.tick(IDLE_TIMEOUT_S) == []) is is_open


# ---------------------------------------------------------------- mirrored pairs


def test_a_question_and_its_answer_arrive_whole() -> None:
    opener, other, _ = connected_pair(*MIRRORED)
    other.welcome(7, 0.0)
    opener.receive(other.outgoing(), 0.0)
    known = KnownTimeline("cluster", 3, b"signature")
    assert opener.ask(known, 0.0) == []
    assert other.receive(opener.outgoing(), 0.0) == [QuestionReceived(known)]
    for report in (ROLE, ROLE._replace(role=Role.PRINCIPAL, is_synchronous=False), IN_DOUBT):
        other.send_role(report, 0.0)
        assert opener.receive(other.outgoing(), 0.0) == [StandingReceived(report)]


@pytest.mark.parametrize("index", [0, 1])
def test_a_peer_without_the_capability_is_not_asked(index: int) -> None:
    identities = list(MIRRORED)
    identities[index] = identities[index]._replace(capabilities=())
    opener, other, _ = connected_pair(*identities)
    other.welcome(7, 0.0)
    opener.receive(other.outgoing(), 0.0)
    for side in (opener, other):
        assert side.ask(KnownTimeline("cluster", 3), 0.0) == [StandingReceived(IN_DOUBT)]
        assert side.outgoing() == b""
