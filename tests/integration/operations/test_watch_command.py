"""`servicebroker watch`, and names that the shell completes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli import completion
from servicebroker.cli.commands import watch
from servicebroker.cli.main import app as command
from servicebroker.store.embedded import EmbeddedServer
from support import ORDER, ORDERS, STOCK, STOCK_QUEUE, begin, in_thread, peer_handle

Run = Callable[..., str]
HOSTILE_QUEUE = "Stock\\$(id)"  # zsh would execute that


@pytest.fixture
def run(database: sb.Database) -> Run:
    """Return a function that runs `servicebroker watch ...` to its end and returns its output."""

    def call(target: object, *options: str) -> str:
        given = ["watch", str(target), "--database", database.name, "--instance", database.instance.url]
        result = CliRunner().invoke(command, [*given, "--every", "0.1", "--until-empty", *options])
        assert result.exit_code == 0, result.output or result.exception
        return result.output

    return call


def test_a_queue_is_watched_until_it_is_empty(database: sb.Database, run: Run) -> None:
    assert f"dbo.{STOCK_QUEUE}: 0 messages" in run(STOCK_QUEUE)
    database.send_batch(begin(database), ORDER, [b"1", b"2"])
    watching = in_thread(run, STOCK_QUEUE, "--json")
    database.receive(STOCK_QUEUE, wait=1)
    polls = [json.loads(line) for line in watching.result(30).splitlines()]
    assert (polls[-1]["messages"], polls[-1]["is_on"], polls[-1]["dead_letters"]) == (0, True, 0)


def test_a_queue_that_cannot_be_seen_is_not_empty() -> None:
    opened: Any = SimpleNamespace(query=lambda subject, steps, default: default)
    poll = watch._Queue(opened, 1, "Shop", "dbo.Q").poll()
    assert (poll.figures["messages"], poll.figures["is_on"]) == (None, None)
    assert (poll.sentence, poll.is_over) == ("dbo.Q: number of messages unknown", False)


@pytest.mark.parametrize(
    "words",
    [
        f"watch {STOCK_QUEUE} --database D --every",
        "status --watch",
        "send x --database D --delay",
        "load --seconds",
        "serve --patience",
    ],
)
def test_seconds_are_a_number(words: str) -> None:
    for seconds in ("nan", "inf", "-1"):
        result = CliRunner().invoke(command, [*words.split(), seconds])
        assert (result.exit_code, result.exception.__class__) == (2, SystemExit)


def test_completion_waits_a_second_for_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        began = time.monotonic()
        assert completion.complete_database(SimpleNamespace(params={"instance": url}), "") == []  # type: ignore[arg-type]
        assert 0.9 < time.monotonic() - began < 2


def test_a_conversation_is_watched_until_it_is_over(database: sb.Database, run: Run) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    far = peer_handle(database, handle)
    database.end_conversation(handle)
    database.receive(STOCK_QUEUE)
    database.end_conversation(far)
    report = run(handle)
    assert "closed" in report or "is not found" in report


@pytest.mark.parametrize(
    ("complete", "incomplete", "found"),
    [
        (completion.complete_queue, "sto", [STOCK_QUEUE]),
        (completion.complete_service, ORDERS[:4], [ORDERS, STOCK]),
        (completion.complete_queue, "nothing", []),
    ],
)
def test_names_are_completed(
    database: sb.Database, complete: Callable[[Any, str], list[str]], incomplete: str, found: list[str]
) -> None:
    database.create_queue(HOSTILE_QUEUE)
    context = SimpleNamespace(params={"instance": database.instance.url, "database": database.name})
    ours = (STOCK_QUEUE, ORDERS, STOCK, HOSTILE_QUEUE)
    assert [name for name in complete(context, incomplete) if name in ours] == found
    assert database.name in completion.complete_database(context, database.name[:2])


def test_the_shell_asks_and_nothing_is_started(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"servicebroker peek --database {database.name} {STOCK_QUEUE[:3]}"
    asked = {"_SERVICEBROKER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
    answer = CliRunner().invoke(
        command, env=asked | {"SERVICEBROKER_INSTANCE": database.instance.url}, prog_name="servicebroker"
    )
    assert answer.output.split() == [STOCK_QUEUE]
    monkeypatch.setattr(EmbeddedServer, "start", lambda *_, **__: pytest.fail("a server was started"))
    for nowhere in ("nowhere", "postgresql://127.0.0.1:1/none"):
        context: Any = SimpleNamespace(params={"instance": nowhere, "database": "Shop"})
        assert completion.complete_queue(context, "") == []
