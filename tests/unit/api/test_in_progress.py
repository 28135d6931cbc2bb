"""Messages in progress of a worker process, and of one that has died."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest

from servicebroker.api.shared import in_progress
from servicebroker.api.shared.in_progress import NotedMessage, notes_in, read_notes
from servicebroker.cli import programs
from servicebroker.cli.commands.worker import WorkerProcesses
from servicebroker.model.messages import Message

HANDLE = UUID(int=7)
NOTE = NotedMessage("StockQueue", str(HANDLE), 0, 20, "//shop/Order")
OTHER = NOTE._replace(message_sequence_number=1)


def message(number: int) -> Message:
    values = dict.fromkeys(Message._fields)
    values |= {"conversation_handle": HANDLE, "message_sequence_number": number, "message_type_id": 20}
    return Message(**values | {"message_type_name": "//shop/Order"})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_progress, "_notes", None)


def test_the_file_has_the_messages_while_they_are_handled(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    in_progress.enable(str(file), "")
    with in_progress.noted("StockQueue", [message(0)]):
        with in_progress.noted("StockQueue", [message(1)]):
            assert read_notes(file) == [NOTE, OTHER]
        assert read_notes(file) == [NOTE]
    assert read_notes(file) == []


@pytest.mark.parametrize("text", [b"", b"[[", b"[7]", b"{}", b"\xff"])
def test_a_damaged_file_has_no_messages(text: bytes) -> None:
    assert notes_in(text) == []
    assert read_notes(Path("nowhere")) == []


def test_a_fatal_message_fails_once_when_it_is_alone(tmp_path: Path) -> None:
    assert in_progress.take_fatal([message(0)]) is None
    in_progress.enable(str(tmp_path / "notes"), json.dumps([NOTE]))
    assert in_progress.take_fatal([message(1)]) is None
    assert in_progress.take_fatal([message(0), message(1)]) is not None  # they are received one by one then
    assert "died" in str(in_progress.take_fatal([message(0)]))
    assert in_progress.take_fatal([message(0)]) is None


def test_a_message_that_kills_its_worker_is_named_and_told_to_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(programs, "RETRY_PAUSE_S", 0.0)
    script = (
        "import os, sys; open(os.environ[%r], 'w').write(%r); told = os.environ[%r]; "
        "os._exit(7 if told == '[]' else 8 if %r in told else 9)"
    )
    names = (in_progress.FILE_VARIABLE, json.dumps([NOTE]), in_progress.FATAL_VARIABLE, str(HANDLE))
    workers = WorkerProcesses("The worker", [sys.executable, "-S", "-c", script % names], {}, 1, 1)
    started = time.monotonic()
    with caplog.at_level(logging.ERROR):
        while len(caplog.messages) < 2 and time.monotonic() < started + 60:
            workers.update()
            time.sleep(0.01)
    workers.kill()
    workers.close()
    handled = f"while it handled message 0 of conversation {HANDLE} (//shop/Order) of StockQueue, death"
    assert caplog.messages[:2] == [
        f"The worker has ended with code 7 {handled} 1 with it.",
        f"The worker has ended with code 8 {handled} 2 with it.",
    ]


def test_messages_beside_each_other_are_fatal_at_their_second_death(tmp_path: Path) -> None:
    workers = WorkerProcesses("The worker", [], {}, 0, 0)
    for number, fatal in ((1, []), (2, [NOTE])):
        in_progress.enable(str(tmp_path / str(number)), "")
        with in_progress.noted("StockQueue", [message(0), message(number)]):
            workers._files[number] = tmp_path / str(number)
            assert "and 1 more" in workers._describe_end(number)
        assert workers._fatal == fatal
    workers.close()
