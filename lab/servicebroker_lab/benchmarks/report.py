"""The results of benchmarks, as values, JSON, Markdown and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from servicebroker_lab.benchmarks.measure import Figures
from servicebroker_lab.benchmarks.scenarios import BOTTLENECKS, PIPELINE, PIPELINE_ROUNDS, SCENARIOS

OURS = "servicebroker"


@dataclass(frozen=True)
class Line:
    """One system in one scenario.

    Attributes:
        scenario: the name of the scenario.
        system, version, label, settings: the measured system, and how it was called.
        figures: the medians; None if it was not measured.
        reason: the reason why it was not measured.
        ratio: messages per second of servicebroker divided by those of this line; None for servicebroker.
        goal: the goal of the ratio; None without one.
        is_cost: the ratio compares the server's processor time for a message, and the goal is a maximum.
    """

    scenario: str
    system: str
    version: str = ""
    label: str = ""
    settings: str = ""
    figures: Figures | None = None
    reason: str = ""
    ratio: float | None = None
    goal: float | None = None
    is_cost: bool = False

    @property
    def is_reached(self) -> bool | None:
        """True if the goal is reached; None without a goal or a ratio."""
        if self.goal is None or self.ratio is None:
            return None
        return self.ratio <= self.goal if self.is_cost else self.ratio >= self.goal


@dataclass(frozen=True)
class Conditions:
    """The conditions of a run.

    Attributes:
        command: the command line that repeats the run.
        date: the date of the run, ISO 8601.
        python, postgresql: versions.
        cpus: the number of processors that the process may use.
        rounds: the number of measurements of each line.
        scale: the factor of the numbers of messages.
        messages: the number of messages in each round, by scenario.
    """

    command: str
    date: str
    python: str
    postgresql: str
    cpus: int
    rounds: int
    scale: float
    messages: dict[str, int]


@dataclass(frozen=True)
class Report:
    """All lines of a run. In each scenario servicebroker comes first."""

    conditions: Conditions
    lines: tuple[Line, ...]

    @property
    def missed_lines(self) -> list[Line]:
        """The lines whose goal is not reached."""
        return [line for line in self.lines if line.is_reached is False]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object: the conditions, and a list of lines with `is_reached`."""
        return {
            "conditions": asdict(self.conditions),
            "lines": [asdict(line) | {"reached": line.is_reached} for line in self.lines],
        }

    def markdown(self, chart: str | None = None) -> str:
        """Return a page with a table for each scenario. `chart`: the path of the chart, relative to the page."""
        parts = [_INTRODUCTION, _conditions(self.conditions)]
        if chart:
            parts.append(f"![Messages per second, by scenario]({chart})")
        for name, lines in _by_scenario(self.lines):
            messages = self.conditions.messages.get(name, 0)
            title = SCENARIOS[name].title
            parts.append(f"## {title}\n\n`{name}`, {messages:,} messages in each round.\n\n{_table(lines)}")
            if name in BOTTLENECKS and any(line.is_reached is False for line in lines):
                parts.append(f"What bounds it: {BOTTLENECKS[name]}")
        parts.append(_HOW_TO_READ)
        return "\n\n".join(parts) + "\n"

    def svg(self) -> str:
        """Return a bar chart of messages per second. Each scenario has its own scale."""
        return _chart(_by_scenario([line for line in self.lines if not line.is_cost]))

    def write(self, page: Path) -> None:
        """Write the Markdown page, and the chart beside it as .svg."""
        picture = page.with_suffix(".svg")
        page.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(self.svg(), encoding="utf-8")
        page.write_text(self.markdown(picture.name), encoding="utf-8")


_INTRODUCTION = """\
# Benchmarks

Each scenario measures servicebroker and what a user would pick instead, on the same PostgreSQL in the same run:
in turns, round after round, and the medians of the rounds are shown. Every commit is durable (`fsync` and
`synchronous_commit` on), every body has 200 bytes, and every system has one connection unless its line says more.
Figures depend on the machine and on what else it does; the ratios are what counts."""

_HOW_TO_READ = """\
## How to read the tables

- **messages/s**: the median over the rounds.
- **ours is**: our messages per second divided by this line's; in the scenarios of `cpu` the server's processor time for
  one of our messages divided by that for one of this line's.
- **goal**: the ratio that is wanted, and whether this run reached it.
- **postgresql**: a row as long as a message, inserted and committed. Nobody commits messages one by one faster on that
  disk; where more than 1x of it is reached, connections have shared flushes of the log.
- **commits/message**: transactions that wrote something; each costs a flush of the write-ahead log.
- **WAL/message**: bytes of write-ahead log that the server wrote for one message, indexes and bookkeeping included.
- **server**, **client**: microseconds of processor time for one message, of the server's sessions and of the processes
  that use them. Other work on the machine changes them less than it changes a rate.

pgmq is measured only when the SQL file of one of its releases is given: `--pgmq-sql FILE`. pgqueuer and procrastinate
come with `pip install 'servicebroker[bench]'`, Spark and Delta with `servicebroker[spark]`. Spark's JDBC is measured
when the jar of PostgreSQL's driver is given (Debian: libpostgresql-jdbc-java): `--jdbc-jar FILE`. RabbitMQ is
measured where Debian's rabbitmq-server is installed; it writes no log of PostgreSQL's. Filling a queue before it is
read, emptying it after it was written to and starting Spark or RabbitMQ are not part of any figure."""


def _conditions(conditions: Conditions) -> str:
    return (
        f"Made on {conditions.date} by\n\n```\n{conditions.command}\n```\n\n"
        f"with Python {conditions.python} and PostgreSQL {conditions.postgresql} on {conditions.cpus} CPUs, "
        f"{_rounds(conditions)}{'' if conditions.scale == 1 else f', scale {conditions.scale:g}'}."
    )


