"""`servicebroker send | receive | peek | queue | service` as users type them, and the messages for 80 mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from forked import Command
from servicebroker.cli import main
from servicebroker.cli.examples import EXAMPLES
from servicebroker.cli.main import app as command
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE

DIALOG = ("--from", ORDERS, "--to", STOCK, "--contract", CONTRACT)


@pytest.fixture(scope="module")
def target(make_instance_url: Callable[..., str]) -> str:
    return make_instance_url(1)


@pytest.fixture(autouse=True)
def chosen_target(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SERVICEBROKER_INSTANCE", target)
    monkeypatch.setenv("SERVICEBROKER_DATABASE", "Test")
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    monkeypatch.undo()
    for number, handler in handlers.items():  # for commands that serve until a signal arrives
        signal.signal(number, handler)


def run(*arguments: str, given: str | None = None, columns: int = 80) -> str:
    result = CliRunner().invoke(command, list(arguments), input=given, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    return result.output


def refusal_of(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code != 0
    return f"{result.output} {result.exception}"


def test_send_peek_and_receive_a_message() -> None:
    handle = run("send", "tea & pots", *DIALOG, "--type", ORDER).strip()
    assert json.loads(run("send", "-", "--conversation", handle, "--type", ORDER, "--json", given="more")) == {
        "conversation_handle": handle,
        "message_sequence_number": 1,
    }
    assert run("peek", STOCK_QUEUE) == run("peek", STOCK_QUEUE)  # peek removes nothing
    (first,) = json.loads(run("receive", STOCK_QUEUE, "--json"))["messages"]
    assert (first["text"], first["message_body"]) == ("tea & pots", b"tea & pots".hex())
    assert datetime.fromisoformat(first["message_enqueue_time"]).utcoffset() is not None
    assert "more" in run("receive", STOCK_QUEUE, "--top", "10", "--wait", "5")
    assert run("receive", STOCK_QUEUE) == "No message available.\n"


def test_create_alter_and_drop_queues_and_services() -> None:
    run("queue", "create", "Extra", "--retention")
    run("queue", "create", "extra", "--exist-ok")
    run("service", "create", "//test/Extra", "--queue", "Extra", "--contract", "DEFAULT")
    assert ["//test/Extra", "Extra", "DEFAULT"] in [line.split() for line in run("service", "list").splitlines()]
    run("queue", "alter", "Extra", "--off", "--no-retention")
    assert ["Extra", "0", "OFF", "//test/Extra"] in [line.split() for line in run("queue", "list").splitlines()]
    (row,) = [row for row in json.loads(run("queue", "list", "--json"))["queues"] if row["queue"] == "Extra"]
    assert (row["is_on"], row["retention"], row["services"]) == (False, False, ["//test/Extra"])
    run("service", "drop", "//test/Extra")
    run("queue", "drop", "Extra")
    assert "Extra" not in run("queue", "list") + run("service", "list")


def test_create_alter_list_and_drop_databases() -> None:
    run("database", "create", "Extra")
    run("database", "create", "extra", "--exist-ok")
    run("database", "alter", "Extra", "--off", "--honor-broker-priority")
    (row,) = [row for row in json.loads(run("database", "list", "--json"))["databases"] if row["database"] == "Extra"]
    assert (row["is_broker_enabled"], row["is_honor_broker_priority_on"]) == (False, True)
    shown = [line.split() for line in run("database", "list").splitlines()]
    assert ["Extra", row["service_broker_guid"], "disabled"] in shown
    assert CliRunner().invoke(command, ["database", "drop", "Extra"], input="n\n").exit_code == 1
    run("database", "drop", "Extra", "--yes")
    assert "Extra" not in run("database", "list")


def test_create_show_alter_and_drop_the_endpoint() -> None:
    assert run("endpoint", "show") == "No endpoint yet: this instance exchanges no messages with other instances.\n"
    assert json.loads(run("endpoint", "show", "--json")) == {"endpoint": None}
    run("endpoint", "create", "Broker", "--port", "4022", "--ip", "127.0.0.1")
    shown = "Broker: STARTED at 127.0.0.1:4022, authentication CERTIFICATE, encryption REQUIRED\n"
    assert run("endpoint", "show") == shown
    assert "nothing proves" in run(
        "endpoint", "alter", "Broker", "--encryption", "SUPPORTED", "--message-forwarding", "ENABLED"
    )
    run("endpoint", "alter", "Broker", "--state", "STOPPED")
    document = json.loads(run("endpoint", "show", "--json"))["endpoint"]
    assert (document["state"], document["encryption"], document["message_forwarding"]) == ("STOPPED", "SUPPORTED", True)
    run("endpoint", "drop", "Broker")


def test_send_warns_of_a_mistyped_target_and_prints_how_to_remove_the_message() -> None:
    mistyped = [STOCK[:-1] if part == STOCK else part for part in DIALOG]
    handle, warning = run("send", "x", *mistyped, "--type", ORDER).splitlines()
    assert warning.startswith("The message waits: ")
    assert "SQL Server" not in warning
    remove = f"servicebroker end {handle} --database Test --cleanup"
    assert warning.endswith(f"Did you mean {STOCK}? Then remove it: {remove}")
    assert "has ended on this side" in run("end", handle, "--cleanup")
    handle = run("send", "x", *DIALOG, "--type", ORDER).strip()
    run("end", handle, "--error", "7", "--description", "enough")
    assert "enough" in run("receive", STOCK_QUEUE, "--top", "5", "--end")


def test_a_key_sends_once() -> None:
    once = ("send", "x", *DIALOG, "--type", ORDER, "--idempotency-key", "order 17", "--priority", "9")
    first = run(*once).strip()
    assert json.loads(run(*once, "--json")) == {"conversation_handle": first, "message_sequence_number": None}
    (message,) = json.loads(run("receive", STOCK_QUEUE, "--json"))["messages"]
    assert message["priority"] == 9
    for wrong, expected_text in (
        (("send", "x", "--conversation", first, "--idempotency-key", "order 17"), "are for a new dialog"),
        (("end", first, "--description", "enough"), "it needs --error"),
    ):
        assert expected_text in refusal_of(*wrong)


def test_purge_deletes_all_messages_and_ends_ended_conversations() -> None:
    handles = [run("send", "x", *DIALOG, "--type", ORDER).strip() for _ in range(3)]
    assert run("queue", "purge", STOCK_QUEUE, given="y\n").endswith("3 messages are deleted.\n")
    with sb.open(os.environ["SERVICEBROKER_INSTANCE"], upkeep=None) as instance:
        for handle in handles:
            instance.database("Test").end_conversation(UUID(handle))
    assert run("queue", "purge", STOCK_QUEUE, "--yes") == "3 messages are deleted.\n"
    assert run("peek", STOCK_QUEUE) == "No message available.\n"


def test_status_watch_repeats_until_terminated(target: str) -> None:
    with Command("status", "--watch", "0.1", "--json", stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        shown = [json.loads(running.stdout.readline())["is_standby"] for _ in range(3)]
        running.terminate()
        assert running.wait(30) == 130
    assert shown == [False] * 3


@pytest.mark.parametrize(
    ("typed", "offered"), [("que", "queue"), ("queue al", "alter"), ("worker --con", "--concurrency")]
)
def test_the_shell_completes_words(typed: str, offered: str) -> None:
    program = "import sys; sys.argv = ['servicebroker']; from servicebroker.cli.main import main; main()"
    words = f"servicebroker {typed}"
    asked = {"_SERVICEBROKER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [offered]


MISTAKES: list[tuple[list[str], str]] = [
    (["receive", "StokQueue"], "Did you mean 'StockQueue'?"),
    (["peek", "StockQueu"], "Did you mean 'StockQueue'?"),
    (["sql", "-i", "missing.sql"], "servicebroker: 'missing.sql': No such file or directory.\n"),
    (["receive", "Q"], "Cannot find the queue 'Q'"),
    (["receive", "a.b.c"], "The maximum is 1."),
    (["receive", ""], "A queue name has 1 to 518 characters"),
    (["peek", "StockQueue", "-d", "tset"], "Did you mean 'Test'?"),
    (["peek", "StockQueue", "-d", "Nothing"], "does not exist. List the databases by: servicebroker database list."),
    (["peek", "StockQueue", "--instance", "dta"], "There is no instance in"),
    (["peek", "StockQueue", "--instance", "mysql://x/y"], "is not a PostgreSQL URL"),
    (["peek", "StockQueue", "--instance", "postgresql:///nowhere?host=/nowhere"], "nowhere"),
    (["send", "x"], "Give --from and --to for a new dialog, or --conversation"),
    (["send", "x", "--from", ORDERS], "Give --from and --to for a new dialog"),
    (["send", "x", "--from", "//test/Order", "--to", STOCK, "--contract", CONTRACT], "Did you mean '//test/Orders'?"),
    (["send", "x", "--from", ORDERS, "--to", STOCK, "--contract", "//test/Contrat"], "Did you mean '//test/Contract'?"),
    (["send", "x", *DIALOG, "--type", "//test/Oder"], "Did you mean '//test/Order'?"),
    (["send", "x", *DIALOG, "--type", "//test/Reply"], "//test/Reply"),
    (["send", "x", "--conversation", "00000000-0000-0000-0000-000000000001"], "is not found"),
    (["queue", "create", "StockQueue"], "There is already an object named 'StockQueue'"),
    (["queue", "create", "#temporary"], "#temporary"),
    (["queue", "create", "a.b.Q"], "The maximum is 1."),
    (["queue", "drop", "StockQueue"], "bound to one or more"),
    (["queue", "drop", "StckQueue"], "Did you mean 'StockQueue'?"),
    (["queue", "alter", "StckQueue", "--off"], "Did you mean 'StockQueue'?"),
    (["queue", "purge", "StckQueue", "--yes"], "Did you mean 'StockQueue'?"),
    (["service", "create", "//test/S", "--queue", "StckQueue"], "Did you mean 'StockQueue'?"),
    (["service", "create", STOCK, "--queue", "StockQueue"], "There is already an object named '//test/Stock'"),
    (
        ["service", "create", "S", "--queue", "StockQueue", "--contract", "//test/Contrac"],
        "Did you mean '//test/Contract'?",
    ),
    (["service", "drop", "//test/Stok"], "Did you mean '//test/Stock'?"),
    (["define", "apply", "nowhere.toml"], "The definition 'nowhere.toml' cannot be read: No such file"),
    (["define", "apply", "broken.toml"], "The definition 'broken.toml' cannot be used"),
    (["define", "apply", "word.toml"], "unknown field `queue`"),
    (["define", "apply", "contract.toml"], "a contract cannot be altered"),
    (["worker", "nowhere"], "There is no module 'nowhere'"),
    (["worker", "empty.py"], "has no worker. Make one there"),
    (["worker", "broken"], "'broken' cannot be imported (SyntaxError"),
    (["pipeline", "check", "nowhere.toml"], "nowhere.toml"),
    (["activator", "nowhere.toml"], "The configuration 'nowhere.toml' cannot be read"),
    (["sql", "-i", "nowhere.sql"], "nowhere.sql"),
    (["route", "create", "R", "--address", "tcp:/x"], "Write TCP://host:port, LOCAL or TRANSPORT."),
    (["route", "drop", "AutoCreatedLocl"], "AutoCreatedLocl"),
    (["route", "list", "-d", "Tets"], "Did you mean 'Test'?"),
    (["poison", "inspect", "StckQueue"], "Did you mean 'StockQueue'?"),
    (["dead-letters", "list", "-d", "Tets"], "Did you mean 'Test'?"),
    (["database", "drop", "Tets", "--yes"], "Did you mean 'Test'?"),
    (["database", "create", "test"], "Database 'test' already exists. Choose a different database name."),
    (["endpoint", "drop", "Broker"], "15151"),
    (["endpoint", "create", "Broker", "--port", "80"], "5837"),
    (["dead-letters", "replay", "123456"], "must be a number of"),
    (["dead-letters", "replay", "1", "--body", "nowhere.json"], "'nowhere.json': No such file or directory."),
    (["instance", "restore", "nowhere.dump", "--instance", "copy", "--identifier", "new"], "There is no file 'nowhere"),
    (["instance", "dump", "nowhere/x.dump"], "nowhere/x.dump"),
    (["certificate", "import", "peer", "nowhere.pem"], "'nowhere.pem': No such file or directory."),
    (["certificate", "export", "nothing", "x.pem"], "Cannot find the certificate 'nothing'"),
    (["rights", "grant", "nobody_at_all", "--receive", "StockQueue"], "create role"),
    (["rights", "revoke", "nobody_at_all"], "create role"),
    (["people", "remove", "bob"], "create it by servicebroker people add"),
    (["dashboard", "--people", "nowhere", "--port", "0"], "create it by servicebroker people add"),
    (["trail", "on", "--service", "Test.//test/Stok"], "Cannot find the service 'Test.//test/Stok'"),
    (["define", "apply", "unknown.toml"], "Cannot find the message type '//test/Nothing'"),
    (["worker", "worker.py:stok"], "Did you mean 'stock'?"),
    (["worker", "worker.py"], "Cannot find the queue 'NoQueue'"),
    (["serve", "--listen", "nowhere"], "it must be HOST:PORT"),
    (["endpoint", "alter", "Nope", "--state", "STARTED"], "Cannot alter the endpoint 'Nope'"),
    (["domain", "show", "--folder", "nowhere"], "make one with servicebroker domain create"),
    (["domain", "join", "TOKEN", "--folder", "nowhere"], "copy all that servicebroker domain invite"),
    (["pipeline", "status", "word.toml"], "word.toml:1: 'pipeline' is missing."),
    (["init", "--instance", "empty.py"], "is a file; choose another path"),
    (["service", "create", "//test/S", "--queue", ""], "A queue name has 1 to 518 characters"),
]

WRONG_USAGE: list[tuple[list[str], str]] = [  # raised by the option parser, with exit code 2
    (["quue"], "Did you mean 'queue'?"),
    (["receive"], "Missing argument 'QUEUE'"),
    (["receive", "StockQueue", "--top", "0"], "greater than or equal to 1"),
    (["queue", "crate", "Q"], "Did you mean 'create'"),
    (["queue", "alter", "StockQueue"], "give an option to change"),
    (["database", "alter", "Test"], "give an option to change"),
    (["dead-letters", "replay", "7", "8", "--body", "mended"], "--body is for one message"),
    (["dead-letters", "discard", "--error", "", "--yes"], "matches every error"),
    (["poison", "end", "no-handle"], "valid UUID"),
    (["route", "create", "R"], "Missing option '--address'"),
    (["status", "--since", "yesterday"], "write 10min, 1h or 7d"),
    (["load", "--size", "7"], "greater than or equal to 8"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG_USAGE, ids=[" ".join(usage) for usage, _ in WRONG_USAGE])
def test_wrong_usage_exits_with_code_2(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[" ".join(usage) for usage, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names a remedy, on standard error, with exit code 1 and without a traceback."""
    (tmp_path / "broken.toml").write_text("[queues")
    (tmp_path / "word.toml").write_text("[queue.Q]")
    (tmp_path / "contract.toml").write_text('[contracts."//test/Contract"]\n"//test/Order" = "ANY"\n')
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "unknown.toml").write_text('[contracts.C]\n"//test/Nothing" = "ANY"\n')
    (tmp_path / "worker.py").write_text(
        'import servicebroker as sb\nstock = sb.Worker("NoQueue")\n@stock.on()\ndef f(tx, message): ...\n'
    )
    (tmp_path / "broken.py").write_text("def")
    with pytest.raises(SystemExit) as error, main.errors_as_sentences():
        command(arguments, standalone_mode=True)
    output = capsys.readouterr()
    assert error.value.code == 1, output.err
    assert re.fullmatch(r"servicebroker: .+\n", output.err), output.err
    assert words in output.err
    assert "Traceback" not in output.err + output.out


def test_every_command_is_in_exactly_one_group_of_the_help() -> None:
    assert sorted(name for names in main.GROUPS.values() for name in names) == sorted(main.COMMANDS)


def test_the_help_of_all_commands_shows_flags_without_a_value() -> None:
    assert "<bool>" not in run("--help", columns=120)


@pytest.mark.parametrize("words", sorted(EXAMPLES))
def test_the_help_of_a_command_ends_with_its_example(words: str) -> None:
    """The page of all commands runs these examples. Flags in them have no value."""
    text = " ".join(run(*words.split(), "--help", columns=120).split())
    assert f"Example: servicebroker {' '.join(EXAMPLES[words].split())}" in text
    assert EXAMPLES[words].startswith(words)
    assert "<bool>" not in text
    if "--json" in text:
        assert "--json Print" in text or "--json Write" in text
