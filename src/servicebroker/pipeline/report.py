"""Writes the analysis as a single HTML page, without scripts and further files; charts are SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import groupby

from servicebroker.pipeline.analysis import Hour

_WIDTH_PX, _HEIGHT_PX = 860, 220
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 70, 12, 12, 30
_COLOURS = ("#2f6690", "#d98324", "#a23b3b")
_MAX_BAR_WIDTH_PX = 60.0
_MAX_CHART_HOURS = 24 * 14  # the most hours in a chart; older hours are only in the table

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 900px; padding: 0 1rem; color: #1d2430; }}
h1 {{ font-size: 1.5rem; margin-bottom: .2rem; }}
h2 {{ font-size: 1.05rem; margin: 1.8rem 0 .4rem; }}
.tiles {{ display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }}
.tile {{ background: #f2f5f8; border-radius: .4rem; padding: .6rem .9rem; flex: 1 1 7rem; white-space: nowrap; }}
.tile b {{ display: block; font-size: 1.3rem; }}
svg {{ width: 100%; height: auto; }}
svg text {{ font: 12px system-ui, sans-serif; fill: #4a5568; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .5rem; border-bottom: 1px solid #dde3ea; text-align: right; white-space: nowrap; }}
th.name, td.name {{ text-align: left; }}
.wide {{ overflow-x: auto; }}
</style></head><body>
<h1>{title}</h1><p>{subtitle}</p>
{content}
</body></html>
"""


def report(name: str, hours: Sequence[Hour]) -> str:
    """Return the page for a pipeline."""
    title = f"Conversations of {escape(name)}"
    if not hours:
        return _PAGE.format(title=title, subtitle="No message is written yet.", content="")
    first, last = min(hour.hour for hour in hours), max(hour.hour for hour in hours)
    times = _times(first, last)
    messages = _sums(hours, times, lambda hour: hour.messages)
    size = _sums(hours, times, lambda hour: hour.bytes)
    content = [
        _tiles(hours),
        _chart(
            "Messages per hour",
            times,
            [("messages", messages)],
            _count,
            bars=True,
        ),
        _chart(
            "Bytes of bodies per hour",
            times,
            [("bytes", size)],
            _size,
            bars=True,
        ),
        _chart(
            "From arrival in the queue to the table: the slowest group of each hour",
            times,
            [
                ("50 %", _worst(hours, times, lambda hour: hour.p50)),
                ("95 %", _worst(hours, times, lambda hour: hour.p95)),
                ("99 %", _worst(hours, times, lambda hour: hour.p99)),
            ],
            _seconds,
        ),
        _chart(
            "Errors and unreadable messages per hour",
            times,
            [
                ("errors", _sums(hours, times, lambda hour: hour.errors)),
                ("unreadable", _sums(hours, times, lambda hour: hour.unreadable)),
            ],
            _count,
        ),
        _by_contract(hours),
    ]
    subtitle = f"Arrived from {first:%Y-%m-%d %H:%M} to {last + timedelta(hours=1):%Y-%m-%d %H:%M}, UTC."
    return _PAGE.format(title=title, subtitle=subtitle, content="\n".join(content))


