"""Tables and status lines on a terminal, drawn by rich, under the rules of output.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from servicebroker.cli.output import line, say
from servicebroker.model.states import STATE_WORDS
from servicebroker.model.wording import cleaned
from servicebroker.overriding import override

UNBOUNDED_WIDTH = 2000  # columns, for a pipe or a file: names are not folded, so that a program can find them
STYLES = {  # the style of each state, on a terminal without NO_COLOR
    **dict.fromkeys(("ON", "STARTED", "CO", "enabled"), "green"),
    **dict.fromkeys(("SO", "SI", "DI", "STOPPED", "warning"), "yellow"),
    **dict.fromkeys(("OFF", "ER", "disabled", "expired", "trouble"), "bold red"),
    **dict.fromkeys(("DO", "CD", "note"), "dim"),
}


class Terminal(Console):
    """A console without markup, which replaces control characters in everything that it draws."""

    def __init__(self, *, error: bool = False, width: int | None = None) -> None:
        stream = sys.stderr if error else sys.stdout
        if width is None and not stream.isatty() and "COLUMNS" not in os.environ:
            width = UNBOUNDED_WIDTH
        super().__init__(stderr=error, width=width, markup=False, emoji=False, highlight=False)

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable without control characters, but with rich's own control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=cleaned(segment.text, None, keep="\n"))


class Listing(Table):
    """A table whose cells are text, never markup. A cell is one line, or a list of lines.

    `right` has the indexes of the columns that are aligned to the right.
    """

    def __init__(self, *headings: str, right: Collection[int] = (), title: str | None = None, **settings: Any) -> None:
        settings = dict[str, Any](box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left") | settings
        super().__init__(title=None if title is None else Text(line(title)), **settings)
        for index, heading in enumerate(headings):
            self.add_column(Text(line(heading)), justify="right" if index in right else "left", overflow="fold")

    def row(self, *cells: object) -> None:
        """Add a row."""
        self.add_row(*(cell if isinstance(cell, Text) else _cell(cell) for cell in cells))


def state(text: str, kind: str | None = None) -> Text:
    """Return a text in the colour of the state `kind`; by default the text is the state itself."""
    return Text(line(text), style=STYLES.get(kind or text, ""))


def states(counts: Mapping[str, int]) -> Text:
    """Return the number of conversations in each state, in words, each in its colour."""
    return Text(", ").join(state(f"{count:,} {STATE_WORDS[name]}", name) for name, count in counts.items())


def say_state(subject: str, kind: str, rest: str) -> None:
    """Print a line that begins with a subject in the colour of the state `kind`."""
    Terminal().print(state(subject, kind) + Text(line(rest)), soft_wrap=True)


def show_rows(listing: Listing, if_empty: str) -> None:
    """Print a listing, or a sentence if it has no rows."""
    if listing.rows:
        Terminal().print(listing)
    else:
        say(if_empty)


def _cell(cell: object) -> Text:
    return Text("\n".join(map(line, cell if isinstance(cell, list) else [cell])))
