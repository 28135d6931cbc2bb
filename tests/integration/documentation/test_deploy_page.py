"""The how-to 'Deploy': its files are those of deploy/, each parses, and its SQL creates an instance."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app, load
from servicebroker.store.embedded import EmbeddedServer
from support import as_role, let_in

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
INSTRUCTIONS = {
    *("FROM", "WORKDIR", "RUN", "ENV", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD", "ENTRYPOINT"),
    *("ARG", "LABEL", "VOLUME", "ADD", "SHELL", "ONBUILD"),
}
MASTER, OWNER = "master_of_the_page", "shop"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the database through the variable, as the files do."""
    monkeypatch.setenv("SERVICEBROKER_DATABASE", "Shop")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def parse_words(words: list[str]) -> None:
    """Parse a command line of `servicebroker`, and run nothing.

    Raises:
        click.UsageError: there is no such command or option.
    """
    assert words[0].rpartition("/")[2] == "servicebroker"
    command: Any = load(words[1])
    rest = words[2:]
    while getattr(command, "commands", None) and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[1], list(rest), parent=typer.Context(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("Dockerfile", "dockerfile"),
        ("compose.yaml", "yaml"),
        ("systemd/servicebroker-serve.service", "ini"),
        ("systemd/servicebroker-worker@.service", "ini"),
        ("systemd/shop.env", "ini"),
    ],
)
def test_the_page_shows_the_file(file: str, language: str) -> None:
    assert (DEPLOY / file).read_text() in blocks(language)


def test_the_dockerfile() -> None:
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {name for name, _ in steps} <= INSTRUCTIONS
    assert steps[0][0] == "FROM"
    for _, given in (step for step in steps if step[0] in ("CMD", "HEALTHCHECK")):
        words = json.loads(given[given.index("[") :])
        if words[0] == "python":
            compile(words[2], "HEALTHCHECK", "exec")
        else:
            parse_words(words)
    assert steps[-1][0] == "CMD"


def test_the_compose_file() -> None:
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = document["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert {row.partition(":")[0] for row in service.get("volumes", ())} <= set(document["volumes"]), name
    assert services["worker"]["environment"]["SERVICEBROKER_DATABASE"] == "Shop"
    commands = [shlex.split(line) for line in services["prepare"]["command"][2].split(" && ")]
    for words in [*commands, services["serve"]["command"], services["worker"]["command"]]:
        parse_words(words)
    (pod,) = [yaml.safe_load(block) for block in blocks("yaml") if block.startswith("containers:")]
    parse_words(pod["containers"][0]["command"])


@pytest.mark.parametrize("file", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_the_units(file: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(file.read_text())
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert int(unit["Service"]["TimeoutStopSec"]) > 30, "longer than --patience"
    parse_words(shlex.split(unit["Service"]["ExecStart"].replace("%i", "stock")))
    assert unit["Service"]["EnvironmentFile"] in (DEPLOY / "systemd/shop.env").read_text().splitlines()[0]


def test_an_instance_without_a_superuser(server: EmbeddedServer, make_url: Callable[[], str]) -> None:
    """The admin of a managed PostgreSQL creates role and database as printed; this role creates the instance."""
    url = make_url()
    (statements,) = blocks("sql")
    with let_in(server.url, MASTER, OWNER):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create role {MASTER} login createrole createdb")  # type: ignore[call-overload]
        try:
            with psycopg.connect(as_role(url, MASTER), autocommit=True) as connection:
                for statement in statements.split(";\n")[:-1]:
                    connection.execute(statement)  # type: ignore[call-overload]
            there = re.sub(r":///\w+\?", f":///{OWNER}?", as_role(url, OWNER))
            result = CliRunner().invoke(app, ["init", "--database", "Shop", "--instance", there])
            assert result.exit_code == 0, result.output
            with sb.open(there, upkeep=None) as instance:
                db = instance.database("Shop")
                db.create_queue("StockQueue")
                assert db.receive("StockQueue") == []
        finally:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"drop database if exists {OWNER} with (force)")  # type: ignore[call-overload]
                connection.execute(f"drop role if exists {OWNER}, {MASTER}")  # type: ignore[call-overload]
