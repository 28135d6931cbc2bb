"""The Prometheus rules and the Grafana dashboard use metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "monitoring"
RULES, BOARD = FOLDER / "alerts.yml", FOLDER / "dashboard.json"


@pytest.mark.parametrize("file", [RULES, BOARD], ids=lambda file: str(file.name))
def test_every_metric_is_a_documented_one(file: Path) -> None:
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    used = set(re.findall(r"\bservicebroker_(\w+)", file.read_text()))
    assert len(used) > 5
    assert used - documented == set()


def test_panels_do_not_lie_on_each_other() -> None:
    taken = [
        (grid["x"] + x, grid["y"] + y)
        for grid in (panel["gridPos"] for panel in json.loads(BOARD.read_text())["panels"])
        for x in range(grid["w"])
        for y in range(grid["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24  # columns of a Grafana dashboard


def test_every_alert_has_an_action() -> None:
    text = RULES.read_text()
    assert text.count("- alert:") == text.count("action:") == text.count("summary:") > 5


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_prometheus_takes_the_rules() -> None:
    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
