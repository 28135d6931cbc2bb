"""The arithmetic and the report of the benchmarks, without measurements."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker_lab import benchmarks
from servicebroker_lab.benchmarks import chosen_scenarios, command_line
from servicebroker_lab.benchmarks.adbc import even_parts
from servicebroker_lab.benchmarks.competitors import pgmq_version, plain_sql
from servicebroker_lab.benchmarks.measure import Figures, Sample, figures
from servicebroker_lab.benchmarks.measured_system import BATCH_MESSAGES, BODY_BYTES, batches, text_body
from servicebroker_lab.benchmarks.report import Conditions, Line, Report, goal_text, in_words
from servicebroker_lab.benchmarks.runner import with_ratios
from servicebroker_lab.benchmarks.scenarios import BOTTLENECKS, SCENARIOS

SCENARIO = SCENARIOS["send-one"]


def some_lines() -> list[Line]:
    lines = [
        Line("send-one", "servicebroker", "1.0", "send", "", Figures(3000.0, 1.0, 600.0)),
        Line("send-one", "pgqueuer", "2.0", "enqueue", "psycopg <3>", Figures(2000.0, 1.0, 1100.0)),
        Line("send-one", "procrastinate", "3.0", "defer", "", Figures(1600.0, 1.0, 900.0, 520.0, 7.25)),
        Line("send-one", "pgmq", reason="give --pgmq-sql FILE"),
    ]
    return with_ratios(lines, SCENARIO)


def a_report() -> Report:
    conditions = Conditions(
        "python -m servicebroker_lab.benchmarks send-one", "2026-01-31", "3.11", "18", 2, 5, 1.0, {"send-one": 3000}
    )
    return Report(conditions, tuple(some_lines()))


def test_figures_are_medians() -> None:
    samples = [Sample(100, 1.0, 100, 5000), Sample(100, 4.0, 300, 1000), Sample(100, 2.0, 200, 9000)]
    assert figures(samples) == Figures(50.0, 2.0, 50.0)


def test_processor_time_is_told_in_microseconds_and_waits_by_their_share() -> None:
    waits = Counter({"running": 2, "WALSync": 1})
    samples = [Sample(100, 1.0, 100, 5000, 0.05, 0.02, waits), Sample(100, 1.0, 100, 5000, 0.03, 0.01, waits)]
    assert figures(samples) == Figures(100.0, 1.0, 50.0, 400.0, 150.0, "running 67%, WALSync 33%")


def test_a_lower_cost_is_better() -> None:
    scenario = SCENARIOS["cpu-receive-one"]
    lines = [
        Line("cpu-receive-one", system, figures=Figures(1.0, 1.0, 1.0, server))
        for system, server in (("servicebroker", 480.0), ("pgmq", 400.0), ("postgresql", 0.0))
    ]
    _, dearer, unknown = with_ratios(lines, scenario)
    assert (dearer.ratio, dearer.is_reached, goal_text(dearer)) == (1.2, False, "<= 1.1x, **not reached**")
    assert (unknown.ratio, unknown.is_reached) == (None, None)
    (_, cheap) = with_ratios([lines[0], replace(lines[1], figures=Figures(1.0, 1.0, 1.0, 600.0))], scenario)
    assert (cheap.ratio, cheap.is_reached) == (0.8, True)


def test_lines_have_ratios_and_goals() -> None:
    ours, pgqueuer, procrastinate, pgmq = some_lines()
    assert (ours.ratio, ours.goal, ours.is_reached) == (None, None, None)
    assert (pgqueuer.ratio, pgqueuer.goal, pgqueuer.is_reached) == (1.5, 1.2, True)
    assert (procrastinate.ratio, procrastinate.goal, procrastinate.is_reached) == (1.875, 2.0, False)
    assert (pgmq.ratio, pgmq.goal, pgmq.is_reached) == (None, 1.2, None)
    assert [line.system for line in a_report().missed_lines] == ["procrastinate"]


def test_the_report_has_one_line_per_system() -> None:
    assert [in_words(line) for line in some_lines()] == [
        "send-one: servicebroker send: 3,000/s",
        "send-one: pgqueuer enqueue psycopg <3>: 2,000/s, ours is 1.50x (>= 1.2x, reached)",
        "send-one: procrastinate defer: 1,600/s, 520 + 7 µs, ours is 1.88x (>= 2x, not reached)",
        "send-one: pgmq: not measured: give --pgmq-sql FILE",
    ]


def test_a_goal_says_whether_it_is_reached() -> None:
    assert [goal_text(line) for line in some_lines()] == [
        "",
        ">= 1.2x, reached",
        ">= 2x, **not reached**",
        ">= 1.2x",
    ]


def test_the_page_shows_figures_and_goals() -> None:
    page = a_report().markdown("benchmarks.svg")
    assert "python -m servicebroker_lab.benchmarks send-one\n" in page
    assert "![Messages per second, by scenario](benchmarks.svg)" in page
    assert (
        "| pgqueuer 2.0 `enqueue`<br>psycopg <3> | 2,000 | 1.50x | >= 1.2x, reached | 1.000 | 1,100 B | | |"
        in page.replace("  ", " ")
    )
    assert "| 1.000 | 900 B | 520 µs | 7.2 µs |" in page
    assert "| pgmq | not measured: give --pgmq-sql FILE | | >= 1.2x | | | | |" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {9}


def test_a_table_that_misses_a_goal_names_its_bound() -> None:
    report = a_report()
    assert f"What bounds it: {BOTTLENECKS['send-one']}" in report.markdown()
    reached = replace(report, lines=tuple(line for line in report.lines if line.is_reached is not False))
    assert "What bounds it" not in reached.markdown()


def test_bounds_are_of_scenarios_and_their_links_lead_somewhere() -> None:
    assert BOTTLENECKS.keys() <= SCENARIOS.keys()
    docs = Path(__file__).parents[3] / "docs"
    for text in BOTTLENECKS.values():
        assert all((docs / link).exists() for link in re.findall(r"\]\(([^)]+)\)", text))


def test_the_report_is_json() -> None:
    document = json.loads(json.dumps(a_report().as_json()))
    assert document["conditions"]["messages"] == {"send-one": 3000}
    assert [line["reached"] for line in document["lines"]] == [None, True, False, None]
    assert document["lines"][1]["figures"] == asdict(Figures(2000.0, 1.0, 1100.0))


def test_svg_shows_every_measured_line_to_scale() -> None:
    root = ET.fromstring(a_report().svg())
    name = "{http://www.w3.org/2000/svg}"
    bars = {bar.get("class", ""): float(bar.get("width", "0")) for bar in root.iter(f"{name}rect")}
    assert bars["ours"] == pytest.approx(340)
    assert bars["peer"] == pytest.approx(340 * 1600 / 3000, abs=0.1)
    texts = [text.text for text in root.iter(f"{name}text")]
    assert SCENARIO.title in texts
    assert "2,000   (ours is 1.50x)" in texts
    assert not any("pgmq" in (text or "") for text in texts)


def test_write(tmp_path: Path) -> None:
    a_report().write(tmp_path / "docs" / "page.md")
    assert "(page.svg)" in (tmp_path / "docs" / "page.md").read_text()
    assert (tmp_path / "docs" / "page.svg").read_text() == a_report().svg()


def test_scenarios_are_chosen_by_name_and_group() -> None:
    assert chosen_scenarios(["worker", "send-one", "worker"]) == ["send-one", "worker"]
    assert chosen_scenarios(["all"]) == list(SCENARIOS)
    assert chosen_scenarios(["scale"])[0] == "scale-send-1-1"
    with pytest.raises(InstanceError, match="There is no benchmark 'sned'; there are send-one, "):
        chosen_scenarios(["sned"])
    with pytest.raises(InstanceError, match="Name a benchmark"):
        chosen_scenarios([])


@pytest.mark.parametrize(("scale", "rounds"), [(0, 5), (-1, 5), (float("nan"), 5), (1, 0)])
def test_senseless_numbers_are_refused_before_anything_starts(scale: float, rounds: int) -> None:
    with pytest.raises(InstanceError, match="scale above 0"):
        benchmarks.run(["send-one"], scale=scale, rounds=rounds)


def test_command_line_names_no_folder() -> None:
    assert command_line(["all"], None, 1.0, 5) == "python -m servicebroker_lab.benchmarks all"
    command = command_line(["send-one"], Path("/some/where/pgmq one.sql"), 0.5, 3)
    assert command == "python -m servicebroker_lab.benchmarks send-one --pgmq-sql 'pgmq one.sql' --scale 0.5 --rounds 3"


def test_plain_sql_drops_statements_of_extensions() -> None:
    script = (
        "\\echo Use CREATE EXTENSION\n\\quit\ncreate table pgmq.meta (a int);\n"
        "SELECT pg_catalog.pg_extension_config_dump('pgmq.meta',\n '');\nselect 1;\n"
    )
    assert plain_sql(script).split() == ["create", "table", "pgmq.meta", "(a", "int);", "select", "1;"]


def test_the_version_of_pgmq_has_the_hash_of_its_file() -> None:
    assert pgmq_version("pgmq--1.5.1.sql", "x") == "1.5.1 (sha256 2d711642b726)"
    assert pgmq_version("pgmq.sql", "x") == "pgmq.sql, sha256 2d711642b726"


def test_bodies_and_batches() -> None:
    assert len(text_body().encode()) == BODY_BYTES
    assert text_body() == text_body()
    assert list(batches(2 * BATCH_MESSAGES + 1)) == [BATCH_MESSAGES, BATCH_MESSAGES, 1]
    assert list(batches(BATCH_MESSAGES)) == [BATCH_MESSAGES]


def test_even_parts_divide_a_range() -> None:
    assert even_parts(10, 20, 3) == [(10, 13), (13, 16), (16, 20)]
