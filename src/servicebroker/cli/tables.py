"""Tables and live lines on a terminal, drawn by rich, under the rules of output.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from servicebroker.cli.output import line
from servicebroker.model.wording import cleaned


class Terminal(Console):
    """A console that takes no markup, and replaces what steers a terminal in everything that it draws."""

    def __init__(self, *, error: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=error, width=width, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, cleaned; rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=cleaned(segment.text, None, keep="\n"))


class Listing(Table):
    """A table whose cells are text, never markup. A cell has one line, or one for each item of a list.

    `right` has the places of the columns that are aligned to the right.
    """

    def __init__(self, *headings: str, right: Collection[int] = (), title: str | None = None, **settings: Any) -> None:
        settings = dict[str, Any](box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left") | settings
        super().__init__(title=None if title is None else Text(line(title)), **settings)
        for place, heading in enumerate(headings):
            self.add_column(Text(line(heading)), justify="right" if place in right else "left", overflow="fold")

    def row(self, *cells: object) -> None:
        """Add a row."""
        self.add_row(*(Text("\n".join(map(line, cell if isinstance(cell, list) else [cell]))) for cell in cells))
