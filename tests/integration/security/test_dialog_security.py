"""Secure conversations between two instances: trusted certificates, encryption, and reasons for waiting messages."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import servicebroker as sb
from remote_support import PASSWORD, Copy, Pair, Site, begin, introduce, leftovers, open_pair
from servicebroker.engine.conversation.endpoints import remove_closed_endpoints
from servicebroker.model.states import REPLAY_PROTECTION
from servicebroker.protocol.envelope import Header, Kind, parse
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    bodies,
    errors,
    query,
    refused,
    state,
    waiting_messages,
)

SECRET = "the teapot is cracked"


@pytest.fixture
def pair(make_instance_url: Callable[..., str]) -> Iterator[Pair]:
    with open_pair(make_instance_url) as pair:
        pair.east.database.revoke("SEND", "public", service=STOCK)
        yield pair


def talk(pair: Pair, *texts: str, handle: Any = None) -> Any:
    """Send the texts on a conversation, by default a new one, and return its handle."""
    database = pair.west.database
    handle = handle or database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for text in texts:
        database.send(handle, ORDER, text)
    return handle


def headers(site: Site) -> list[Header]:
    return [parse(frame).header for frame in site.out.frames]


def receive_arrived(pair: Pair) -> list[bytes]:
    found: list[bytes] = []
    while messages := pair.east.database.receive(STOCK_QUEUE):  # conversation by conversation
        found += [body or b"" for body in bodies(messages)]
    return found


def keys(site: Site) -> list[tuple[Any, ...]]:
    return query(
        site.database,
        "select outbound_session_key_identifier, inbound_session_key_identifier from sys.conversation_endpoints",
    )


def status(pair: Pair, handle: Any) -> str:
    return pair.west.database.get_transmission_status(handle)


# ---------------------------------------------------------------- transmitted frames


@pytest.mark.feature(158, 161)
def test_full_security_encrypts_and_authenticates_both_sides(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = talk(pair, SECRET)
    pair.west.round([])
    (first,) = headers(pair.west)
    assert first.is_secured
    assert first.exchange is not None
    assert not any(SECRET.encode() in frame for frame in pair.west.out.frames)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    assert message.message_body == SECRET.encode()
    pair.east.database.send(message.conversation_handle, REPLY, SECRET)
    pair.east.round([])
    (answer,) = headers(pair.east)
    assert answer.exchange is not None
    assert answer.exchange.key_id != first.exchange.key_id
    assert not any(SECRET.encode() in frame for frame in pair.east.out.frames)
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [SECRET.encode()]
    assert keys(pair.west) == [(first.exchange.key_id, answer.exchange.key_id)]
    assert keys(pair.east) == [(answer.exchange.key_id, first.exchange.key_id)]
    users = (
        "select a.name, b.name from sys.conversation_endpoints e "
        "join sys.database_principals a using (broker_database, principal_id) "
        "join sys.database_principals b on b.broker_database = e.broker_database "
        "and b.principal_id = e.far_principal_id"
    )
    assert query(pair.west.database, users) == [("dbo", "Stock")]
    assert query(pair.east.database, users) == [("dbo", "Orders")]
    # both have acknowledged: no security header any more
    talk(pair, "again", handle=handle)
    pair.east.database.send(message.conversation_handle, REPLY, "again")
    for site in (pair.west, pair.east):
        site.round([])
        assert [header.exchange for header in headers(site)] == [None]
        assert [header.is_secured for header in headers(site)] == [True]
    pair.rounds()
    # a session key belongs to one conversation
    talk(pair, "another")
    pair.west.round([])
    assert headers(pair.west)[0].exchange.key_id != first.exchange.key_id  # type: ignore[union-attr]
    pair.rounds()
    assert receive_arrived(pair) == [b"again", b"another"]
    assert "reject" not in status(pair, handle)
    # and ends like any other conversation
    pair.west.database.end_conversation(handle)
    pair.rounds()
    pair.east.database.end_conversation(message.conversation_handle)
    pair.rounds()
    # keys exist while endpoints are open, and for a while after, since the peer may resend its end
    assert query(
        pair.west.database,
        "select state, count(*) from servicebroker.conversation_endpoints "
        "join servicebroker.conversation_keys using (conversation_handle) group by 1 order by 1",
    ) == [("CD", 1), ("CO", 1)]


@pytest.mark.feature(159, 161)
def test_anonymous_security_encrypts_without_a_certificate_of_the_initiator(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path, anonymous=True)
    pair.west.database.drop_certificate("orders")  # an anonymous initiator shows no certificate
    handle = talk(pair, SECRET)
    pair.west.round([])
    (first,) = headers(pair.west)
    assert first.exchange is not None
    assert (first.exchange.source, first.exchange.signature) == (b"", b"")
    assert not any(SECRET.encode() in frame for frame in pair.west.out.frames)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.send(message.conversation_handle, REPLY, SECRET)
    pair.east.round([])
    assert [(header.is_secured, header.exchange) for header in headers(pair.east)] == [(True, None)]
    assert not any(SECRET.encode() in frame for frame in pair.east.out.frames)
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [SECRET.encode()]
    key = first.exchange.key_id
    assert keys(pair.west) == keys(pair.east) == [(key, key)]
    # The initiator acts as public: without the right of public it is refused.
    pair.east.database.revoke("SEND", "public", service=STOCK)
    refused = talk(pair, "no")
    pair.rounds()
    (error,) = pair.west.database.receive(ORDERS_QUEUE)
    assert (error.conversation_handle, sb.read_error(error.message_body)[0]) == (refused, -8494)
    talk(pair, "yes", handle=handle)  # an open conversation stays open
    pair.rounds()
    assert receive_arrived(pair) == [b"yes"]


@pytest.mark.feature(40, 160)
def test_encryption_off_and_no_binding_is_no_security(pair: Pair, tmp_path: Path) -> None:
    """A sender without security acts as public."""
    begin(pair)
    pair.rounds()
    (error,) = pair.west.database.receive(ORDERS_QUEUE)
    assert sb.read_error(error.message_body)[0] == -8494
    pair.east.database.grant("SEND", "public", service=STOCK)
    begin(pair)
    pair.west.round([])
    assert [(header.is_secured, header.exchange) for header in headers(pair.west)] == [(False, None)]
    pair.rounds()
    assert receive_arrived(pair) == [b"0"]
    # a binding secures a conversation whatever ENCRYPTION says
    introduce(pair, tmp_path)
    begin(pair)
    pair.west.round([])
    assert [header.is_secured for header in headers(pair.west)] == [True]
    pair.rounds()
    assert receive_arrived(pair) == [b"0"]


# ---------------------------------------------------------------- reasons for waiting


@pytest.mark.feature(40, 160, 162)
def test_why_messages_wait_and_that_they_leave_when_it_is_mended(pair: Pair, tmp_path: Path) -> None:
    west, east = pair.west.database, pair.east.database
    handle = talk(pair, "one")

    def waits(words: str) -> None:
        pair.pass_time(6)
        pair.rounds(2)
        assert words in status(pair, handle), status(pair, handle)
        assert not pair.west.out.frames

    waits("there is no remote service binding for the target service")  # 9727
    east.create_master_key(PASSWORD)
    east.create_certificate("stock")
    east.backup_certificate("stock", tmp_path / "stock.pem")
    west.create_user("Stock")
    west.create_remote_service_binding("ToStock", to_service=STOCK, user="Stock")
    waits("there is no security certificate bound to the database principal (Id: 1)")  # 9731: the owner has none
    west.create_certificate("orders", encryption_password=PASSWORD)
    # 9731: the binding's user has none, either
    waits("there is no security certificate bound to the database principal")
    west.create_certificate("theirs", file=tmp_path / "stock.pem", authorization="Stock")
    waits("is password protected")  # 9737
    west.alter_certificate("orders", remove_private_key=True)
    waits("There is no private key")  # 9733
    west.drop_certificate("orders")
    west.create_master_key(PASSWORD)
    west.create_certificate("orders", active_for_begin_dialog=False)
    waits("has been disabled for use with BEGIN DIALOG")  # 9767
    west.alter_certificate("orders", active_for_begin_dialog=True)
    west.alter_master_key(service_master_key=False)
    waits("needs to access the master key in the database 'Test'")  # 28054
    west.open_master_key(PASSWORD)
    west.alter_master_key(service_master_key=True)
    west.backup_certificate("orders", tmp_path / "orders.pem")
    east.create_user("Orders")
    east.create_certificate("ours", file=tmp_path / "orders.pem", authorization="Orders")
    east.grant("SEND", "Orders", service=STOCK)
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == [b"one"]
    assert status(pair, handle) == ""


@pytest.mark.feature(162)
def test_messages_wait_while_a_master_key_is_missing(pair: Pair, tmp_path: Path) -> None:
    """The initiator cannot store a session key (28051). The target cannot decrypt it: the message waits (28054)."""
    introduce(pair, tmp_path, anonymous=True)
    west, east = pair.west.database, pair.east.database
    west.drop_certificate("orders")
    west.drop_master_key()
    handle = talk(pair, "one")
    pair.rounds(2)
    assert "Could not save a dialog session key" in status(pair, handle)
    west.create_master_key(PASSWORD)
    east.alter_master_key(service_master_key=False)
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == []
    east.open_master_key(PASSWORD)
    east.alter_master_key(service_master_key=True)
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == [b"one"]
    # certificates of a database are useless without a master key: 28050
    west.alter_remote_service_binding("ToStock", anonymous=False)
    west.create_certificate("orders")
    query(west, "delete from servicebroker.master_keys returning 1")
    other = talk(pair, "two")
    pair.rounds(2)
    assert "The database master key is required for this operation" in status(pair, other)


@pytest.mark.feature(162)
def test_a_conversation_under_way_waits_while_its_keys_cannot_be_opened(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    west = pair.west.database
    handle = talk(pair, "one")
    pair.rounds()
    assert receive_arrived(pair) == [b"one"]
    west.alter_master_key(service_master_key=False)
    pair.west.relay = pair.west.new_relay()
    talk(pair, "two", handle=handle)
    pair.rounds()
    assert "needs to access the master key" in status(pair, handle)
    west.open_master_key(PASSWORD)
    west.alter_master_key(service_master_key=True)
    pair.pass_time(70)
    pair.rounds()
    assert receive_arrived(pair) == [b"two"]


# ---------------------------------------------------------------- trusted certificates


@pytest.mark.feature(163)
def test_the_remote_user_needs_send(pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    introduce(pair, tmp_path)
    pair.east.database.revoke("SEND", "Orders", service=STOCK)
    talk(pair, SECRET)
    with caplog.at_level(logging.INFO, "servicebroker.broker"):
        pair.rounds()
    (error,) = pair.west.database.receive(ORDERS_QUEUE)
    assert sb.read_error(error.message_body) == (-8494, f"You do not have permission to access the service '{STOCK}'.")
    assert "does not have permission to send to the service" in caplog.text  # 11215
    assert receive_arrived(pair) == []
    pair.east.database.grant("SEND", "Orders", service=STOCK)
    talk(pair, "now")
    pair.rounds()
    assert receive_arrived(pair) == [b"now"]


def tamper(pair: Pair, change: Callable[[Header], Header]) -> None:
    """Change the headers of west's frames on arrival."""
    frames, pair.west.out.frames = pair.west.out.frames, deque()
    changed = []
    for frame in frames:
        envelope = parse(frame)
        clear = msgspec.msgpack.Encoder(uuid_format="bytes").encode(change(envelope.header))
        changed.append(len(clear).to_bytes(2, "big") + clear + envelope.sealed)
    pair.east.round(changed)


