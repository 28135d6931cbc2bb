"""One instance is restored from an old copy: both sides of affected conversations get an Error."""

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


def open_conversation(pair: Pair, count: int = 1) -> tuple[UUID, UUID]:
    """Open a conversation, and receive its messages. Return the handles of initiator and target."""
    handle = begin(pair, count)
    pair.rounds()
    messages = receive_all(pair.east, STOCK_QUEUE)
    assert len(messages) == count
    return handle, messages[0].conversation_handle


def receive_all(site: Site, queue: str) -> list[sb.Message]:
    return site.database.receive(queue, top=100)


def send_orders(pair: Pair, handle: UUID, count: int) -> None:
    for number in range(count):
        pair.west.database.send(handle, ORDER, f"told {number}")
    pair.rounds()


def send_replies(pair: Pair, handle: UUID, count: int) -> None:
    for number in range(count):
        pair.east.database.send(handle, REPLY, f"answer {number}")
    pair.rounds()


def doctor(site: Site) -> str:
    result = CliRunner().invoke(command, ["doctor", "--instance", site.instance.url])
    assert result.exit_code == 1
    return result.output


def check_errors(old: Site, other: Site, old_queue: str, other_queue: str) -> None:
    """Check that each application gets its Error, and that no message waits."""
    assert errors(receive_all(old, old_queue)) == [-9719]
    assert errors(receive_all(other, other_queue)) == [-9720]
    assert waiting_messages(old.database) == waiting_messages(other.database) == 0


def check_doctor(old: Site, other: Site) -> None:
    """Check that doctor reports on each side which instance is the old copy, and the remedy."""
    brokers = [
        str(
            query(site.database, "select service_broker_guid from sys.databases where name = %s", site.database.name)[
                0
            ][0]
        )
        for site in (old, other)
    ]
    for site, is_old in ((old, True), (other, False)):
        output = doctor(site)
        assert all(broker in output for broker in brokers)
        assert ("This database has gone back to an old copy" in output) is is_old
        assert ("That database has gone back to an old copy" in output) is not is_old
        assert "servicebroker instance adopt" in output


@pytest.mark.feature(137)
@pytest.mark.parametrize("again", [1, 3, 5])
def test_a_restored_initiator_sends_other_messages(pair: Pair, again: int) -> None:
    """Fewer messages than were lost, as many, or more. None is taken for a lost one."""
    handle, _ = open_conversation(pair)
    copy = Copy(pair.west)
    send_orders(pair, handle, 3)
    assert bodies(receive_all(pair.east, STOCK_QUEUE)) == [b"told 0", b"told 1", b"told 2"]
    copy.restore()
    for number in range(again):
        pair.west.database.send(handle, ORDER, f"other {number}")
    pair.rounds()
    check_errors(pair.west, pair.east, ORDERS_QUEUE, STOCK_QUEUE)


def test_a_restored_target_sends_other_answers(pair: Pair) -> None:
    _, target = open_conversation(pair)
    copy = Copy(pair.east)
    send_replies(pair, target, 3)
    assert len(receive_all(pair.west, ORDERS_QUEUE)) == 3
    copy.restore()
    send_replies(pair, target, 4)
    check_errors(pair.east, pair.west, STOCK_QUEUE, ORDERS_QUEUE)
    check_doctor(pair.east, pair.west)


