"""Verbs refuse invalid arguments before their first statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from servicebroker import operations
from servicebroker.engine.catalog import catalog, message_types
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.conversation import begin, end, receive, send
from servicebroker.model import arguments
from servicebroker.model.security.permissions import DBO_ID, User
from servicebroker.operations import CreateContract, CreateMessageType, CreateService, Receive, Send, SendBatch
from servicebroker.store.statements import Steps
from support import refused

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HANDLE = UUID(int=7)
DEFINER = Definer(User(1, "D", DBO_ID, "dbo"), catalog.Catalog(), lambda: NOW)
QUEUE = catalog.Queue(65536, 1, "Q")
WRONG_HANDLES = ["text", str(HANDLE), 5, b"bytes", [HANDLE]]


def start(steps: Steps[Any]) -> None:
    """Run a verb up to its first statement."""
    try:
        next(steps)
    finally:
        steps.close()


def begin_dialog(**changes: Any) -> None:
    start(begin.begin_dialog(1, operations.BeginDialog(**{"from_service": "a", "to_service": "b"} | changes), now=NOW))


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"from_service": None}, 8421),
        ({"to_service": None}, 8421),
        ({"contract": None}, 8417),
        ({"lifetime": None}, 8406),
        ({"lifetime": 0}, 8411),
        ({"lifetime": -1}, 8411),
        ({"lifetime": 2**31}, 8411),
        ({"lifetime": 10**30}, 8411),
        ({"lifetime": 1.5}, 402),
        ({"lifetime": "5"}, 402),
        ({"lifetime": True}, 402),
        ({"from_service": 5}, 402),
        ({"to_service": b"b"}, 402),
        ({"contract": []}, 402),
        ({"to_service": "x" * 257}, 15151),
        ({"from_service": ""}, 15151),
        ({"broker_instance": "x" * 257}, 8413),
        ({"broker_instance": "no guid"}, 1093),
        ({"broker_instance": "\ud800"}, 1093),
        ({"broker_instance": 5}, 402),
        ({"related_conversation": "x"}, 402),
        ({"related_conversation_group": 5}, 402),
        ({"related_conversation_group": UUID(int=0)}, 8414),
        ({"related_conversation": HANDLE, "related_conversation_group": HANDLE}, 402),
    ],
    ids=repr,
)
def test_begin_dialog_refuses(changes: dict[str, Any], number: int) -> None:
    with refused(number):
        begin_dialog(**changes)


def timer(handle: Any, timeout: Any = 5) -> Steps[None]:
    return begin.begin_conversation_timer(operations.BeginConversationTimer(handle, timeout), now=NOW)


def test_the_name_of_a_target_may_have_256_characters() -> None:
    begin_dialog(to_service="x" * 256)


def refuses_wrong_handles(verb: Callable[[Any], Steps[Any]], wrong_handles: Sequence[object] = WRONG_HANDLES) -> None:
    with refused(8418):
        start(verb(None))
    for wrong in wrong_handles:
        with refused(402, type(wrong).__name__):
            start(verb(wrong))


def test_a_handle_is_a_uuid() -> None:
    known = catalog.Catalog()
    refuses_wrong_handles(lambda handle: send.send(known, Send(handle, "t", b""), now=NOW), WRONG_HANDLES[:-1])
    refuses_wrong_handles(lambda handle: send.send_batch(known, SendBatch(handle, "t", [b""]), now=NOW))
    refuses_wrong_handles(lambda handle: end.end_conversation(operations.EndConversation(handle), now=NOW))
    refuses_wrong_handles(timer)


@pytest.mark.feature(46)
@pytest.mark.parametrize(
    ("body", "number"), [(None, 8433), (5, 402), ([b"x"], 402), (object, 402), (1.5, 402), ("\ud800", 402)], ids=repr
)
def test_send_refuses_a_body(body: Any, number: int) -> None:
    with refused(number):
        start(send.send(catalog.Catalog(), Send(HANDLE, "t", body), now=NOW))
    with refused(number):
        start(send.send_batch(catalog.Catalog(), SendBatch(HANDLE, "t", [b"x", body]), now=NOW))


@pytest.mark.parametrize("wrong", [None, 5, b"t", ["t"], {}], ids=repr)
def test_a_message_type_is_a_str_also_on_a_known_way(wrong: Any) -> None:
    known = catalog.Catalog()
    known.remember_channel(HANDLE, catalog.Channel(True, 65536, {}, {}, 1))
    with refused(402, "message type"):
        start(send.send(known, Send(HANDLE, wrong, b""), now=NOW))
    with refused(402, "message type"):
        start(send.send_batch(known, SendBatch(HANDLE, wrong, [b""]), now=NOW))


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", "text", []], ids=repr)
def test_a_batch_is_a_list_of_bodies(wrong: Any) -> None:
    with refused(402, "the batch"):
        start(send.send_batch(catalog.Catalog(), SendBatch(HANDLE, "t", wrong), now=NOW))


@pytest.mark.parametrize("made", [bytes, bytearray, memoryview, lambda raw: raw.decode("utf-16-le")])
def test_a_body_has_a_maximum(made: Callable[[bytes], Any]) -> None:
    # str: 2 bytes per character
    fits, is_over = (
        made("\u00e4".encode("utf-16-le") * 5),
        made("\u00e4".encode("utf-16-le") * 6),
    )
    start(send.send(catalog.Catalog(), Send(HANDLE, "t", fits), now=NOW, maximum_body=10))
    with refused(8459, "10"):
        start(send.send(catalog.Catalog(), Send(HANDLE, "t", is_over), now=NOW, maximum_body=10))
    start(send.send_batch(catalog.Catalog(), SendBatch(HANDLE, "t", [fits, fits]), now=NOW, maximum_body=10))
    with refused(8459, "10"):
        start(send.send_batch(catalog.Catalog(), SendBatch(HANDLE, "t", [fits, is_over]), now=NOW, maximum_body=10))


@pytest.mark.parametrize("wrong", [0, -1, None, True, 1.5, "9", 900 * 1024 * 1024 + 1], ids=repr)
def test_the_maximum_of_bodies_has_bounds(wrong: Any) -> None:
    with refused(402, "maximum_body"):
        arguments.checked_maximum(wrong)
    assert arguments.checked_maximum(900 * 1024 * 1024)


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"top": -1}, 402),
        ({"top": 1.0}, 402),
        ({"top": "1"}, 402),
        ({"top": True}, 402),
        ({"conversation_handle": "x"}, 402),
        ({"conversation_group_id": 5}, 402),
        ({"conversation_handle": HANDLE, "conversation_group_id": HANDLE}, 402),
    ],
    ids=repr,
)
def test_receive_refuses(changes: dict[str, Any], number: int) -> None:
    with refused(number):
        start(receive.receive(catalog.Catalog(), QUEUE, Receive("Q", **changes), now=NOW))


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"error": (None, None)}, 8424),
        ({"error": (None, "text")}, 8419),
        ({"error": (5, None)}, 8422),
        ({"error": (0, "text")}, 402),
        ({"error": (-1, "text")}, 402),
        ({"error": (2**31, "text")}, 402),
        ({"error": (True, "text")}, 402),
        ({"error": ("5", "text")}, 402),
        ({"error": (5, b"text")}, 402),
        ({"error": (5, "x" * 3001)}, 402),
        ({"error": 5}, 402),
        ({"error": "ab"}, 402),
        ({"error": (5,)}, 402),
        ({"error": (5, "a", "b")}, 402),
        ({"error": (5, "text"), "cleanup": True}, 402),
    ],
    ids=repr,
)
def test_end_conversation_refuses(options: dict[str, Any], number: int) -> None:
    with refused(number):
        start(end.end_conversation(operations.EndConversation(HANDLE, **options), now=NOW))


@pytest.mark.parametrize("timeout", [None, -1, 2**31, 1.5, "5", True], ids=repr)
def test_a_timer_takes_whole_seconds(timeout: Any) -> None:
    with refused(402, "TIMEOUT"):
        start(timer(HANDLE, timeout))


@pytest.mark.parametrize(
    ("sent_by", "number"),
    [
        ([("t", "INITIATOR"), ("t", "ANY")], 8403),
        ({"t": "TARGET"}, 8492),
        ({}, 8492),
        ({"t": "BOTH"}, 402),
        ({"t": ["ANY"]}, 402),
        ({5: "ANY"}, 402),
        ([(["t"], "ANY")], 402),
        ([("t",)], 402),
        (["t"], 402),
        ("t", 402),
        (None, 402),
        (5, 402),
    ],
    ids=repr,
)
def test_create_contract_refuses(sent_by: Any, number: int) -> None:
    with refused(number):
        start(catalog.create_contract(1, CreateContract("c", sent_by), DBO_ID))


@pytest.mark.parametrize(
    ("contracts", "number"), [(["c", "c"], 8404), ("c", 402), (None, 402), (5, 402), ([5], 402)], ids=repr
)
def test_create_service_refuses(contracts: Any, number: int) -> None:
    with refused(number):
        start(catalog.create_service(1, CreateService("s", "Q", contracts), 65536, DBO_ID))


@pytest.mark.parametrize("validation", [None, "XML", "none", 5, ["NONE"]], ids=repr)
def test_create_message_type_refuses_a_validation(validation: Any) -> None:
    with refused(402, "VALIDATION"):
        start(message_types.create_message_type(DEFINER, CreateMessageType("t", validation)))


@pytest.mark.parametrize("wrong", [None, 5, ["Q"], {}], ids=repr)
def test_the_name_of_a_queue_is_a_str(wrong: Any) -> None:
    with refused(402, "queue"):
        start(catalog.find_queue(catalog.Catalog(), 1, wrong))
