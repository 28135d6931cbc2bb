"""Untrusted text on a terminal and in logs: no command prints control characters or forged lines of its own."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.api.shared import slow_steps
from servicebroker.cli import output
from servicebroker.cli.main import app as command
from servicebroker.cli.tables import Listing, Terminal
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE

EVIL = (
    "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\nFORGED: Nothing wrong was found.\r\x85\u2028FORGED"
    "\u202e\u2066\x9b31m[red]a[/red]:bomb:"
)
LINK = "[link=http://evil]x[/link]\x1b[31m\nFORGED"
STYLES = re.compile(r"\x1b\[[\d;]*m")  # written by rich

COMMANDS = [
    ("doctor",),
    ("status",),
    ("service", "list", "--database", "Evil"),
    ("queue", "list", "--database", "Evil"),
    ("route", "list"),
    ("route", "explain", EVIL, "--from-database", "Evil"),
    ("database", "list"),
    ("rights", "show"),
    ("audit",),
    ("trail", "status"),
    ("poison", "list"),
    ("dead-letters", "list", "--database", "Evil"),
    ("check",),
    ("peek", STOCK_QUEUE, "--database", "Evil"),
    ("sql", "-d", "Evil", "-Q", "select name, name as [x] from sys.services"),
    ("sql", "-d", "Evil", "-Q", "select cast(message_body as nvarchar(max)) from StockQueue"),
    ("sql", "-d", "Evil", "-Q", f"begin dialog @h from service [{EVIL}] to service 'a'"),
    (
        "sql",
        "-d",
        "Evil",
        "-Q",
        "declare @t nvarchar(99); select @t = max(name) from sys.services; throw 50001, @t, 1",
    ),
    ("define", "diff", "evil.toml", "--database", "Evil"),
    ("receive", STOCK_QUEUE, "--database", "Evil", "--top", "2"),
]


@pytest.fixture
def evil(fresh_instance: sb.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sb.Instance:
    """Return an instance with hostile text wherever a stranger can put it."""
    from support import define_standard_set

    database = define_standard_set(fresh_instance.database("Evil", create=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVICEBROKER_INSTANCE", fresh_instance.url)
    Path("evil.toml").write_text("")
    queue = f"dbo.[{EVIL.replace(']', ']]')}]"
    database.create_queue(queue)
    database.create_service(EVIL, queue, [CONTRACT])
    database.create_service(LINK, STOCK_QUEUE, [CONTRACT])
    database.create_route(EVIL[:100], service_name=EVIL, address="TCP://far:4022")
    database.create_route("link", service_name=LINK, address="TCP://far:4022")
    database.send(database.begin_dialog(ORDERS, f"{EVIL}2", contract=CONTRACT), ORDER, b"x")
    for body in (EVIL.encode(), EVIL.encode("utf-16-le"), b"\x1b[2J\nFORGED"):
        database.send(database.begin_dialog(LINK, STOCK, contract=CONTRACT), ORDER, body)
    return fresh_instance


def unsafe(text: str) -> set[str]:
    """Return the terminal control characters, foreign line ends and direction marks in a text."""
    return {
        character
        for character in text
        if character != "\n" and unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs")
    }


@pytest.mark.parametrize("terminal", [False, True])
def test_no_command_prints_terminal_control_sequences(evil: sb.Instance, *, terminal: bool) -> None:
    for arguments in COMMANDS:
        colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if terminal else {}
        result = CliRunner().invoke(command, arguments, env={"COLUMNS": "200", **colours})
        assert result.exception is None or isinstance(result.exception, SystemExit | sb.ServiceBrokerError), arguments
        shown = STYLES.sub("", result.output)
        assert unsafe(shown) == set(), arguments
        assert not [line for line in shown.splitlines() if line.startswith("FORGED")], arguments
        assert not re.search(r"^ *FORGED", shown, re.MULTILINE) or arguments[0] in ("peek", "receive", "sql"), arguments
        assert result.output or arguments[0] == "define", arguments


def test_the_names_are_shown_all_the_same(evil: sb.Instance) -> None:
    for arguments in (("doctor",), ("status",), ("service", "list", "--database", "Evil"), ("route", "list")):
        result = CliRunner().invoke(command, arguments, env={"COLUMNS": "400"}).output
        assert "\ufffd]52;c;ZXZpbA==\ufffd\ufffd[2J\ufffd\ufffdFORGED: Nothing" in result, arguments
    assert (
        "[link=http://evil]x[/link]\ufffd[31m"
        in CliRunner().invoke(command, ["route", "list"], env={"COLUMNS": "400"}).output
    )


def test_json_escapes(evil: sb.Instance) -> None:
    for arguments in (("doctor",), ("status",), ("service", "list", "-d", "Evil"), ("route", "list"), ("audit",)):
        result = CliRunner().invoke(command, [*arguments, "--json"]).output
        assert result.isascii()
        assert unsafe(result) == set()
        assert "FORGED" in json.dumps(json.loads(result)) or arguments[0] == "audit"


def test_a_row_of_several_lines_is_no_other_row(evil: sb.Instance) -> None:
    result = CliRunner().invoke(command, ["sql", "-Q", "select 'a' + char(13) + char(10) + 'b' as x"]).output
    assert [line.strip() for line in result.splitlines() if line.strip() in ("a\u21b5", "b")] == ["a\u21b5", "b"]
    printed = CliRunner().invoke(command, ["sql", "-Q", "print 'a' + char(10) + char(9) + 'b' + char(27)"]).output
    assert printed.splitlines()[0:2] == ["a", "\tb\ufffd"]  # the lines of the script, without control characters


def test_an_unexpected_error_and_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "from servicebroker.cli import main, output, log\nimport logging, threading\n"
        "output.clean_tracebacks()\nmain.log_own_warnings()\n"
        f"evil = {EVIL!r}\nlogging.getLogger('servicebroker.x').warning('%s', evil)\n"
        "log.log_to_standard_error(as_json=False)\n"
        "try: raise ValueError(evil)\nexcept ValueError: logging.getLogger('x').exception('%s', evil)\n"
        "def work(): raise ValueError(evil)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\nraise ValueError(evil)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stderr.count("[red]a[/red]") == 5
    assert unsafe(result.stderr) == set()
    assert not re.search("^FORGED", result.stderr, re.MULTILINE)


def test_a_file_is_written_as_it_is_to_a_pipe_only(tmp_path: Path) -> None:
    program = f"from servicebroker.cli.output import say_document; say_document({EVIL!r})"
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert result.stdout.decode() == EVIL
    main, other = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stdout=other, check=True)
    os.close(other)
    shown = os.read(main, 65536).decode().replace("\r\n", "\n")
    os.close(main)
    assert "FORGED" in shown
    assert unsafe(shown) == set()


def test_tables_escape_markup_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table = Listing("[red]x[/red]", title=LINK)
    table.row([LINK, EVIL])
    Terminal(width=200).print(table)
    Terminal(width=200).print(EVIL)
    shown = capsys.readouterr().out
    assert "[link=http://evil]x[/link]" in shown
    assert "[red]x[/red]" in shown
    assert unsafe(shown) == set()


@pytest.mark.parametrize(
    "line",
    [
        "import typer\ntyper.echo('x')",
        "from typer import echo\necho('x')",
        "import click\nclick.secho('x')",
        "print('x')",
        "import sys\nsys.stdout.write('x')",
        "from sys import stderr\nstderr.write('x')",
        "from rich.console import Console\nConsole().print('x')",
        "from rich.table import Table\nTable()",
        "import logging\nlogging.StreamHandler()",
        "import traceback\ntraceback.print_exc()",
    ],
)
def test_the_linter_refuses_every_other_way(line: str) -> None:
    root = Path(__file__).parents[3]
    where = "src/servicebroker/cli/commands/doctor.py"
    result = subprocess.run(
        [Path(sys.executable).with_name("ruff"), "check", "--select", "T20,TID251", "--stdin-filename", where, "-"],
        input=line, capture_output=True, text=True, check=False, cwd=root,
    )  # fmt: skip
    assert result.returncode == 1
    assert "TID251" in result.stdout or "T201" in result.stdout


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_waiting_command_prints_its_reason_on_a_terminal(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SILENCE_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with output.waiting_for("Starting"):
        time.sleep(0.2)
    with output.waiting_for("Nothing"):
        pass
    assert capsys.readouterr().err == ("Starting ...\n" if is_terminal else "")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_waiting_program_logs_its_reason(
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_steps, "SLOW_STEP_S", 0.01)
    monkeypatch.setattr(os, "isatty", lambda descriptor: is_terminal)
    with caplog.at_level(logging.INFO, "servicebroker"):
        with slow_steps.logged_if_slow("Starting"):
            time.sleep(0.2)
        with slow_steps.logged_if_slow("Nothing"):
            pass
    assert [(record.levelname, record.message) for record in caplog.records] == [("INFO", "Starting ...")]
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: logging.lastResort.handle(record))
    with slow_steps.logged_if_slow("Waiting"):
        time.sleep(0.2)
    assert capsys.readouterr().err == ("Waiting ...\n" if is_terminal else "")
