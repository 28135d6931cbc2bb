"""The course of a queue from its changes, and its picture."""

from __future__ import annotations

from datetime import UTC, datetime

from servicebroker.cli.printable_text import blocks
from servicebroker.dashboard.sparklines import HEIGHT_PX, WIDTH_PX, line
from servicebroker.engine.diagnosis.history import Change, course

SINCE = datetime(2020, 1, 1, tzinfo=UTC)


def test_rates_are_of_parts_and_depths_go_on() -> None:
    found = course(SINCE, 10.0, 5, {1, 2, 3}, [Change(-1, 0, 0, 9, 4), Change(2, 30, 20, 25, 14)])
    assert found.came == [None, 0.0, 3.0, 0.0, None]
    assert found.left == [None, 0.0, 2.0, 0.0, None]
    assert found.depths == [None, 4, 25, 14, None]


def test_what_nobody_has_watched_is_not_known() -> None:
    found = course(SINCE, 10.0, 3, {0, 1, 2}, [])
    assert found.depths == [None, None, None]
    assert found.came == [0.0, 0.0, 0.0]


def test_a_picture_has_gaps_and_stays_within_its_frame() -> None:
    drawn = line([1, 5, None, 2, 0])
    assert (len(drawn.lines), drawn.last, drawn.most) == (2, 0, 5)
    points = [tuple(map(float, point.split(","))) for one in drawn.lines for point in one.split()]
    assert all(0 <= x <= WIDTH_PX and 0 <= y <= HEIGHT_PX for x, y in points)
    assert not line([None, None]).is_known
    assert not line([]).is_known


def test_a_line_of_blocks() -> None:
    assert blocks([0, 7, None, 3.5]) == "▁█ ▅"
    assert blocks([None, 0.0]) == " ▁"
    assert blocks([]) == ""
    assert blocks([0, 7, None, None, 3.5, 0], 3) == "█ ▅"