def test_a_restored_target_lacks_received_messages(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    copy = Copy(pair.east)
    send_orders(pair, handle, 3)
    receive_all(pair.east, STOCK_QUEUE)
    copy.restore()
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0  # all messages were acknowledged, so the loss is not detected yet
    send_orders(pair, handle, 1)
    check_errors(pair.east, pair.west, STOCK_QUEUE, ORDERS_QUEUE)


def test_a_restored_initiator_lacks_received_messages(pair: Pair) -> None:
    _, target = open_conversation(pair)
    send_replies(pair, target, 1)
    copy = Copy(pair.west)
    send_replies(pair, target, 3)
    assert len(receive_all(pair.west, ORDERS_QUEUE)) == 4
    copy.restore()
    assert len(receive_all(pair.west, ORDERS_QUEUE)) == 1
    send_replies(pair, target, 1)
    check_errors(pair.west, pair.east, ORDERS_QUEUE, STOCK_QUEUE)


def test_an_initiator_restored_before_its_first_message_notifies_its_peer(pair: Pair) -> None:
    """The copy has no sent message, and so no record of a remote peer."""
    handle = begin(pair, 0)
    copy = Copy(pair.west)
    send_orders(pair, handle, 1)
    (message,) = receive_all(pair.east, STOCK_QUEUE)
    copy.restore()
    pair.east.database.send(message.conversation_handle, REPLY, "answer")
    pair.east.round([])
    pair.west.round(pair.east.out.frames)
    pair.west.out.frames.clear()  # the notification is lost, and the daemon restarts
    pair.west.relay = pair.west.new_relay()
    pair.east.out.frames.clear()
    pair.pass_time(5.0)
    pair.rounds()
    check_errors(pair.west, pair.east, ORDERS_QUEUE, STOCK_QUEUE)


def test_an_answer_of_a_restored_target_reveals_its_loss(pair: Pair) -> None:
    """The answer itself looks new. Its acknowledgement shows how many messages the target had received."""
    handle, target = open_conversation(pair)
    copy = Copy(pair.east)
    send_orders(pair, handle, 3)
    receive_all(pair.east, STOCK_QUEUE)
    copy.restore()
    send_replies(pair, target, 1)
    pair.rounds()
    messages = receive_all(pair.west, ORDERS_QUEUE)
    assert (errors(messages), len(messages)) == ([-9720], 2)
    assert errors(receive_all(pair.east, STOCK_QUEUE)) == [-9719]


def test_an_end_from_an_old_copy_with_missing_messages_is_an_error(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    copy = Copy(pair.west)
    send_orders(pair, handle, 3)
    receive_all(pair.east, STOCK_QUEUE)
    copy.restore()
    pair.west.database.end_conversation(handle)
    pair.rounds()
    assert errors(receive_all(pair.east, STOCK_QUEUE)) == [-9720]
    assert state(pair.west.database, handle) in (None, "CD")


def test_a_copy_without_missing_messages_continues(pair: Pair) -> None:
    """Messages that were unacknowledged at the time of the copy are sent again, and recognized as duplicates."""
    handle, target = open_conversation(pair)
    for number in range(3):
        pair.west.database.send(handle, ORDER, f"told {number}")
    copy = Copy(pair.west)
    pair.rounds()
    assert len(receive_all(pair.east, STOCK_QUEUE)) == 3
    copy.restore()
    assert waiting_messages(pair.west.database) == 3
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert receive_all(pair.east, STOCK_QUEUE) == []
    send_orders(pair, handle, 1)
    send_replies(pair, target, 1)
    assert bodies(receive_all(pair.east, STOCK_QUEUE)) == [b"told 0"]
    assert bodies(receive_all(pair.west, ORDERS_QUEUE)) == [b"answer 0"]


@pytest.mark.parametrize("who", ["west", "east"])
def test_an_old_copy_without_the_conversation_reports_it_as_missing(pair: Pair, who: str) -> None:
    old: Site = getattr(pair, who)
    copy = Copy(old)
    handle, target = open_conversation(pair)
    send_orders(pair, handle, 1)
    copy.restore()
    if who == "east":
        send_orders(pair, handle, 1)
        assert errors(receive_all(pair.west, ORDERS_QUEUE)) == [-8462]
    else:
        send_replies(pair, target, 1)
        receive_all(pair.east, STOCK_QUEUE)
        assert state(pair.east.database, target) == "ER"


def test_an_old_copy_of_a_conversation_that_the_peer_has_removed(pair: Pair) -> None:
    handle, target = open_conversation(pair)
    copy = Copy(pair.west)
    pair.west.database.end_conversation(handle)
    pair.rounds()
    receive_all(pair.east, STOCK_QUEUE)
    pair.east.database.end_conversation(target)
    pair.rounds()
    query(pair.east.database, "delete from servicebroker.conversation_endpoints returning 1")
    pair.east.relay = pair.east.new_relay()
    copy.restore()
    send_orders(pair, handle, 1)
    assert errors(receive_all(pair.west, ORDERS_QUEUE)) == [-8462]
    assert waiting_messages(pair.west.database) == 0


def test_transmission_status_says_that_the_other_side_does_not_answer(pair: Pair) -> None:
    """For example an old copy without a secured conversation has no key to answer with."""
    handle, _ = open_conversation(pair)
    pair.west.database.send(handle, ORDER, "into the void")
    for _ in range(4):
        pair.pass_time(70.0)
        pair.west.round([])
        pair.west.out.frames.clear()
    (status,) = {row[0] for row in query(pair.west.database, "select transmission_status from sys.transmission_queue")}
    assert "acknowledges nothing" in status
    report = doctor(pair.west)
    assert "Nothing is lost" in report
    assert "does not know the conversation: END CONVERSATION WITH ERROR here" in report
    assert "CLEANUP" not in report
    pair.pass_time(70.0)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert bodies(receive_all(pair.east, STOCK_QUEUE)) == [b"into the void"]


def without_tokens(body: bytes) -> bytes:
    """Return the frame as a peer of an older version sends it."""
    envelope = parse(body)
    header, payload = envelope.header, open_payload(envelope, CHECKSUM)
    if isinstance(payload, tuple):
        payload = tuple(structs.replace(part, token=None) for part in payload)
    ack = header.acknowledgement and structs.replace(header.acknowledgement, token=None)
    return encode(structs.replace(header, acknowledgement=ack, floor=None, before=None), payload, CHECKSUM)


def test_a_peer_without_tokens_exchanges_messages(pair: Pair) -> None:
    for site in (pair.west, pair.east):
        send = site.out.send
        site.out.send = lambda body, send=send: send(without_tokens(body))  # type: ignore[method-assign, misc]
    handle, target = open_conversation(pair, 3)
    send_replies(pair, target, 2)
    send_orders(pair, handle, 3)
    assert (len(receive_all(pair.west, ORDERS_QUEUE)), len(receive_all(pair.east, STOCK_QUEUE))) == (2, 3)
    assert waiting_messages(pair.west.database) == 0


def test_control_characters_in_a_peers_reason_are_removed(pair: Pair) -> None:
    _, target = open_conversation(pair)
    pair.east.database.send(target, REPLY, "x")
    pair.east.round([])
    header = structs.replace(parse(pair.east.out.frames[0]).header, kind=Kind.FAILURE, number=0)
    pair.west.round([encode(header, BrokerFailure(-9720, "it\0has\x1bgone"), CHECKSUM)])
    assert query(pair.west.database, "select last_detail from servicebroker.old_copies") == [("it\ufffdhas\ufffdgone",)]
    assert "it\ufffdhas\ufffdgone" in doctor(pair.west)
