"""Values over time as lines of an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

WIDTH_PX, HEIGHT_PX = 120, 30  # units of the picture's viewBox


class Line(NamedTuple):
    """Values as lines of points, one for each gapless stretch; with the last and the highest value."""

    lines: list[str]
    last: float
    most: float
    wide: int = WIDTH_PX
    high: int = HEIGHT_PX

    @property
    def is_known(self) -> bool:
        """True if there is any value to show."""
        return bool(self.lines)


def line(values: Sequence[float | None]) -> Line:
    """Return the picture of values, scaled to the highest. None makes a gap."""
    known = [value for value in values if value is not None]
    if not known:
        return Line([], 0.0, 0.0)
    highest = max(known)
    x_step, y_scale = WIDTH_PX / len(values), (HEIGHT_PX - 2) / (highest or 1.0)
    lines = []
    for is_gap, stretch in groupby(enumerate(values), lambda item: item[1] is None):
        if is_gap:
            continue
        points = [(index * x_step, HEIGHT_PX - 1 - (value or 0.0) * y_scale) for index, value in stretch]
        points.append((points[-1][0] + x_step, points[-1][1]))  # each value covers an interval
        lines.append(" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
    return Line(lines, known[-1], highest)