def with_exchange(**fields: Any) -> Callable[[Header], Header]:
    def change(header: Header) -> Header:
        assert header.exchange is not None
        return msgspec.structs.replace(header, exchange=msgspec.structs.replace(header.exchange, **fields))

    return change


@pytest.mark.feature(166, 167)
@pytest.mark.parametrize("subclass", ["No Security Header", "No Certificate", "Bad Signature", "Run As Target Failure"])
def test_unverified_messages_are_audited_dropped_and_sent_again(
    pair: Pair, tmp_path: Path, subclass: str, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(pair, tmp_path)
    east = pair.east.database
    changes: dict[str, Callable[[Header], Header]] = {
        "No Security Header": lambda header: msgspec.structs.replace(header, exchange=None),
        "No Certificate": with_exchange(source=b"x" * 32),
        "Bad Signature": with_exchange(wrapped=b"x" * 48),
    }
    if subclass == "Run As Target Failure":
        east.create_user("Owner")
        east.alter_authorization("Owner", service=STOCK)
        east.grant("SEND", "Orders", service=STOCK)
        east.deny("RECEIVE", "Owner", queue=STOCK_QUEUE)
    talk(pair, SECRET)
    pair.west.round([])
    with caplog.at_level(logging.INFO, "servicebroker.broker"):
        tamper(pair, changes.get(subclass, lambda header: header))
    audited = [record for record in caplog.records if getattr(record, "fields", {}).get("subclass") == subclass]
    assert [record.fields["event"] for record in audited] == ["Audit Broker Conversation"]  # type: ignore[attr-defined]
    if subclass == "Run As Target Failure":
        assert "does not have permission to receive from the queue" in caplog.text  # 8401
        east.revoke("RECEIVE", "Owner", queue=STOCK_QUEUE)
    assert not pair.east.out.frames  # the peer gets no error
    assert query(east, "select count(*) from sys.conversation_endpoints") == [(0,)]
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == [SECRET.encode()]


@pytest.mark.feature(167)
def test_the_owner_of_the_target_must_only_not_be_denied_receive(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(pair, tmp_path)
    east = pair.east.database
    east.create_user("Owner")
    east.create_role("Keepers")
    east.add_role_member("Keepers", "Owner")
    east.alter_authorization("Owner", service=STOCK)
    east.grant("SEND", "Orders", service=STOCK)
    talk(pair, "granted nothing")
    pair.rounds()
    assert receive_arrived(pair) == [b"granted nothing"]
    for denied in ("Keepers", "public"):
        east.deny("RECEIVE", denied, queue=STOCK_QUEUE)
        east.grant("RECEIVE", "Owner", queue=STOCK_QUEUE)  # a DENY has precedence
        caplog.clear()
        handle = talk(pair, denied)
        with caplog.at_level(logging.INFO, "servicebroker.broker"):
            pair.rounds()
        assert "does not have permission to receive from the queue" in caplog.text  # 8401
        assert receive_arrived(pair) == []
        east.revoke("RECEIVE", denied, queue=STOCK_QUEUE)
        pair.pass_time(6)
        pair.rounds()
        assert receive_arrived(pair) == [denied.encode()]
        assert status(pair, handle) == ""


@pytest.mark.feature(136)
@pytest.mark.parametrize("field", ["source", "signature"])
def test_a_source_without_a_signature_is_a_corrupted_message(
    pair: Pair, tmp_path: Path, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(pair, tmp_path)
    talk(pair, SECRET)
    pair.west.round([])
    with caplog.at_level(logging.INFO, "servicebroker.broker"):
        tamper(pair, with_exchange(**{field: b""}))
    assert "11251" in caplog.text
    assert not pair.east.out.frames  # the peer gets no error
    assert query(pair.east.database, "select count(*) from sys.conversation_endpoints") == [(0,)]
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == [SECRET.encode()]


@pytest.mark.feature(158)
def test_only_known_and_valid_certificates_are_accepted(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sides must have imported the certificate of the other side, and it must not have expired."""
    introduce(pair, tmp_path)
    west, east = pair.west.database, pair.east.database
    east.drop_certificate("orders!")
    handle = talk(pair, "one")
    pair.rounds()
    assert "No Certificate" in caplog.text
    east.create_certificate("orders!", file=tmp_path / "orders.pem", authorization="Orders")
    pair.pass_time(6)
    pair.rounds()
    (message,) = east.receive(STOCK_QUEUE)
    # the answer's certificate no longer belongs to the binding's user
    caplog.clear()
    west.alter_authorization("dbo", certificate="stock!")
    west.create_user("Nobody")
    west.alter_authorization("Nobody", certificate="stock!")
    east.send(message.conversation_handle, REPLY, "two")
    pair.rounds()
    assert west.receive(ORDERS_QUEUE) == []
    assert "No Certificate" in caplog.text
    west.alter_authorization("Stock", certificate="stock!")
    pair.pass_time(6)
    pair.rounds()
    assert bodies(west.receive(ORDERS_QUEUE)) == [b"two"]
    # they expire; conversations with session keys continue
    pair.west.clock.jump(days=400)
    talk(pair, "three", handle=handle)
    other = talk(pair, "four")
    pair.rounds()
    assert receive_arrived(pair) == [b"three"]
    assert "there is no security certificate" in status(pair, other)


@pytest.mark.feature(158)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("of", ["orders", "stock"])
@pytest.mark.parametrize("time", ["expired", "early"])
def test_each_side_judges_certificates_by_its_own_clock(
    make_instance_url: Callable[..., str], tmp_path: Path, of: str, time: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificates are valid by the sender's clock but not by the receiver's, in both directions."""
    with open_pair(make_instance_url, Clock()) as pair:
        now = pair.east.clock()
        minute, day = timedelta(minutes=1), timedelta(days=1)
        ahead = 2 * minute if time == "expired" else -2 * minute
        introduce(
            pair, tmp_path, dates={of: (now - day, now + minute) if time == "expired" else (now - minute, now + day)}
        )

        def travels(sender: Site, receiver: Site) -> None:
            """Check that messages are refused first, and accepted later."""
            caplog.clear()
            sender.round([])
            frames, sender.out.frames = sender.out.frames, deque()
            assert [parse(frame).header.exchange is not None for frame in frames] == [True]
            receiver.clock.ahead += ahead
            receiver.round(frames)
            assert "No Certificate" in caplog.text
            assert not receiver.out.frames
            receiver.clock.ahead -= ahead
            receiver.round(frames)
            pair.pass_time(6)
            pair.rounds()

        handle = talk(pair, "one")
        travels(pair.west, pair.east)
        (message,) = pair.east.database.receive(STOCK_QUEUE)
        pair.east.database.send(message.conversation_handle, REPLY, "two")
        travels(pair.east, pair.west)
        assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"two"]
        talk(pair, "three", handle=handle)
        pair.rounds()
        assert receive_arrived(pair) == [b"three"]


@pytest.mark.feature(158)
def test_the_keeper_of_the_key_needs_control(pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    introduce(pair, tmp_path)
    east = pair.east.database
    east.create_user("Keeper")
    east.alter_authorization("Keeper", certificate="stock")
    talk(pair, "one")
    with caplog.at_level(logging.INFO, "servicebroker.broker"):
        pair.rounds()
    assert "does not have control permission on the service" in caplog.text  # 28056
    assert receive_arrived(pair) == []
    east.grant("CONTROL", "Keeper", service=STOCK)
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == [b"one"]


@pytest.mark.feature(158, 161)
def test_every_changed_message_is_dropped_and_sent_again(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, seeded_random: Any
) -> None:
    introduce(pair, tmp_path)
    handle, expected = None, []
    for number in range(12):
        expected.append(f"message {number}".encode())
        handle = talk(pair, expected[-1].decode(), handle=handle)
        pair.west.round([])
        changed = []
        for frame in pair.west.out.frames:
            for _ in range(3):
                bits = bytearray(frame)
                bit = seeded_random.randrange(8 * len(bits))
                bits[bit // 8] ^= 1 << bit % 8
                changed.append(bytes(bits))
        pair.west.out.frames = deque()
        pair.east.round(changed)
        assert not any(
            header.acknowledgement and header.acknowledgement.below > number for header in headers(pair.east)
        )
        pair.pass_time(70)
        pair.rounds(3)
    assert receive_arrived(pair) == expected
    assert "Broker:Corrupted Message" in caplog.text


@pytest.mark.feature(161)
def test_the_key_of_another_conversation_is_refused(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An exchange of another conversation is refused, as is a second one in the same conversation (11233)."""
    introduce(pair, tmp_path)
    talk(pair, "one")
    pair.west.round([])
    frames = list(pair.west.out.frames)
    stolen = parse(frames[0]).header.exchange
    assert stolen is not None
    pair.rounds()
    assert receive_arrived(pair) == [b"one"]
    with caplog.at_level(logging.INFO, "servicebroker.broker"):
        pair.west.out.frames = deque(frames)
        tamper(pair, with_exchange(key_id=parse(frames[0]).header.conversation_id))
    assert "session key of the conversation endpoint does not match" in caplog.text
    caplog.clear()
    talk(pair, "two")
    pair.west.round([])
    tamper(pair, lambda header: msgspec.structs.replace(header, exchange=stolen))
    assert "Bad Signature" in caplog.text
    pair.pass_time(6)
    pair.rounds()
    assert receive_arrived(pair) == [b"two"]


# ---------------------------------------------------------------- time


@pytest.mark.feature(161)
def test_daemons_that_begin_anew_have_the_keys(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = talk(pair, "one")
    pair.west.round([])  # the message does not arrive
    pair.west.out.frames.clear()
    pair.west.relay = pair.west.new_relay()
    pair.pass_time(6)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.send(message.conversation_handle, REPLY, "two")
    pair.east.relay = pair.east.new_relay()
    pair.rounds()
    pair.west.relay = pair.west.new_relay()
    pair.east.database.send(message.conversation_handle, REPLY, "three")
    talk(pair, "four", handle=handle)
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"two", b"three"]
    assert receive_arrived(pair) == [b"four"]
    stored = query(pair.west.database, "select first_key, second_key, exchange from servicebroker.conversation_keys")
    assert all(len(key) == 12 + 32 + 16 for row in stored for key in row[:2])  # encrypted


@pytest.mark.feature(164, 165)
def test_certificates_are_replaced_without_loss(pair: Pair, tmp_path: Path) -> None:
    """Both sides add certificates with a later expiry for the same users; then the old ones are dropped."""
    introduce(pair, tmp_path)
    west, east = pair.west.database, pair.east.database
    old = talk(pair, "old 1")
    pair.rounds()
    (message,) = east.receive(STOCK_QUEUE)
    pair.west.clock.jump(days=300)
    talk(pair, "old 2", handle=old)
    east.send(message.conversation_handle, REPLY, "answer")
    pair.rounds()
    introduce(pair, tmp_path, suffix=" 2027")
    waiting = talk(pair, "waiting")
    pair.west.round([])
    exchange = next(header.exchange for header in headers(pair.west) if header.exchange)
    newest = "select thumbprint from sys.certificates where name = %s"
    assert query(west, newest, "orders 2027") == [(exchange.source,)]
    assert query(west, newest, "stock 2027!") == [(exchange.destination,)]
    pair.west.out.frames.clear()  # lost; meanwhile the old ones are dropped
    for database, names in ((west, ("orders", "stock!")), (east, ("stock", "orders!"))):
        for name in names:
            database.drop_certificate(name)
    pair.west.clock.jump(days=100)  # and have expired
    talk(pair, "new")
    talk(pair, "waited", handle=waiting)
    pair.pass_time(70)
    pair.rounds()
    assert sorted(receive_arrived(pair)) == [b"new", b"old 2", b"waited", b"waiting"]


@pytest.mark.feature(161, 165)
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_key_that_was_not_acknowledged_is_wrapped_anew_when_certificates_are_replaced(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, anonymous: bool
) -> None:
    introduce(pair, tmp_path, anonymous=anonymous)
    west, east = pair.west.database, pair.east.database
    handle = talk(pair, "one")
    pair.west.round([])
    pair.west.out.frames.clear()  # lost; the certificates of its key are dropped before it is sent again
    pair.west.clock.jump(days=100)
    introduce(pair, tmp_path, suffix=" 2027", anonymous=anonymous)
    east.drop_certificate("stock")
    pair.pass_time(70)
    pair.rounds()
    (message,) = east.receive(STOCK_QUEUE)
    assert message.message_body == b"one"
    assert status(pair, handle) == ""
    if anonymous:
        return
    east.send(message.conversation_handle, REPLY, "two")  # the same for the key of the target
    pair.east.round([])
    pair.east.out.frames.clear()
    for name in ("orders", "stock!"):
        west.drop_certificate(name)
    pair.west.relay = pair.west.new_relay()
    pair.pass_time(70)
    pair.rounds()
    assert bodies(west.receive(ORDERS_QUEUE)) == [b"two"]
    talk(pair, "three", handle=handle)
    pair.rounds()
    assert receive_arrived(pair) == [b"three"]


@pytest.mark.feature(161, 165)
def test_the_status_reports_a_missing_certificate_of_the_target(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = talk(pair, "one")
    pair.west.round([])
    pair.west.out.frames.clear()
    pair.east.database.drop_certificate("stock")
    pair.west.database.drop_certificate("stock!")
    pair.pass_time(70)
    pair.rounds()
    assert "certificate" in status(pair, handle)
    introduce(pair, tmp_path, suffix=" 2027")
    for _ in range(3):
        pair.pass_time(70)
        pair.rounds()
    assert receive_arrived(pair) == [b"one"]
    assert status(pair, handle) == ""


def test_encrypted_bodies_of_every_size_arrive(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    sizes = [0, 1, 70_000, 5, 300_000]
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for size in sizes:
        pair.west.database.send(handle, ORDER, b"x" * size)
    pair.rounds(12)
    assert [len(body) for body in receive_arrived(pair)] == sizes


def test_unsecured_frames_do_not_enter_a_secured_conversation(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(pair, tmp_path)
    talk(pair, "one")
    pair.west.round([])
    tamper(pair, lambda header: msgspec.structs.replace(header, is_secured=False, exchange=None))
    assert "Broker:Corrupted Message" in caplog.text
    pair.pass_time(6)
    pair.rounds()
    tamper(pair, lambda header: header)
    assert receive_arrived(pair) == [b"one"]
    assert Kind.FAILURE not in {header.kind for header in headers(pair.east)}


# ---------------------------------------------------------------- restored backups


def test_an_old_copy_is_told_apart_under_the_seal(pair: Pair, tmp_path: Path) -> None:
    introduce(pair, tmp_path)
    handle = talk(pair, "first")
    pair.rounds()
    copy = Copy(pair.west)
    talk(pair, "second", handle=handle)
    pair.rounds()
    assert receive_arrived(pair) == [b"first", b"second"]
    copy.restore()
    talk(pair, "another second", "third", handle=handle)
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-9719]
    assert errors(pair.east.database.receive(STOCK_QUEUE)) == [-9720]


def test_an_old_copy_without_the_conversation_has_no_key_to_answer_with(pair: Pair, tmp_path: Path) -> None:
    """The missing conversation cannot be proved, so the message waits with a reason."""
    introduce(pair, tmp_path)
    copy = Copy(pair.east)
    handle = talk(pair, "first")
    pair.rounds()
    copy.restore()
    talk(pair, "second", handle=handle)
    pair.rounds()
    assert status(pair, handle) == ""
    for _ in range(3):
        pair.pass_time(70.0)
        pair.rounds()
    assert "acknowledges nothing" in status(pair, handle)


def test_an_old_copy_that_lacks_the_key_gets_it_under_the_certificates_of_today(pair: Pair, tmp_path: Path) -> None:
    """The initiator no longer has the target's former certificates, as after a restore from an old backup."""
    introduce(pair, tmp_path)
    talk(pair, "first")
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    copy = Copy(pair.west)
    pair.east.database.send(message.conversation_handle, REPLY, "taken")
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"taken"]
    copy.restore()
    pair.west.clock.jump(days=100)
    introduce(pair, tmp_path, suffix=" 2027")
    for name in ("orders", "stock!"):
        pair.west.database.drop_certificate(name)
    pair.east.database.send(message.conversation_handle, REPLY, "more")
    for _ in range(3):
        pair.rounds()
        pair.pass_time(70.0)
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-9719]
    assert errors(pair.east.database.receive(STOCK_QUEUE)) == [-9720]


@pytest.mark.feature(43)
@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("is_fenced", [False, True], ids=["by the method", "by the server's function"])
def test_an_end_is_acknowledged_again_by_an_initiator_that_has_closed(
    pair: Pair, tmp_path: Path, *, anonymous: bool, is_fenced: bool
) -> None:
    """The acknowledgement was lost, and the daemon has dropped the keys. The endpoint still has them."""
    introduce(pair, tmp_path, anonymous=anonymous)
    west, east = pair.west.database, pair.east.database
    handle = talk(pair, SECRET)
    pair.rounds()
    (message,) = east.receive(STOCK_QUEUE)
    east.end_conversation(message.conversation_handle)
    pair.east.round([])
    pair.west.round(pair.east.out.frames)
    assert west.receive(ORDERS_QUEUE)
    if is_fenced:
        query(west, "select servicebroker.close_endpoint(%s)", handle)
    else:
        west.end_conversation(handle)
    pair.west.out.frames.clear()
    pair.east.out.frames.clear()
    pair.west.relay = pair.west.new_relay()
    assert (state(west, handle), state(east, message.conversation_handle)) == ("CD", "DO")
    with refused(8427, "CD"):
        west.end_conversation(handle)
    for _ in range(3):
        pair.pass_time(5)
        pair.rounds()
    assert state(east, message.conversation_handle) == "CD"
    assert waiting_messages(east) == 0
    with pair.west.instance.connection() as connection:
        run(connection, remove_closed_endpoints(pair.west.clock() + REPLAY_PROTECTION))
    assert leftovers(pair.west) == {}
