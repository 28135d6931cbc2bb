"""TOML files that hold what Python does not read: one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from servicebroker.model.application import read
from servicebroker.model.errors import InstanceError
from servicebroker.model.toml import parse_toml

UNREADABLE = {
    "n = " + "9" * 5000: "too many digits",
    "n = " + "[" * 100_000: "nested too deeply",
    "n =": "Invalid value",
}


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:6])
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=UNREADABLE[text]):
        parse_toml(text)


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:6])
def test_a_definition_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(text)
    with pytest.raises(InstanceError, match="cannot be used"):
        read(file)


def test_other_files_are_read() -> None:
    assert parse_toml("n = 5\n[a]\nb = [1]") == {"n": 5, "a": {"b": [1]}}
