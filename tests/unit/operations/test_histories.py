"""Queue histories and conversation timelines: computed from changes and events, and drawn."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

import servicebroker
from servicebroker.cli.printable_text import blocks
from servicebroker.dashboard import snapshot_cache
from servicebroker.dashboard.charts import VIEW_HEIGHT, VIEW_WIDTH, depth_chart, flow_chart, spark
from servicebroker.dashboard.statement_names import VERBS, readable
from servicebroker.dashboard.timeline import timeline_rows
from servicebroker.engine.diagnosis.history import Change, RateHistory, history_of
from servicebroker.engine.diagnosis.trail import Event
from servicebroker.model.names import END_DIALOG

SINCE = datetime(2020, 1, 1, tzinfo=UTC)


def test_rates_are_of_parts_and_depths_go_on() -> None:
    history = history_of(SINCE, 10.0, 5, {1, 2, 3}, [Change(-1, 0, 0, 9, 4), Change(2, 30, 20, 25, 14)])
    assert history.rates_in == [None, 0.0, 3.0, 0.0, None]
    assert history.rates_out == [None, 0.0, 2.0, 0.0, None]
    assert history.depths == [None, 4, 25, 14, None]


def test_lengths_without_samples_are_unknown() -> None:
    history = history_of(SINCE, 10.0, 3, {0, 1, 2}, [])
    assert history.depths == [None, None, None]
    assert history.rates_in == [0.0, 0.0, 0.0]


def test_a_chart_has_gaps_and_stays_within_its_frame() -> None:
    drawn = spark([1, 5, None, 2, 0])
    assert (len(drawn.lines), drawn.last, drawn.highest) == (2, 0, 5)
    points = [tuple(map(float, point.split(","))) for line in drawn.lines for point in line.split()]
    assert all(0 <= x <= VIEW_WIDTH and 0 <= y <= VIEW_HEIGHT for x, y in points)
    assert not spark([None, None]).is_known
    assert not spark([]).is_known


@pytest.mark.parametrize(
    ("highest", "top"), [(0.0, 1), (0.3, 1), (1, 1), (1.5, 2), (3, 5), (7, 10), (10, 10), (10.1, 20), (999, 1000)]
)
def test_an_axis_ends_at_a_round_number(highest: float, top: float) -> None:
    chart = flow_chart(RateHistory(SINCE, 600.0, [0.0, highest, None], [0.0, None, None], [None] * 3))
    assert chart.top == top


def test_a_chart_has_the_times_of_its_axis_and_all_values() -> None:
    history = RateHistory(SINCE, 600.0, [1.0, None], [2.0, 0.5], [7, None])
    chart = flow_chart(history)
    assert [at.minute for at in chart.times] == [0, 5, 10, 15, 20]
    document = json.loads(chart.values)
    assert (document["since"], document["width"]) == (SINCE.timestamp(), 600)
    assert {line["label"]: line["values"] for line in document["lines"]} == {
        "In per second": [1.0, None],
        "Out per second": [2.0, 0.5],
    }
    assert [line["values"] for line in json.loads(depth_chart(history).values)["lines"]] == [[7, None]]


NEAR, FAR = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("handle", "what", "detail", "message_type", "shown"),
    [
        (NEAR, "A", "", END_DIALOG, (True, "in", "message 0 of type EndDialog: arrived in its queue", False)),
        (FAR, "A", "", "//shop/Order", (False, "in", "message 0 of type //shop/Order: arrived in its queue", False)),
        (FAR, "W", "no route", "", (False, "out", "message 0: waits to be transmitted, no route", False)),
        (NEAR, "F", "ValueError: x", "T", (True, "", "message 0 of type T: failed, ValueError: x", True)),
        (NEAR, "S", "CO DI", None, (True, "", "conversing \u2192 disconnected inbound", False)),
        (NEAR, "S", "CO ER", None, (True, "", "conversing \u2192 error", True)),
        (NEAR, "B", "SO", None, (True, "", "began, started outbound", False)),
        (NEAR, "T", "", None, (True, "", "timer fired, or was cancelled", False)),
    ],
)
def test_a_timeline_has_a_row_for_each_event(
    handle: UUID, what: str, detail: str, message_type: str | None, shown: tuple[bool, str, str, bool]
) -> None:
    numbers = (None, None, None) if message_type is None else (0, 0, 1)
    first, second = (
        Event(SINCE + timedelta(seconds=second), 7, handle, what, *numbers, message_type or "", detail)
        for second in (0, 2)
    )
    rows = timeline_rows([first, second], NEAR)
    assert [(row.is_this_side, row.arrow, row.text, row.is_failure) for row in rows] == [shown] * 2
    assert [row.pause_s for row in rows] == [None, 2.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("conversation.receive", "RECEIVE"),
        ("queue_counts.stored_queues", "Queue counts: stored queues"),
        ("check.wait_for.find", "Check: wait for, find"),
        ("alone", "Alone"),
    ],
)
def test_statements_have_readable_names(name: str, words: str) -> None:
    assert readable(name) == words


def test_the_names_of_verbs_are_those_of_statements() -> None:
    package = Path(servicebroker.__file__).parent
    text = "\n".join(path.read_text() for path in package.rglob("*.py") if path.parts[-2] != "dashboard")
    there = {name for name in VERBS if f'"{name}"' in text}
    there |= {name for name in VERBS if f'SQL("{name.partition(".")[2]}"' in text}
    assert there == set(VERBS)


def test_a_line_of_blocks() -> None:
    assert blocks([0, 7, None, 3.5]) == "▁█ ▅"
    assert blocks([None, 0.0]) == " ▁"
    assert blocks([]) == ""
    assert blocks([0, 7, None, None, 3.5, 0], 3) == "█ ▅"


def test_a_rate_is_the_mean_over_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = snapshot_cache.Rates()
    window = snapshot_cache.RATE_WINDOW_S
    for seconds, count, rate in (
        (0.0, 100.0, 0.0),  # a new counter
        (2.0, 120.0, 10.0),
        (window, 120.0, 20 / window),
        (window + 3, 120.0, 0.0),  # since the second count: the first one is too old
        (window + 4, 7.0, 0.0),  # a counter that begins anew
    ):
        monkeypatch.setattr(snapshot_cache, "time", SimpleNamespace(monotonic=lambda seconds=seconds: seconds))
        assert rates.update({"a": count}) == {"a": rate}, seconds


def test_the_last_depth_of_a_chart_is_the_counted_one() -> None:
    history = RateHistory(SINCE, 600.0, [1.0] * 3, [2.0] * 3, [7, 27, 27])
    assert history.with_current_depth(21).depths == [7, 27, 21]
