"""examples/fan-in runs by one command, and its tables say what the shops have sent."""

import subprocess
import sys
from pathlib import Path

import pytest
from lxml import html

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def test_three_shops_land_in_one_warehouse(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/fan-in/run.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "shop 1: 200 orders, 20000.00 in all",
        "shop 2: 200 orders, 20000.00 in all",
        "shop 3: 200 orders, 20000.00 in all",
        "3 items in stock, 9 pieces",
    ]
    assert "3 in quarantine: //example/Order: wrong type" in done.stdout
    page = html.parse(tmp_path / "report.html")
    assert len(page.findall(".//svg")) == 4
    assert [row.findtext("td") for row in page.findall(".//tr")[1:]] == ["shop 1", "shop 2", "shop 3"]