def _rounds(conditions: Conditions) -> str:
    if any(name.startswith(PIPELINE) for name in conditions.messages) and conditions.rounds > PIPELINE_ROUNDS:
        return f"{conditions.rounds} rounds ({PIPELINE_ROUNDS} of the pipeline)"
    return f"{conditions.rounds} round{'' if conditions.rounds == 1 else 's'}"


def _by_scenario(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    names = list(dict.fromkeys(line.scenario for line in lines))
    return [(name, [line for line in lines if line.scenario == name]) for name in names]


def _table(lines: Sequence[Line]) -> str:
    rows = [
        "| | messages/s | ours is | goal | commits/message | WAL/message | server | client |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
        *(_row(line) for line in lines),
    ]
    return "\n".join(rows)


def _row(line: Line) -> str:
    title = f"**{line.system}**" if line.system == OURS else line.system
    system = " ".join(part for part in (line.version, f"`{line.label}`" if line.label else "") if part)
    waits = line.figures.waits if line.figures else ""
    cell = "<br>".join(filter(None, [f"{title} {system}".rstrip(), line.settings, waits]))
    if line.figures is None:
        return f"| {cell} | not measured: {line.reason} | | {goal_text(line)} | | | | |"
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}x"
    return (
        f"| {cell} | {line.figures.per_second:,.0f} | {ratio} | {goal_text(line)} "
        f"| {line.figures.commits:.3f} | {line.figures.wal_bytes:,.0f} B "
        f"| {_microseconds(line.figures.server)} | {_microseconds(line.figures.client)} |"
    )


def _microseconds(microseconds: float) -> str:
    return f"{microseconds:,.{0 if microseconds >= 10 else 1}f} µs" if microseconds else ""


def goal_text(line: Line) -> str:
    """Return the goal, and whether it was reached; "" without a goal."""
    if line.goal is None:
        return ""
    verdict = {None: "", True: ", reached", False: ", **not reached**"}[line.is_reached]
    return f"{'<=' if line.is_cost else '>='} {line.goal:g}x{verdict}"


def in_words(line: Line) -> str:
    """Return a result as one line for an observer of a run that takes an hour."""
    subject = " ".join(part for part in (f"{line.scenario}:", line.system, line.label, line.settings) if part)
    if line.figures is None:
        return f"{subject}: not measured: {line.reason}"
    ratio = "" if line.ratio is None else f", ours is {line.ratio:.2f}x"
    expected = f" ({goal_text(line).replace('*', '')})" if line.goal is not None else ""
    cpu_text = f", {line.figures.server:,.0f} + {line.figures.client:,.0f} µs" if line.figures.server else ""
    waits = f"; {line.figures.waits}" if line.figures.waits else ""
    return f"{subject}: {line.figures.per_second:,.0f}/s{cpu_text}{ratio}{expected}{waits}"


# ---------------------------------------------------------------- the chart

_WIDTH_PX = 860
_LABEL_WIDTH_PX = 290  # pixels; the bars begin behind the labels
_LONGEST_BAR_PX = 340  # the length of the longest bar
_BAR_HEIGHT_PX, _BAR_STEP_PX, _HEADING_HEIGHT_PX, _GAP_PX, _MARGIN_PX = 18, 25, 30, 16, 16
_STYLE = (
    "text{font:13px system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#24292f}"
    ".title{font-weight:600;font-size:15px}.small{fill:#57606a}"
    ".ours{fill:#0969da}.peer{fill:#afb8c1}.paper{fill:#ffffff}"
)


def _chart(groups: Sequence[tuple[str, list[Line]]]) -> str:
    shapes: list[str] = []
    y = _MARGIN_PX + 14
    for name, lines in groups:
        measured_lines = [line for line in lines if line.figures]
        if not measured_lines:
            continue
        shapes.append(_text(_MARGIN_PX, y, SCENARIOS[name].title, "title"))
        y += _HEADING_HEIGHT_PX - 18
        best = max(_rate(line) for line in measured_lines)
        for line in measured_lines:
            shapes.extend(_bar(line, y, best))
            y += _BAR_STEP_PX
        y += _GAP_PX + 18
    shapes.append(_text(_MARGIN_PX, y - 8, "Messages per second; each scenario has a scale of its own.", "small"))
    height = y + _MARGIN_PX - 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH_PX}" height="{height}" '
        f'viewBox="0 0 {_WIDTH_PX} {height}" role="img" aria-label="Messages per second, by scenario">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="paper" width="{_WIDTH_PX}" height="{height}"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _bar(line: Line, y: int, best: float) -> list[str]:
    kind = "ours" if line.system == OURS else "peer"
    length = max(2.0, _LONGEST_BAR_PX * _rate(line) / best)
    value = f"{_rate(line):,.0f}"
    if line.ratio is not None:
        value += f"   (ours is {line.ratio:.2f}x)"
    label = line.label if line.label.startswith(line.system) else f"{line.system} {line.label}"
    return [
        _text(_LABEL_WIDTH_PX - 10, y + 14, label, "", anchor="end"),
        f'<rect class="{kind}" x="{_LABEL_WIDTH_PX}" y="{y}" width="{length:.1f}" height="{_BAR_HEIGHT_PX}" rx="2"/>',
        _text(round(_LABEL_WIDTH_PX + length + 8), y + 14, value, "small"),
    ]


def _rate(line: Line) -> float:
    return line.figures.per_second if line.figures else 0.0


def _text(x: int, y: int, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
