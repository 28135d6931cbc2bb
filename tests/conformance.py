"""A pytest plugin: write a table of the features that the tests of this run have proved.

    pytest -p conformance --conformance docs/conformance.md

A row of the feature checklist is done if it has tests and all of them have passed. It is open if a test failed, was
skipped or deselected, or if it has none. A test may name only rows that exist. With `pytest -n` the workers report
which tests name which rows.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

FEATURES = Path(__file__).with_name("features.tsv")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", metavar="FILE", help="write the table of proved features there")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--conformance"):
        config.pluginmanager.register(Conformance(Path(config.getoption("--conformance"))))


class Conformance:
    """Collects the outcomes of tests, and the rows that tests name by @pytest.mark.feature."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.rows: dict[str, set[int]] = {}
        self.outcomes: dict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)  # before -k and -m deselect tests
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known_features = {number for number, _ in features()}
        for item in items:
            for mark in item.iter_markers("feature"):
                if not mark.args or not known_features.issuperset(mark.args):
                    raise pytest.UsageError(f"{item.nodeid} names rows that do not exist: {mark.args}")
                self.rows.setdefault(item.nodeid, set()).update(mark.args)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes[report.nodeid].add(report.outcome)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the rows of the tests of a worker that has ended."""
        for test, numbers in node.workeroutput.get("features", {}).items():
            self.rows[test] = set(numbers)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["features"] = {test: sorted(numbers) for test, numbers in self.rows.items()}
            return
        self.page.write_text(
            table(self.rows, {test: outcomes == {"passed"} for test, outcomes in self.outcomes.items()})
        )


def features() -> list[tuple[int, str]]:
    """Return the rows of the checklist as (number, text)."""
    lines = (line.split("\t") for line in FEATURES.read_text().splitlines())
    return [(int(number), text) for number, text in lines]


def table(rows: dict[str, set[int]], passed: dict[str, bool]) -> str:
    """Return the page, with one line for each row of the checklist."""
    tests: dict[int, list[str]] = defaultdict(list)
    for test, numbers in rows.items():
        for number in numbers:
            tests[number].append(test)
    lines = []
    done_count = 0
    for number, feature in features():
        proofs = sorted(tests[number])
        is_proved = bool(proofs) and all(passed.get(test, False) for test in proofs)
        done_count += is_proved
        names = "<br>".join(sorted({f"`{test.split('[')[0].removeprefix('tests/')}`" for test in proofs}))
        lines.append(f"| {number} | {feature} | {names} | {'done' if is_proved else 'open'} |")
    return (
        "# Conformance\n\nWritten by `make conformance` from the tests that passed. A row is one feature of Service "
        f"Broker; {done_count} of {len(lines)} are done.\n\n| row | feature | tests | done |\n|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
