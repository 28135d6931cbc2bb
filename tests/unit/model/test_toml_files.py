"""Files of TOML from elsewhere: whatever stands there, one sentence says why it cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servicebroker.cli.activator import read_config
from servicebroker.model import application
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.file import read_pipeline

FILES = {
    "arrays in each other": "a = " + "[" * 20_000,
    "tables in each other": "a = " + "{a=" * 5_000,
    "a number of 10,000 digits": "a = " + "9" * 10_000,
    "no TOML": "\ufeffa = 1",
}


@pytest.mark.parametrize("read", [application.read, read_config, read_pipeline])
@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_says_why(read: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    (tmp_path / "given.toml").write_text(FILES[name], encoding="utf-8")
    with pytest.raises(InstanceError, match=r"given\.toml"):
        read(tmp_path / "given.toml")
