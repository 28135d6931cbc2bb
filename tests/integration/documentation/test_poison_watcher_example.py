"""examples/poison-watcher runs by one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.feature(185)
def test_the_example_puts_everything_right(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/poison-watcher/run.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *found, last = done.stdout.splitlines()
    assert len(found) == 2
    assert all(line.startswith("StockQueue was switched off; conversation ") for line in found)
    assert last == "38 parts were handed out, 2 requests refused; 0 notes of those are left."
    assert list(tmp_path.iterdir()) == []
