"""An old copy of one instance is restored: no acknowledged message is lost, and both sides get an error."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec import structs
from typer.testing import CliRunner

import servicebroker as sb
from remote_support import Copy, Pair, Site, begin
from servicebroker.cli.main import app as command
from servicebroker.protocol.envelope import BrokerFailure, Kind, encode, open_payload, parse
from servicebroker.protocol.integrity import CHECKSUM
from support import ORDER, ORDERS_QUEUE, REPLY, STOCK_QUEUE, bodies, errors, query, state, waiting_messages


def opened(pair: Pair, count: int = 1) -> tuple[UUID, UUID]:
    """A conversation that both sides have, with messages that were taken: the handles of initiator and target."""
    handle = begin(pair, count)
    pair.rounds()
    messages = received(pair.east, STOCK_QUEUE)
    assert len(messages) == count
    return handle, messages[0].conversation_handle


def received(site: Site, queue: str) -> list[sb.Message]:
    return site.database.receive(queue, top=100)


def tell(pair: Pair, handle: UUID, count: int) -> None:
    for number in range(count):
        pair.west.database.send(handle, ORDER, f"told {number}")
    pair.rounds()


def answer(pair: Pair, handle: UUID, count: int) -> None:
    for number in range(count):
        pair.east.database.send(handle, REPLY, f"answer {number}")
    pair.rounds()


def doctor(site: Site) -> str:
    result = CliRunner().invoke(command, ["doctor", "--instance", site.instance.url])
    assert result.exit_code == 1
    return result.output


def ended(old: Site, other: Site, old_queue: str, other_queue: str) -> None:
    """Each application has its Error, and nothing waits."""
    assert errors(received(old, old_queue)) == [-9719]
    assert errors(received(other, other_queue)) == [-9720]
    assert waiting_messages(old.database) == waiting_messages(other.database) == 0


def told_by_doctor(old: Site, other: Site) -> None:
    """On each side: which of the two is the old copy, and what to do."""
    brokers = [
        str(
            query(site.database, "select service_broker_guid from sys.databases where name = %s", site.database.name)[
                0
            ][0]
        )
        for site in (old, other)
    ]
    for site, is_old in ((old, True), (other, False)):
        told = doctor(site)
        assert all(broker in told for broker in brokers)
        assert ("This database has gone back to an old copy" in told) is is_old
        assert ("That database has gone back to an old copy" in told) is not is_old
        assert "servicebroker instance adopt" in told


@pytest.mark.feature(137)
@pytest.mark.parametrize("again", [1, 3, 5])
def test_an_initiator_that_went_back_sends_other_messages(pair: Pair, again: int) -> None:
    """Fewer than were lost, as many, or more: none of them is acknowledged as one of those."""
    handle, _ = opened(pair)
    copy = Copy(pair.west)
    tell(pair, handle, 3)
    assert bodies(received(pair.east, STOCK_QUEUE)) == [b"told 0", b"told 1", b"told 2"]
    copy.restore()
    for number in range(again):
        pair.west.database.send(handle, ORDER, f"other {number}")
    pair.rounds()
    ended(pair.west, pair.east, ORDERS_QUEUE, STOCK_QUEUE)


def test_a_target_that_went_back_answers_anew(pair: Pair) -> None:
    _, target = opened(pair)
    copy = Copy(pair.east)
    answer(pair, target, 3)
    assert len(received(pair.west, ORDERS_QUEUE)) == 3
    copy.restore()
    answer(pair, target, 4)
    ended(pair.east, pair.west, STOCK_QUEUE, ORDERS_QUEUE)
    told_by_doctor(pair.east, pair.west)


def test_a_target_that_went_back_does_not_know_what_it_has_taken(pair: Pair) -> None:
    handle, _ = opened(pair)
    copy = Copy(pair.east)
    tell(pair, handle, 3)
    received(pair.east, STOCK_QUEUE)
    copy.restore()
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0  # all was acknowledged, and nothing shows anything yet
    tell(pair, handle, 1)
    ended(pair.east, pair.west, STOCK_QUEUE, ORDERS_QUEUE)


def test_an_initiator_that_went_back_does_not_know_what_it_has_taken(pair: Pair) -> None:
    _, target = opened(pair)
    answer(pair, target, 1)
    copy = Copy(pair.west)
    answer(pair, target, 3)
    assert len(received(pair.west, ORDERS_QUEUE)) == 4
    copy.restore()
    assert len(received(pair.west, ORDERS_QUEUE)) == 1
    answer(pair, target, 1)
    ended(pair.west, pair.east, ORDERS_QUEUE, STOCK_QUEUE)


def test_an_initiator_that_went_back_before_its_first_message_tells_its_peer(pair: Pair) -> None:
    """The copy knows of nothing that was sent, and so not that its peer is elsewhere."""
    handle = begin(pair, 0)
    copy = Copy(pair.west)
    tell(pair, handle, 1)
    (message,) = received(pair.east, STOCK_QUEUE)
    copy.restore()
    pair.east.database.send(message.conversation_handle, REPLY, "answer")
    pair.east.round([])
    pair.west.round(pair.east.out.frames)
    pair.west.out.frames.clear()  # the news is lost, and its daemon begins anew
    pair.west.relay = pair.west.new_relay()
    pair.east.out.frames.clear()
    pair.pass_time(5.0)
    pair.rounds()
    ended(pair.west, pair.east, ORDERS_QUEUE, STOCK_QUEUE)


def test_an_answer_from_a_target_that_went_back_tells_it_what_it_lacks(pair: Pair) -> None:
    """Its answer is a new one, of which nothing shows; the acknowledgement of that says how much it had taken."""
    handle, target = opened(pair)
    copy = Copy(pair.east)
    tell(pair, handle, 3)
    received(pair.east, STOCK_QUEUE)
    copy.restore()
    answer(pair, target, 1)
    pair.rounds()
    messages = received(pair.west, ORDERS_QUEUE)
    assert (errors(messages), len(messages)) == ([-9720], 2)
    assert errors(received(pair.east, STOCK_QUEUE)) == [-9719]


def test_an_end_from_an_old_copy_is_no_end_of_what_it_does_not_know(pair: Pair) -> None:
    handle, _ = opened(pair)
    copy = Copy(pair.west)
    tell(pair, handle, 3)
    received(pair.east, STOCK_QUEUE)
    copy.restore()
    pair.west.database.end_conversation(handle)
    pair.rounds()
    assert errors(received(pair.east, STOCK_QUEUE)) == [-9720]
    assert state(pair.west.database, handle) in (None, "CD")


def test_a_copy_that_has_missed_nothing_goes_on(pair: Pair) -> None:
    """Messages without an acknowledgement at the time of the copy travel again, and are known."""
    handle, target = opened(pair)
    for number in range(3):
        pair.west.database.send(handle, ORDER, f"told {number}")
    copy = Copy(pair.west)
    pair.rounds()
    assert len(received(pair.east, STOCK_QUEUE)) == 3
    copy.restore()
    assert waiting_messages(pair.west.database) == 3
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert received(pair.east, STOCK_QUEUE) == []
    tell(pair, handle, 1)
    answer(pair, target, 1)
    assert bodies(received(pair.east, STOCK_QUEUE)) == [b"told 0"]
    assert bodies(received(pair.west, ORDERS_QUEUE)) == [b"answer 0"]


@pytest.mark.parametrize("who", ["west", "east"])
def test_an_old_copy_without_the_conversation_says_that_it_is_gone(pair: Pair, who: str) -> None:
    old: Site = getattr(pair, who)
    copy = Copy(old)
    handle, target = opened(pair)
    tell(pair, handle, 1)
    copy.restore()
    if who == "east":
        tell(pair, handle, 1)
        assert errors(received(pair.west, ORDERS_QUEUE)) == [-8462]
    else:
        answer(pair, target, 1)
        received(pair.east, STOCK_QUEUE)
        assert state(pair.east.database, target) == "ER"


def test_an_old_copy_of_a_conversation_that_the_peer_has_forgotten(pair: Pair) -> None:
    handle, target = opened(pair)
    copy = Copy(pair.west)
    pair.west.database.end_conversation(handle)
    pair.rounds()
    received(pair.east, STOCK_QUEUE)
    pair.east.database.end_conversation(target)
    pair.rounds()
    query(pair.east.database, "delete from servicebroker.conversation_endpoints returning 1")
    pair.east.relay = pair.east.new_relay()
    copy.restore()
    tell(pair, handle, 1)
    assert errors(received(pair.west, ORDERS_QUEUE)) == [-8462]
    assert waiting_messages(pair.west.database) == 0


def test_who_is_not_answered_says_why_it_waits(pair: Pair) -> None:
    """As by an old copy that lacks a secure conversation: it has no key to answer with."""
    handle, _ = opened(pair)
    pair.west.database.send(handle, ORDER, "into the void")
    for _ in range(4):
        pair.pass_time(70.0)
        pair.west.round([])
        pair.west.out.frames.clear()
    (status,) = {row[0] for row in query(pair.west.database, "select transmission_status from sys.transmission_queue")}
    assert "acknowledges nothing" in status
    said = doctor(pair.west)
    assert "Nothing is lost" in said
    assert "does not know the conversation: END CONVERSATION WITH ERROR here" in said
    assert "CLEANUP" not in said
    pair.pass_time(70.0)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert bodies(received(pair.east, STOCK_QUEUE)) == [b"into the void"]


def without_tokens(body: bytes) -> bytes:
    """The frame as a peer of the last version makes it."""
    envelope = parse(body)
    header, payload = envelope.header, open_payload(envelope, CHECKSUM)
    if isinstance(payload, tuple):
        payload = tuple(structs.replace(part, token=None) for part in payload)
    ack = header.acknowledgement and structs.replace(header.acknowledgement, token=None)
    return encode(structs.replace(header, acknowledgement=ack, floor=None, before=None), payload, CHECKSUM)


def test_a_peer_of_the_last_version_draws_no_tokens(pair: Pair) -> None:
    for site in (pair.west, pair.east):
        send = site.out.send
        site.out.send = lambda body, send=send: send(without_tokens(body))  # type: ignore[method-assign, misc]
    handle, target = opened(pair, 3)
    answer(pair, target, 2)
    tell(pair, handle, 3)
    assert (len(received(pair.west, ORDERS_QUEUE)), len(received(pair.east, STOCK_QUEUE))) == (2, 3)
    assert waiting_messages(pair.west.database) == 0


def test_what_a_peer_says_of_it_is_cleaned(pair: Pair) -> None:
    _, target = opened(pair)
    pair.east.database.send(target, REPLY, "x")
    pair.east.round([])
    header = structs.replace(parse(pair.east.out.frames[0]).header, kind=Kind.FAILURE, number=0)
    pair.west.round([encode(header, BrokerFailure(-9720, "it\0has\x1bgone"), CHECKSUM)])
    assert query(pair.west.database, "select last_detail from servicebroker.old_copies") == [("it\ufffdhas\ufffdgone",)]
    assert "it\ufffdhas\ufffdgone" in doctor(pair.west)
