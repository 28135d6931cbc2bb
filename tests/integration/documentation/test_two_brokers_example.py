"""examples/two-brokers runs with one command, and its page shows the existing files."""

import re
from pathlib import Path

import pytest

from forked import run_command
from support import run_example

ROOT = Path(__file__).parents[3]


@pytest.mark.full
@pytest.mark.slow
def test_the_example_runs_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = run_example("two-brokers/run.py", folder=tmp_path)
    assert "TLS 1.3" in first
    assert second.startswith("100 orders were sent and confirmed, each once and in order, in ")
    assert list(tmp_path.iterdir()) == []


def test_every_command_of_the_page_exists() -> None:
    page = (ROOT / "docs/how-to/two-brokers.md").read_text()
    commands = {match.split()[-1] for match in re.findall(r"servicebroker (certificate \w+|serve)", page)}
    assert commands == {"master", "create", "export", "import", "list", "budget", "drop", "serve"}
    for command in ("serve", "certificate"):
        result = run_command(command, "--help").stdout
        for word in (
            ("master-key", "create", "export", "import", "list", "accept", "budget", "drop")
            if command == "certificate"
            else ("--listen",)
        ):
            assert word in result