def _times(first: datetime, last: datetime) -> list[datetime]:
    count = int((last - first).total_seconds() // 3600) + 1
    return [last - timedelta(hours=back) for back in reversed(range(min(count, _MAX_CHART_HOURS)))]


def _sums(hours: Sequence[Hour], times: Sequence[datetime], value: Callable[[Hour], float]) -> list[float]:
    sums = dict.fromkeys(times, 0.0)
    for hour in hours:
        if hour.hour in sums:
            sums[hour.hour] += value(hour)
    return list(sums.values())


def _worst(hours: Sequence[Hour], times: Sequence[datetime], value: Callable[[Hour], float]) -> list[float | None]:
    """Return the maximum of each hour; None for an hour without messages."""
    worst: dict[datetime, float | None] = dict.fromkeys(times)
    for hour in hours:
        if hour.hour in worst:
            worst[hour.hour] = max(worst[hour.hour] or 0.0, value(hour))
    return list(worst.values())


def _tiles(hours: Sequence[Hour]) -> str:
    messages = sum(hour.messages for hour in hours)
    tiles_of_numbers = [
        ("messages", _count(messages)),
        ("bodies", _size(sum(hour.bytes for hour in hours))),
        ("errors", _share(sum(hour.errors for hour in hours), messages)),
        ("unreadable", _share(sum(hour.unreadable for hour in hours), messages)),
        ("slowest message", _seconds(max(hour.slowest for hour in hours))),
    ]
    tiles = "".join(f'<div class="tile"><b>{value}</b>{name}</div>' for name, value in tiles_of_numbers)
    return f'<div class="tiles">{tiles}</div>'


def _chart(
    title: str,
    times: Sequence[datetime],
    series: Sequence[tuple[str, Sequence[float | None]]],
    show: Callable[[float], str],
    *,
    bars: bool = False,
) -> str:
    """Return a chart with one value per hour for each series. The scale goes from 0 to a rounded maximum."""
    top = _round_up(max(value or 0.0 for _, values in series for value in values))
    plot_width, plot_height = _WIDTH_PX - _LEFT_PX - _RIGHT_PX, _HEIGHT_PX - _TOP_PX - _BOTTOM_PX
    step = plot_width / len(times)

    def point(number: int, value: float) -> tuple[float, float]:
        return round(_LEFT_PX + step * (number + 0.5), 1), round(_TOP_PX + plot_height * (1 - value / top), 1)

    parts = []
    for part in (0.0, 0.5, 1.0):
        y = point(0, top * part)[1]
        parts.append(f'<line x1="{_LEFT_PX}" x2="{_WIDTH_PX - _RIGHT_PX}" y1="{y}" y2="{y}" stroke="#dde3ea"/>')
        parts.append(f'<text x="{_LEFT_PX - 6}" y="{y + 4}" text-anchor="end">{escape(show(top * part))}</text>')
    every = max(1, -(-len(times) // 6))
    for number in range(0, len(times), every):
        x = point(number, 0)[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT_PX - 8}" text-anchor="middle">{times[number]:%m-%d %H:%M}</text>')
    for (name, values), colour in zip(series, _COLOURS, strict=False):
        parts.append(_bars(values, point, step, colour) if bars else _line(values, point, colour))
        parts.append(f"<desc>{escape(name)}: {escape(', '.join(show(value or 0.0) for value in values[-24:]))}</desc>")
    legend = "" if bars else _legend([name for name, _ in series])
    svg = "".join(parts)
    return f'<h2>{escape(title)}</h2>{legend}<svg viewBox="0 0 {_WIDTH_PX} {_HEIGHT_PX}" role="img">{svg}</svg>'


def _round_up(value: float) -> float:
    """Return the next higher number of the form 2, 4, 6, 8 or 10 times a power of ten; 2 for 0."""
    if value <= 0:
        return 2.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (2, 4, 6, 8, 10) if power * step >= value)


def _bars(
    values: Sequence[float | None], point: Callable[[int, float], tuple[float, float]], step: float, colour: str
) -> str:
    rectangles = []
    for number, value in enumerate(values):
        (x, y), (_, bottom) = point(number, value or 0.0), point(number, 0)
        width = min(max(round(step * 0.8, 1), 0.5), _MAX_BAR_WIDTH_PX)
        height = round(bottom - y, 1)
        left = round(x - width / 2, 1)
        rectangles.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>')
    return "".join(rectangles)


def _line(values: Sequence[float | None], point: Callable[[int, float], tuple[float, float]], colour: str) -> str:
    """Return a line with gaps for missing values. A value between two gaps is a dot."""
    parts = []
    for is_gap, run in groupby(enumerate(values), lambda item: item[1] is None):
        points = [] if is_gap else [point(number, value or 0.0) for number, value in run]
        path = " ".join(f"{x},{y}" for x, y in points)
        if len(points) == 1:
            parts.append(f'<circle cx="{points[0][0]}" cy="{points[0][1]}" r="4" fill="{colour}"/>')
        elif points:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    entries = (
        f'<span style="color:{colour}">&#9632;</span> {escape(name)}'
        for name, colour in zip(names, _COLOURS, strict=False)
    )
    return f"<p>{' &nbsp; '.join(entries)}</p>"


def _by_contract(hours: Sequence[Hour]) -> str:
    groups: dict[tuple[str, str, str], list[Hour]] = {}
    for hour in hours:
        groups.setdefault((hour.queue, hour.service_name, hour.service_contract_name), []).append(hour)
    rows = []
    for key, group_hours in sorted(groups.items()):
        messages = sum(hour.messages for hour in group_hours)
        cells = "".join(f'<td class="name">{escape(name)}</td>' for name in key)
        cells_of_numbers = (
            _count(messages),
            _size(sum(hour.bytes for hour in group_hours)),
            _share(sum(hour.errors for hour in group_hours), messages),
            _share(sum(hour.unreadable for hour in group_hours), messages),
            _seconds(max(hour.p95 for hour in group_hours)),
            _seconds(max(hour.slowest for hour in group_hours)),
        )
        rows.append(f"<tr>{cells}{''.join(f'<td>{value}</td>' for value in cells_of_numbers)}</tr>")
    names = "".join(f'<th class="name">{name}</th>' for name in ("queue", "service", "contract"))
    numbers = ("messages", "bodies", "errors", "unreadable", "95 %, worst hour", "slowest")
    head = f"<tr>{names}{''.join(f'<th>{name}</th>' for name in numbers)}</tr>"
    return f'<h2>By service and contract</h2><div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _share(part: int, total: int) -> str:
    return f"{part:,} ({100 * part / total:.2f} %)" if part else "0"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _seconds(value: float) -> str:
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
