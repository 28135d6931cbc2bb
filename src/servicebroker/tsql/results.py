"""What a script says to whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from servicebroker.tsql.statement_errors import Message, TsqlError


class ResultSet(NamedTuple):
    """The rows of one SELECT or RECEIVE; a column without a name has ""."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class RowCount(NamedTuple):
    """How many rows a statement has changed; not said after SET NOCOUNT ON."""

    rows: int


ScriptOutput: TypeAlias = ResultSet | RowCount | Message | TsqlError
Listener = Callable[[ScriptOutput], None]


@dataclass
class Results:
    """All of it, collected.

    Attributes:
        sets: the result sets in their order.
        messages: PRINT, RAISERROR up to level 10, warnings.
        errors: what was refused and not caught; `execute_tsql` raises the first one.
        row_counts: of the statements that changed rows.
    """

    sets: list[ResultSet] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    errors: list[TsqlError] = field(default_factory=list)
    row_counts: list[int] = field(default_factory=list)

    def add(self, said: ScriptOutput) -> None:
        """Keep what was said."""
        match said:
            case ResultSet():
                self.sets.append(said)
            case TsqlError():
                self.errors.append(said)
            case Message():
                self.messages.append(said)
            case RowCount(rows):
                self.row_counts.append(rows)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the last result set; none when there is no result set."""
        return self.sets[-1].rows if self.sets else []
