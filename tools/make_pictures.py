"""Draws the pictures of the documentation: `docs/pictures/name.svg` from `name.txt` beside it.

    python tools/make_pictures.py           writes what has changed
    python tools/make_pictures.py --check   fails when something is out of date

A text says who takes part, and what happens from top to bottom:

    title What it shows
    actor web Your program            a column; `web` is how the lines below name it
    web -> db: SEND                   an arrow; `-->` is dashed
    note db: state CO                 a word beside a column
    begin web: one transaction        a bar on the column, until `end web`
    end web
    gap                               some time passes
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
COLUMN_PX, ROW_PX, TOP_PX, MARGIN_PX = 180, 38, 84, 12  # pixels
BAR_PX = 10
INK, SOFT, PAPER, ACCENT, TINT = "#1f2933", "#7b8794", "#ffffff", "#3949ab", "#c5cae9"

_ARROW = re.compile(r"(\w+) (-->|->) (\w+): (.+)")
_WORD = re.compile(r"(note|begin) (\w+): (.+)")


class Arrow(NamedTuple):
    """Something goes from one column to another."""

    y: int
    start: str
    end: str
    dashed: bool
    text: str


class Note(NamedTuple):
    """Words beside a column."""

    y: int
    actor: str
    text: str


class Bar(NamedTuple):
    """Something lasts."""

    actor: str
    start: int
    end: int


@dataclass
class Picture:
    """The content of a text, with the heights at which it is drawn."""

    title: str = ""
    actors: dict[str, str] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    height: int = TOP_PX

    def x(self, actor: str) -> int:
        """The middle of a column."""
        return MARGIN_PX + COLUMN_PX // 2 + COLUMN_PX * list(self.actors).index(actor)


def read(text: str) -> Picture:
    """The picture that a text describes.

    Raises:
        ValueError: a line says nothing that can be drawn.
    """
    picture, begun = Picture(), dict[str, int]()
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word or word == "#":
            continue
        if word == "title":
            picture.title = rest
        elif word == "actor":
            name, _, shown = rest.partition(" ")
            picture.actors[name] = shown
        elif word == "gap":
            picture.height += ROW_PX // 2
        elif word == "end":
            picture.bars.append(Bar(rest, begun.pop(rest), picture.height - ROW_PX // 2))
        elif said := _WORD.fullmatch(line.strip()):
            picture.notes.append(Note(picture.height, said[2], said[3]))
            if said[1] == "begin":
                begun[said[2]] = picture.height - ROW_PX // 2
            picture.height += ROW_PX
        elif arrow := _ARROW.fullmatch(line.strip()):
            picture.arrows.append(Arrow(picture.height, arrow[1], arrow[3], arrow[2] == "-->", arrow[4]))
            picture.height += ROW_PX
        else:
            raise ValueError(f"Nothing can be drawn of {line!r}.")
    if begun:
        raise ValueError(f"What has begun at {', '.join(begun)} never ends.")
    return picture


def drawn(picture: Picture) -> str:
    """The picture in SVG."""
    width, height = 2 * MARGIN_PX + COLUMN_PX * len(picture.actors), picture.height + MARGIN_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="14">',
        f"<title>{escape(picture.title)}</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]
    for actor, shown in picture.actors.items():
        x = picture.x(actor)
        parts.append(
            f'<line x1="{x}" y1="52" x2="{x}" y2="{height - MARGIN_PX}" stroke="{SOFT}" stroke-dasharray="2 4"/>'
        )
        parts.append(
            f'<rect x="{x - COLUMN_PX // 2 + 8}" y="{MARGIN_PX}" width="{COLUMN_PX - 16}" height="40" '
            f'rx="6" fill="{ACCENT}"/>'
        )
        parts.append(f'<text x="{x}" y="37" text-anchor="middle" fill="{PAPER}">{escape(shown)}</text>')
    for bar in picture.bars:
        parts.append(
            f'<rect x="{picture.x(bar.actor) - BAR_PX // 2}" y="{bar.start}" width="{BAR_PX}" '
            f'height="{bar.end - bar.start}" rx="3" fill="{TINT}" stroke="{ACCENT}"/>'
        )
    for arrow in picture.arrows:
        start, end = picture.x(arrow.start), picture.x(arrow.end)
        edge = BAR_PX // 2 + 1 if start < end else -BAR_PX // 2 - 1
        dashes = ' stroke-dasharray="6 4"' if arrow.dashed else ""
        parts.append(
            f'<line x1="{start + edge}" y1="{arrow.y}" x2="{end - edge}" y2="{arrow.y}" stroke="{INK}"{dashes} '
            'marker-end="url(#head)"/>'
        )
        parts.append(_text((start + end) // 2, arrow.y - 6, arrow.text, INK, "middle"))
    last = list(picture.actors)[-1]
    for note in picture.notes:
        side = -1 if note.actor == last else 1
        x = picture.x(note.actor) + side * (BAR_PX // 2 + 6)
        parts.append(_text(x, note.y, note.text, ACCENT, "end" if side < 0 else "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, colour: str, anchor: str) -> str:
    """Words with paper behind them, so that lines do not run through."""
    behind = f'stroke="{PAPER}" stroke-width="4" paint-order="stroke"'
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" {behind}>{escape(text)}</text>'


def made() -> dict[Path, str]:
    """Each picture, and its file."""
    return {path.with_suffix(".svg"): drawn(read(path.read_text())) for path in sorted(FOLDER.glob("*.txt"))}


def main(arguments: list[str]) -> int:
    """Write the files, or with --check only look; 1 when they were to be written."""
    only_look = "--check" in arguments
    stale = {path: text for path, text in made().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print("out of date:" if only_look else "written:", path.name)
        if not only_look:
            path.write_text(text)
    return 1 if only_look and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
