"""`servicebroker activator`: external activation, with a minimum and a maximum number of programs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from forked import Command
from servicebroker.cli.commands.activator import read_config
from support import ORDER, STOCK_QUEUE, begin, eventually, is_running, query

POST = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"

PROGRAM = """
import os, sys, time
from pathlib import Path
import servicebroker as sb

assert not os.environ["SERVICEBROKER_HEALTH"], "the port is the activator's"
folder = Path(sys.argv[1])
(folder / f"started-{os.getpid()}").touch()
with sb.open(os.environ["SERVICEBROKER_INSTANCE"], upkeep=None) as instance:
    database = instance.database(os.environ["SERVICEBROKER_DATABASE"])
    while messages := database.receive(os.environ["SERVICEBROKER_QUEUE"], top=1, wait=0.3):
        (folder / messages[0].message_body.decode()).touch()
        while (folder / "hold").exists():
            time.sleep(0.02)
"""


@pytest.fixture
def watched_database(database: sb.Database) -> Iterator[sb.Database]:
    database.create_queue("Notifications")
    database.create_service("//test/Activator", "Notifications", [POST])
    database.create_event_notification(
        "readers", on_queue=STOCK_QUEUE, events="QUEUE_ACTIVATION", to_service="//test/Activator"
    )
    with sb.activate(database.instance, interval=0.3):
        yield database


def configuration(database: sb.Database, folder: Path, **program: Any) -> Path:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder)]
    lines = [f"instance = '{database.instance.url}'", f"database = '{database.name}'", "queue = 'Notifications'"]
    lines += ["[[program]]", f"database = '{database.name}'", f"queue = '{STOCK_QUEUE}'"]
    lines += [f"{name} = {value!r}" for name, value in ({"command": command} | program).items()]
    path = folder / "activator.toml"
    path.write_text("\n".join(lines))
    return path


def count_starts(folder: Path) -> int:
    return len(list(folder.glob("started-*")))


@pytest.mark.feature(180)
def test_programs_start_on_notifications_between_minimum_and_maximum(
    watched_database: sb.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configuration(watched_database, tmp_path, min=1, max=2)
    monkeypatch.setenv("SERVICEBROKER_HEALTH", "127.0.0.1:0")
    (tmp_path / "hold").touch()
    with Command("activator", path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "/readyz" in line)
        eventually(lambda: count_starts(tmp_path) == 1)  # the minimum
        with urllib.request.urlopen(line.split()[-3].replace("/livez", "/readyz"), timeout=20) as answer:
            assert answer.read() == b"ok\n"
        for number in range(4):
            watched_database.send(begin(watched_database), ORDER, f"message-{number}")
        eventually(lambda: count_starts(tmp_path) == 2)
        text = "select count(*) from sys.conversation_endpoints where is_system = 1 and broker_database = %s"
        assert query(watched_database, text, watched_database.name) == [(1,)]
        (tmp_path / "hold").unlink()
        eventually(lambda: len(list(tmp_path.glob("message-*"))) == 4)
        eventually(lambda: count_starts(tmp_path) >= 3)  # the others have ended, and the minimum is kept
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(30) == 0
    assert "3 run" not in log
    for file in tmp_path.glob("started-*"):
        assert not Path(f"/proc/{file.name.split('-')[1]}").exists(), "it has stopped its programs"


def test_programs_that_do_not_end_are_killed_together(watched_database: sb.Database, tmp_path: Path) -> None:
    """The children of the programs are killed, too. One timeout (patience) holds for all programs."""
    stubborn = ["sh", "-c", f"trap '' TERM; touch {tmp_path}/started-$$; sleep 600; true"]
    path = configuration(watched_database, tmp_path, command=stubborn, min=2, max=2)
    with Command("activator", path, "--patience", "0.5", stderr=subprocess.PIPE) as process:
        eventually(lambda: count_starts(tmp_path) == 2)
        begins = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert time.monotonic() - begins < 8
    for file in tmp_path.glob("started-*"):
        assert not Path(f"/proc/{file.name.split('-')[1]}").exists()


def test_programs_end_with_an_activator_that_is_killed(watched_database: sb.Database, tmp_path: Path) -> None:
    """The children of the programs end, too, whatever session they are in."""
    both = f"touch {tmp_path}/started-$$; setsid sh -c 'touch {tmp_path}/started-$$; sleep 600; true'; true"
    path = configuration(watched_database, tmp_path, command=["sh", "-c", both], min=2, max=2)
    with Command("activator", path, stderr=subprocess.PIPE) as process:
        eventually(lambda: count_starts(tmp_path) == 4)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    programs = [int(file.name.split("-")[1]) for file in tmp_path.glob("started-*")]
    eventually(lambda: not any(is_running(program) for program in programs), 10)


@pytest.mark.feature(180)
def test_a_program_that_fails_is_started_again(watched_database: sb.Database, tmp_path: Path) -> None:
    """A program that cannot be started is logged."""
    path = configuration(watched_database, tmp_path, command=["/no/such/program"], max=1)
    with Command("activator", path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any("cannot be started" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


VALID_FILE = "database = 'D'\nqueue = 'Q'\n[[program]]\ndatabase = 'D'\nqueue = 'W'\ncommand = ['x']\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("= 1", "cannot be read"),
        ("queue = 'Q'\n[[program]]\n", "database"),
        ("database = 'D'\nqueue = 'Q'\n", r"no \[\[program\]\]"),
        ("colour = 'red'\n" + VALID_FILE, "colour"),
        (VALID_FILE + "min = 2\nmax = 1\n", "min <= max"),
        (VALID_FILE + "max = true\n", "min <= max"),
        (VALID_FILE.replace("['x']", "'x'"), "needs `command`"),
        (VALID_FILE + VALID_FILE[VALID_FILE.index("[[") :], "two programs"),
        (VALID_FILE + "schema = 3\n", "schema"),
        (VALID_FILE + f"max = {'9' * 5000}\n", "a number has too many digits"),
        (VALID_FILE + f"max = {'[' * 100_000}\n", "it is nested too deeply"),
    ],
    ids=lambda value: value[-30:],
)
def test_a_wrong_configuration_is_said(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(sb.InstanceError, match=words):
        read_config(tmp_path / "c.toml")


def test_missing_settings_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(VALID_FILE)
    config = read_config(tmp_path / "c.toml")
    assert config.instance == "servicebroker-data"
    assert config.programs[0][1:] == ("dbo", "W", ("x",), 0, 1)
    with pytest.raises(sb.InstanceError, match="cannot be read"):
        read_config(tmp_path / "missing.toml")


def test_a_process_does_not_repeat_the_notification_of_another(database: sb.Database) -> None:
    """Each process that is open watches the queue: one notification is sent until somebody executes RECEIVE."""
    database.create_queue("Notifications")
    database.create_service("//test/Activator", "Notifications", [POST])
    database.create_event_notification(
        "readers", on_queue=STOCK_QUEUE, events="QUEUE_ACTIVATION", to_service="//test/Activator"
    )

    counts = []
    for number in range(4):
        if number in (0, 2):
            database.send(begin(database), ORDER, b"waits")
        if number == 2:
            database.receive(STOCK_QUEUE, top=1)
        with sb.activate(database.instance, interval=0.2) as host:
            host.settle(0.5)
        counts.append(len(database.receive("Notifications", top=10)))
    assert counts == [1, 0, 1, 0]
