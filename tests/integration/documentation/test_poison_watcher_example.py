"""examples/poison-watcher runs with one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import run_example


@pytest.mark.slow
@pytest.mark.feature(185)
def test_the_example_puts_everything_right(tmp_path: Path) -> None:
    *found, last = run_example("poison-watcher/run.py", folder=tmp_path)
    assert len(found) == 2
    assert all(line.startswith("StockQueue was switched off; conversation ") for line in found)
    assert last == "38 parts were handed out, 2 requests refused; 0 notes of those are left."
    assert list(tmp_path.iterdir()) == []
