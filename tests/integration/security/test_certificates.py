"""`servicebroker certificate`: created certificates, and errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from forked import run_command
from servicebroker.cli.commands import certificate
from support import query


class Terminal:
    """The command line of one instance."""

    def __init__(self, url: str, keys: Path) -> None:
        self.url, self.keys = url, keys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        own = {"SERVICEBROKER_INSTANCE": self.url, "SERVICEBROKER_KEYS": str(self.keys), "COLUMNS": "200"}
        if not code:
            result = CliRunner().invoke(certificate.app, arguments, env=own)
            assert result.exit_code == 0, result.exception
            return result.stdout
        # only a new process shows how a command ends
        done = run_command("certificate", *arguments, env=os.environ | own)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == 1
        return done.stderr

    def files(self) -> list[str]:
        return sorted(file.name for file in self.keys.iterdir())


@pytest.fixture
def terminal(fresh_instance: sb.Instance, tmp_path: Path) -> Terminal:
    return Terminal(fresh_instance.url, tmp_path / "keys")


def test_from_create_to_drop(fresh_instance: sb.Instance, terminal: Terminal, tmp_path: Path) -> None:
    assert terminal("list") == "No certificates yet.\n"
    terminal("create", "west", "--days", "30")
    (shown_row,) = json.loads(terminal("list", "--json"))["certificates"]
    assert (shown_row["name"], shown_row["is_own"], shown_row["subject"]) == ("west", True, "CN=west")
    assert terminal.files() == [f"{shown_row['sha256']}.pem"]
    assert shown_row["sha256"] in terminal("list")
    file = tmp_path / "west.pem"
    terminal("export", "WEST", str(file))
    assert file.read_text() == terminal("export", "west")
    assert "PRIVATE" not in file.read_text()
    tables = query(
        fresh_instance.database("msdb"),
        "select table_name from information_schema.columns "
        "where table_schema = 'servicebroker' "
        "and column_name ~ 'key|secret|private' and table_name = 'transport_certificates'",
    )
    assert tables == []
    terminal("drop", "west")
    assert terminal.files() == []
    assert terminal("list") == "No certificates yet.\n"
    assert shown_row["sha256"] in terminal("import", "peer", str(file))
    (shown_row,) = json.loads(terminal("list", "--json"))["certificates"]
    assert (shown_row["name"], shown_row["is_own"]) == ("peer", False)


def test_invalid_certificate_commands_are_refused(
    fresh_instance: sb.Instance, terminal: Terminal, tmp_path: Path
) -> None:
    terminal("create", "west")
    before = terminal.files()
    assert "15232" in terminal("create", "West", code=1)
    assert terminal.files() == before  # no key file is left behind
    assert "402" in terminal("create", "east", "--days", "0", code=1)
    file = tmp_path / "file.pem"
    terminal("export", "west", str(file))
    assert "15232" in terminal("import", "again", str(file), code=1)  # the same certificate
    file.write_bytes(b"nothing of the kind")
    assert "15208" in terminal("import", "peer", str(file), code=1)
    assert "No such file" in terminal("import", "peer", str(tmp_path / "nowhere"), code=1)
    for command in ("export", "drop"):
        assert "15151" in terminal(command, "nobody", code=1)
    fresh_instance.create_endpoint("e", listener_port=4022, authentication="CERTIFICATE west")
    assert "3716" in terminal("drop", "west", code=1)
    assert terminal.files() == before
    fresh_instance.alter_endpoint("e", authentication="CERTIFICATE")
    terminal("drop", "west")


def test_a_missing_instance_is_reported(make_url: Callable[[], str], tmp_path: Path) -> None:
    report = Terminal(str(tmp_path / "nowhere"), tmp_path / "keys")("create", "west", code=1)
    assert "There is no instance" in report
    assert not (tmp_path / "nowhere").exists()
