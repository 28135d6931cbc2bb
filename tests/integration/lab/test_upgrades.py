"""Two instances that exchange messages are restarted and upgraded in turn, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import servicebroker
from servicebroker_lab.upgrades.command import run


@pytest.mark.full
@pytest.mark.timeout(300)
def test_no_message_is_lost_while_each_side_is_upgraded(make_url: Callable[[], str], tmp_path: Path) -> None:
    """Upgrade from this version to itself. `make upgrades` does the same from an older version."""
    here = Path(servicebroker.__file__).parents[1]
    found = run([make_url(), make_url()], tmp_path, here, 20)
    assert found["is_exact"], found
    assert (found["sent"], found["taken"], found["answered"], found["waiting"]) == (200, 200, 200, [0, 0])
