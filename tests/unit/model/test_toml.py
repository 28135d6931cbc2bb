"""TOML files that hold what Python does not read: one clear error, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servicebroker.cli.commands.activator import read_config
from servicebroker.model.errors import InstanceError
from servicebroker.model.toml import parse_toml
from servicebroker.operations import application
from servicebroker.pipeline.file import read_pipeline

UNREADABLE = {
    "n = " + "9" * 10_000: "too many digits",
    "n = " + "[" * 100_000: "nested too deeply",
    "n = " + "{n=" * 5_000: "nested too deeply",
    "n =": "Invalid value",
    "\ufeffn = 1": "Invalid statement",
}


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:6])
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=UNREADABLE[text]):
        parse_toml(text)


@pytest.mark.parametrize("read", [application.read, read_config, read_pipeline])
@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:6])
def test_a_file_that_cannot_be_read_is_named(read: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    file = tmp_path / "given.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InstanceError, match=r"given\.toml"):
        read(file)


def test_other_files_are_read() -> None:
    assert parse_toml("n = 5\n[a]\nb = [1]") == {"n": 5, "a": {"b": [1]}}
