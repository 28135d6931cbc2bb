"""Charts of values over time: the data of SVG pictures, which the templates write.

The server computes the lines (decision 510). The page stretches a picture to its width, so the labels of the axes are
text outside of the picture, at equal distances. The page's script shows the values under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from servicebroker.engine.diagnosis.history import RateHistory

VIEW_WIDTH, VIEW_HEIGHT = 600, 100  # units of a picture's viewBox
TIME_LABELS = 5  # labels on the time axis of a chart, including both ends
_STEPS = (1, 2, 5, 10)  # upper ends of an axis, times a power of ten


class Line(NamedTuple):
    """The values of one quantity as SVG polylines, one for each stretch without a gap.

    `last` and `highest` are the last and the highest known value.
    """

    label: str
    lines: list[str]
    last: float
    highest: float

    @property
    def is_known(self) -> bool:
        """True if at least one value is known."""
        return bool(self.lines)


class Chart(NamedTuple):
    """Lines over a common axis from 0 to `top`.

    `times` are the labels of the time axis. `values` is JSON for the page's script: times and values of each line.
    """

    lines: list[Line]
    top: float
    times: list[datetime]
    values: str
    width: int = VIEW_WIDTH
    height: int = VIEW_HEIGHT

    @property
    def is_known(self) -> bool:
        """True if at least one value is known."""
        return any(line.is_known for line in self.lines)


def flow_chart(history: RateHistory) -> Chart:
    """Return the chart of messages per second into and out of queues."""
    return _chart(history, {"In per second": history.rates_in, "Out per second": history.rates_out})


def depth_chart(history: RateHistory) -> Chart:
    """Return the chart of the number of messages in queues."""
    return _chart(history, {"Messages": history.depths})


def spark(values: Sequence[float | None]) -> Line:
    """Return a line without axes, scaled to its highest value."""
    return _line("", values, _highest(values) or 1.0)


def _chart(history: RateHistory, values_by_label: dict[str, Sequence[float | None]]) -> Chart:
    top = _axis_end(max(_highest(values) for values in values_by_label.values()))
    parts = max(len(values) for values in values_by_label.values())
    span = timedelta(seconds=history.part_s * parts)
    for_script = {
        "since": history.since.timestamp(),
        "width": history.part_s,
        "lines": [{"label": label, "values": list(values)} for label, values in values_by_label.items()],
    }
    return Chart(
        [_line(label, values, top) for label, values in values_by_label.items()],
        top,
        [history.since + span * number / (TIME_LABELS - 1) for number in range(TIME_LABELS)],
        json.dumps(for_script, separators=(",", ":")),
    )


def _highest(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _axis_end(highest: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is at least the highest value."""
    if highest <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in _STEPS if step * power >= highest)


def _line(label: str, values: Sequence[float | None], top: float) -> Line:
    """Draw values, scaled to `top`. None makes a gap."""
    known = [value for value in values if value is not None]
    if not known:
        return Line(label, [], 0.0, 0.0)
    x_step, y_scale = VIEW_WIDTH / len(values), (VIEW_HEIGHT - 2) / top
    lines = []
    for is_gap, stretch in groupby(enumerate(values), lambda item: item[1] is None):
        if is_gap:
            continue
        points = [(index * x_step, VIEW_HEIGHT - 1 - (value or 0.0) * y_scale) for index, value in stretch]
        points.append((points[-1][0] + x_step, points[-1][1]))  # each value covers an interval
        lines.append(" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
    return Line(label, lines, known[-1], max(known))
