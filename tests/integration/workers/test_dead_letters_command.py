"""`servicebroker dead-letters`: list, replay, export and discard one, several, or all of a filter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.api.shared import in_progress
from servicebroker.cli.main import app as command
from servicebroker.model.poison import error_kind
from support import ORDER, ORDERS_QUEUE, STOCK_QUEUE, begin, bodies, rolled_back

Run = Callable[..., str]
GROUPS = [("ValueError: no part *", 3), ("KeyError: *", 1)]


@pytest.fixture
def run(database: sb.Database) -> Run:
    """Return a function that runs `servicebroker dead-letters ...` on the database and returns its output."""

    def call(*words: object, code: int = 0, typed: str | None = None) -> str:
        arguments = ["dead-letters", *map(str, words), "--database", database.name]
        arguments += ["--instance", database.instance.url]
        result = CliRunner().invoke(command, arguments, input=typed, env={"COLUMNS": "200"})
        refused = isinstance(result.exception, sb.ServiceBrokerError)
        assert (1 if refused else result.exit_code) == code, result.output or result.exc_info
        return f"{result.exception}" if refused else result.output

    return call


@pytest.fixture
def letters(database: sb.Database) -> list[int]:
    """Create four dead letters: three of one kind of error, one of another."""

    def failing(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        body = messages[0].message_body
        raise KeyError("customer") if body == b"4" else ValueError(f"no part {(body or b'').decode()}")

    database.send_batch(begin(database), ORDER, [b"1", b"2", b"3", b"4"])
    database.process(STOCK_QUEUE, failing, poison=lambda failure: sb.SetAside())
    return [letter.set_aside_id for letter in database.set_aside_messages()]


def raise_stop(_: float) -> None:
    """End a command that polls, instead of its pause."""
    raise KeyboardInterrupt


def test_the_list_has_filters_pages_and_groups(
    database: sb.Database, run: Run, letters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = letters

    def list_ids(*options: object) -> list[int]:
        return [row["set_aside_id"] for row in json.loads(run("list", "--json", *options))["messages"]]

    assert list_ids() == letters
    assert list_ids("--error", "NO PART 2") == [second]
    assert list_ids("--error", GROUPS[0][0]) == [first, second, third]
    assert list_ids("--type", "//other", "--queue", STOCK_QUEUE) == []
    assert list_ids("--queue", ORDERS_QUEUE) == []
    assert list_ids("--top", 2, "--after", first) == [second, third]
    listed_groups = run("list", "--top", 3)
    assert "ValueError: no part 3" in listed_groups
    assert f"There are more: --after {third}" in listed_groups
    groups = json.loads(run("list", "--grouped", "--json"))["groups"]
    assert [(group["error_kind"], group["messages"]) for group in groups] == GROUPS
    assert "ValueError: no part *" in run("list", "--grouped")
    (sender,) = {row["far_handle"] for row in json.loads(run("list", "--json"))["messages"]}
    assert f"the sender's handle of this conversation: {sender}\n" in run("show", first)
    words = ["watch", sender, "--database", database.name, "--json", "--instance", database.instance.url]
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", raise_stop)
        watched = CliRunner().invoke(command, words).output
    assert f"is dead letter {first} of " in watched
    whole = run("show", fourth)
    assert "\n4\n" in whole
    assert "raise KeyError" in whole
    assert json.loads(run("show", first, "--json"))["message_body"] == b"1".hex()
    assert run("list", "--queue", ORDERS_QUEUE) == run("list", "--grouped", "--queue", ORDERS_QUEUE)


def test_doctor_and_status_report_dead_letters_and_a_queue_that_is_off(
    database: sb.Database, letters: list[int]
) -> None:
    database.alter_queue(STOCK_QUEUE, status=False)

    def output_of(name: str, *options: str) -> str:
        arguments = [name, "--instance", database.instance.url, *options]
        return CliRunner().invoke(command, arguments, env={"COLUMNS": "200"}).output

    assert f"queue {database.name}.dbo.{STOCK_QUEUE}: 4 dead letters, the newest since " in output_of("doctor")
    queues = json.loads(output_of("status", "--json"))["queues"]
    (queue,) = (row for row in queues if (row["database"], row["queue"]) == (database.name, f"dbo.{STOCK_QUEUE}"))
    assert (queue["dead_letters"], queue["is_on"]) == (4, False)
    (row,) = (row for row in output_of("status").splitlines() if f"{database.name}.dbo.{STOCK_QUEUE} " in row)
    assert row.split()[1] == "OFF"
    assert row.split()[-3:] == ["4", "1", "conversing"]


def test_one_several_and_all_are_replayed(
    database: sb.Database, run: Run, letters: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = letters
    mended = tmp_path / "mended"
    mended.write_bytes(b"mended")
    run("replay", first, "--body", mended)
    monkeypatch.setenv("EDITOR", "sed -i s/2/two/")
    run("replay", second, "--edit")
    assert "was not changed" in run("replay", fourth, "--edit", code=1)
    run("replay", third, fourth, "--body", mended, code=2)
    assert "1 dead letter is in their queues again" in run("replay", "--error", "no part")
    assert sorted(bodies(database.receive(STOCK_QUEUE)), key=str) == [b"3", b"mended", b"two"]
    database.end_conversation(database.set_aside_messages()[0].conversation_handle)
    assert "on the new conversation" in run("replay", "--all")
    assert run("list") == "No dead letters.\n"


def test_one_that_is_refused_stays_and_the_others_go_on(database: sb.Database, run: Run, letters: list[int]) -> None:
    output = run("replay", letters[0], 123456, letters[1], code=1)
    assert "Dead letter 123456 was not replayed" in output
    assert [letter.set_aside_id for letter in database.set_aside_messages()] == letters[2:]


def test_bodies_are_exported_and_letters_discarded(run: Run, letters: list[int], tmp_path: Path) -> None:
    target = tmp_path / "one"
    assert "1 byte" in run("export", letters[1], "--to", target)
    assert target.read_bytes() == b"2" == run("export", letters[1]).encode()
    run("export", "--type", ORDER, "--to", tmp_path / "all")
    assert sorted(int(file.name) for file in (tmp_path / "all").iterdir()) == letters
    assert "is still open, and its sender is not told.\n  next: servicebroker poison end" in run("discard", letters[0])
    run("discard", "--error", "no part", typed="n\n", code=1)
    assert "2 dead letters will be lost" in run("discard", "--error", "no part", typed="y\n")
    assert "has ended with the error 127" in run("discard", "--all", "--yes", "--end")
    assert run("discard", "--all") == "No dead letters.\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("replay",), 2),
        (("replay", 1, "--all"), 2),
        (("replay", "--all", "--body", "x"), 2),
        (("export", "--all"), 2),
        (("replay", 123456), 1),
        (("show", 123456), 1),
        (("export", 123456), 1),
        (("list", "--queue", "Nowhere"), 1),
    ],
)
def test_invalid_dead_letter_commands_are_refused(run: Run, words: tuple[object, ...], code: int) -> None:
    run(*words, code=code)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ValueError: no part 17", "ValueError: no part *"),
        ("KeyError: 'customer'\nmore", "KeyError: *"),
        ('it can\'t find "x"', "it can't find *"),
        ("at 0x7f12ab of 5f0c0c2e-0d5e-4c3f-9d1c-6a8e7b1f2a3d", "at * of *"),
    ],
)
def test_kinds_are_the_same_in_python_and_sql(database: sb.Database, error: str, kind: str) -> None:
    from servicebroker.model.poison import VARIES_IN_ERRORS

    assert error_kind(error) == kind
    with database.transaction() as tx:
        text = "select regexp_replace(split_part(%s, E'\\n', 1), %s, '*', 'g')"
        assert tx.connection.execute(text, (error, VARIES_IN_ERRORS)).fetchone() == (kind,)


def test_a_message_that_killed_an_earlier_process_counts_as_failed(
    database: sb.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.send_batch(begin(database), ORDER, [b"fatal", b"fine"])
    with rolled_back(database) as transaction:
        fatal, _ = transaction.receive(STOCK_QUEUE)
    key = (fatal.message_sequence_number, fatal.message_type_id, fatal.message_type_name)
    note = in_progress.NotedMessage(STOCK_QUEUE, str(fatal.conversation_handle), *key)
    monkeypatch.setattr(in_progress, "_notes", None)
    in_progress.enable(str(tmp_path / "notes"), json.dumps([note]))
    handled: list[bytes | None] = []
    database.process(STOCK_QUEUE, lambda tx, messages: handled.extend(bodies(messages)), poison=lambda _: sb.SetAside())
    assert handled == [b"fine"]
    (letter,) = database.set_aside_messages()
    assert (letter.message_body, letter.failures) == (b"fatal", 1)
    assert letter.error == "InstanceError: The worker process died while it handled the message."
    assert in_progress.read_notes(tmp_path / "notes") == []
