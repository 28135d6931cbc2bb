"""A mistyped folder or URL creates no new, empty instance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.store.connection import is_url

MISTYPED_URLS = [
    "mysql://x/y",
    "mysql:/x/y",
    "postgres//x",
    "postgresql//shop/app",
    "postgresql:/shop/app",
    "postgresql:shop",
    "postgresl://app@shop/app",
    "POSTGRESQL://shop/app",
    "https://shop/app",
    "jdbc:postgresql://shop/app",
    "file:///srv/data",
    "shop:5432/app",
    "app@shop.example:5432",
]
PIPELINE = """
[pipeline]
name = "lines"
warehouse = "warehouse"
format = "parquet"

[[queue]]
instance = "{instance}"
database = "Shop"
queue = "Q"
"""

ACTIVATOR = """
instance = "dta"
database = "Ops"
queue = "Notifications"

[[program]]
database = "Shop"
queue = "Q"
command = ["true"]
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal_of(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code != 0
    return f"{result.output} {result.exception}"


@pytest.mark.parametrize("target", MISTYPED_URLS)
def test_a_mistyped_url_is_not_used_as_a_folder(empty_folder: Path, target: str) -> None:
    with pytest.raises(sb.InstanceError, match="is not a PostgreSQL URL"):
        sb.open(target)
    assert "is not a PostgreSQL URL" in refusal_of("init", "--instance", target)
    assert list(empty_folder.iterdir()) == []


def test_nor_is_it_for_asyncio_or_as_a_path(empty_folder: Path) -> None:
    async def open_target(target: Any) -> None:
        async with sb.open_async(target):
            raise AssertionError

    for target in ("mysql://x/y", Path("mysql://x/y")):
        with pytest.raises(sb.InstanceError, match="is not a PostgreSQL URL"):
            asyncio.run(open_target(target))
    assert list(empty_folder.iterdir()) == []


def test_a_password_is_not_repeated() -> None:
    for password in ("secret", "sec/ret"):
        with pytest.raises(sb.InstanceError, match=r"'postgresq://app:\.\.\.@shop/app'") as error:
            sb.open(f"postgresq://app:{password}@shop/app")
        assert password not in str(error.value)


@pytest.mark.parametrize(
    ("target", "is_server"),
    [
        *((server, True) for server in ("postgresql://shop/app", "postgres://", "dbname=app host=shop", "host = shop")),
        *((folder, False) for folder in ("data", "./data", "/srv/data", "postgresql/data", "a:b", "postgres", "x//y")),
        *((f"./{slip}", False) for slip in MISTYPED_URLS),
    ],
)
def test_folders_and_urls_are_distinguished(target: str, is_server: bool) -> None:
    assert is_url(target) is is_server


@pytest.mark.parametrize("words", [["check"], ["run", "--once"], ["status"]])
def test_a_mistyped_folder_in_a_pipeline_file_makes_nothing(empty_folder: Path, words: list[str]) -> None:
    Path("pipeline.toml").write_text(PIPELINE.format(instance="dta"))
    result = CliRunner().invoke(command, ["pipeline", words[0], "pipeline.toml", *words[1:]])
    assert result.exit_code != 0
    assert f"There is no instance in '{empty_folder}/dta'" in f"{result.output} {result.exception}"
    assert not Path("dta").exists()


def test_nor_does_a_url_that_is_none(empty_folder: Path) -> None:
    Path("pipeline.toml").write_text(PIPELINE.format(instance="mysql://x/y"))
    assert "is not a PostgreSQL URL" in refusal_of("pipeline", "check", "pipeline.toml")
    assert [path.name for path in empty_folder.iterdir()] == ["pipeline.toml"]


def test_the_activator_creates_no_instance_in_an_empty_folder(empty_folder: Path) -> None:
    Path("activator.toml").write_text(ACTIVATOR)
    assert "There is no instance in" in refusal_of("activator", "activator.toml")
    assert [path.name for path in empty_folder.iterdir()] == ["activator.toml"]
