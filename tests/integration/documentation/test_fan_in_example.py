"""examples/fan-in runs with one command, and its tables hold the messages of the shops."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import html

from support import run_example

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder outside of pytest's folder; conftest.py has the reason."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.full
def test_three_shops_land_in_one_warehouse(folder: Path) -> None:
    lines = run_example("fan-in/run.py", str(folder))
    assert lines[-4:] == [
        "shop 1: 200 orders, 20000.00 in all",
        "shop 2: 200 orders, 20000.00 in all",
        "shop 3: 200 orders, 20000.00 in all",
        "3 items in stock, 9 pieces",
    ]
    assert "3 in quarantine: //example/Order: wrong type" in "\n".join(lines)
    page = html.parse(folder / "report.html")
    assert len(page.findall(".//svg")) == 4
    assert [row.findtext("td") for row in page.findall(".//tr")[1:]] == ["shop 1", "shop 2", "shop 3"]
