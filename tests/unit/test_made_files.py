"""The blocking form of the API is what tools/make_sync.py makes of the asyncio form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "make_sync.py"


def test_the_made_files_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, f"run `make sync`:\n{checked.stdout}{checked.stderr}"
