"""`servicebroker poison`: an administrator inspects and retries a message that cannot be processed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.cli.printable_text import printable, shown_body
from support import (
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS_QUEUE,
    STOCK_QUEUE,
    begin,
    bodies,
    peer_handle,
    query,
    queue_number,
    refused,
    rolled_back,
    waiting_messages,
)


@pytest.fixture
def run(database: sb.Database) -> Any:
    """Return a function that runs `servicebroker poison ...` on the database and returns its output."""

    def call(*words: object, fails: bool = False) -> str:
        options = [] if words[0] == "list" else ["--database", database.name]
        arguments = ["poison", *map(str, words), *options, "--instance", database.instance.url]
        result = CliRunner().invoke(command, arguments)
        assert (result.exception is not None) == fails, result.output
        return str(result.exception) if fails else result.output

    return call


def switched_off(database: sb.Database, *bodies_: tuple[str, bytes | str]) -> Any:
    handle = begin(database)
    for message_type, body in bodies_:
        database.send(handle, message_type, body)
    for _ in range(5):
        with rolled_back(database) as transaction:
            transaction.receive(STOCK_QUEUE)
    with refused(9617):
        database.receive(STOCK_QUEUE)
    return handle, peer_handle(database, handle)


@pytest.mark.feature(189)
def test_poison_commands_find_and_end_the_bad_conversation(database: sb.Database, run: Any) -> None:
    bad, far = switched_off(database, (ORDER, b"bad"), (ORDER, b"after"))
    good = begin(database)
    database.send(good, ORDER, b"good")  # waits: the queue is off
    assert f"{database.name}.dbo.{STOCK_QUEUE} is OFF with 2 messages" in run("list")
    inspection = run("inspect", STOCK_QUEUE)
    assert str(far) in inspection
    assert "62 61 64" not in inspection
    assert "\nbad\n" in inspection  # bad
    ended = run("end", far, "--error", 127, "--description", "Unable to process message.", "--switch-on")
    assert "error 127" in ended
    assert "is ON" in ended
    assert bodies(database.receive(STOCK_QUEUE)) == [b"good"]
    (error,) = database.receive(ORDERS_QUEUE)
    assert sb.read_error(error.message_body) == (127, "Unable to process message.")
    assert error.conversation_handle == bad
    assert database.name not in run("list")


@pytest.mark.feature(190)
@pytest.mark.parametrize("way", [(), ("--receive",)])
def test_inspection_changes_nothing_and_shows_each_body_by_its_letter(
    database: sb.Database, run: Any, way: tuple[str, ...]
) -> None:
    text = f"select * from {database.name}_dbo.stockqueue order by queuing_order"
    for message_type, body, words in (
        (MARK, b"", "Empty message."),
        (DOCUMENT, "<order>t\u00e9</order>".encode("utf-16"), "<order>t\u00e9</order>"),
        (ORDER, b"\x00\x1b[2Jz", "No validation -- binary message:\n  001b5b324a7a"),
    ):
        handle = begin(database)
        database.send(handle, message_type, body)
        far = peer_handle(database, handle)
        before = query(database, text)
        inspection = run("inspect", STOCK_QUEUE, "--conversation", far, *way)
        assert words in inspection
        assert "\x1b" not in inspection
        assert ("counts" in inspection) == bool(way)
        assert query(database, text) == before
    (listing,) = json.loads(run("inspect", STOCK_QUEUE, "--conversation", far, "--json", *way))["messages"]
    assert (listing["validation"], listing["message_body"]) == ("N", "001b5b324a7a")


def test_by_select_also_while_the_queue_is_off(database: sb.Database, run: Any) -> None:
    _, far = switched_off(database, (DOCUMENT, "<a/>"))
    assert "<a/>" in run("inspect", STOCK_QUEUE)
    assert "9617" in run("inspect", STOCK_QUEUE, "--receive", "--conversation", far, fails=True)


def test_poison_commands_report_a_missing_message_queue_or_conversation(database: sb.Database, run: Any) -> None:
    assert run("inspect", STOCK_QUEUE) == "No message available.\n"
    assert "15151" in run("inspect", "Nowhere", fails=True)
    assert "8426" in run("end", "7e0d4c3a-8d1c-4b61-9d3b-0a60f2a5a0a1", fails=True)


def test_poison_retry_enables_the_queue_and_forgets_failures(database: sb.Database, run: Any) -> None:
    def failing(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no such customer")

    database.send(begin(database), ORDER, b"x")
    database.process(STOCK_QUEUE, failing, poison=lambda failure: sb.Retry(after=3600))
    listing = run("list")
    assert "failed 1 time" in listing
    assert "ValueError: no such customer" in listing
    assert "failed 1 time" in run("inspect", STOCK_QUEUE)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(begin(database), ORDER, b"y")
    assert waiting_messages(database) == 1
    assert "1 message that has failed is tried again" in run("retry", STOCK_QUEUE)
    assert waiting_messages(database) == 0
    assert sorted(bodies(database.receive(STOCK_QUEUE) + database.receive(STOCK_QUEUE))) == [b"x", b"y"]  # type: ignore[type-var]
    counted = "select from servicebroker.failed_messages where queue_id = %s"
    assert query(database, counted, queue_number(database, STOCK_QUEUE)) == []


def test_a_body_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2J\u202eb\n") == "a\ufffd[2J\ufffdb\n"
    assert shown_body("X", b"\xff\xfea\x00") == "a"
    assert shown_body("X", b"\xef\xbb\xbfa") == "a"
    assert shown_body("N", None) == "Empty message."
    assert printable("x" * 5000).endswith("(5,000 characters)")
