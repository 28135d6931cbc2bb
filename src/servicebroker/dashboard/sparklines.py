"""Values over time as lines of an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

WIDE, HIGH = 120, 30  # of the picture


class Line(NamedTuple):
    """Values as lines of points, one for each stretch of time that was watched; the last value and the highest."""

    lines: list[str]
    last: float
    most: float
    wide: int = WIDE
    high: int = HIGH

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.lines)


def line(values: Sequence[float | None]) -> Line:
    """The picture of these values, the highest as high as the picture; a gap where one is None."""
    known = [value for value in values if value is not None]
    if not known:
        return Line([], 0.0, 0.0)
    most = max(known)
    across, up = WIDE / len(values), (HIGH - 2) / (most or 1.0)
    drawn = []
    for is_gap, stretch in groupby(enumerate(values), lambda one: one[1] is None):
        if is_gap:
            continue
        points = [(place * across, HIGH - 1 - (value or 0.0) * up) for place, value in stretch]
        points.append((points[-1][0] + across, points[-1][1]))  # each value is of a part of the time
        drawn.append(" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
    return Line(drawn, known[-1], most)
