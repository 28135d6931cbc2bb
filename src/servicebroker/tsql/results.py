"""Output of a script: result sets, row counts, messages and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.types import SqlType


@dataclass(frozen=True, slots=True)
class ResultSet:
    """The rows of one SELECT or RECEIVE.

    Attributes:
        columns: the names of the columns, "" for a column without a name.
        rows: the rows.
        types: the types of the columns, None for an unknown type; None if all are unknown.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    types: tuple[SqlType | None, ...] | None = field(default=None, compare=False)


class RowCount(NamedTuple):
    """The number of rows that a statement changed. SET NOCOUNT ON suppresses it."""

    rows: int


ScriptOutput: TypeAlias = ResultSet | RowCount | Message | TsqlError
Listener = Callable[[ScriptOutput], None]


@dataclass
class Results:
    """The collected output of a script.

    Attributes:
        sets: the result sets in order.
        messages: PRINT, RAISERROR up to level 10, warnings.
        errors: errors that no CATCH block handled; `execute_tsql` raises the first one.
        row_counts: one count for each statement that changed rows.
    """

    sets: list[ResultSet] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    errors: list[TsqlError] = field(default_factory=list)
    row_counts: list[int] = field(default_factory=list)

    def add(self, item: ScriptOutput) -> None:
        """Store one piece of output."""
        match item:
            case ResultSet():
                self.sets.append(item)
            case TsqlError():
                self.errors.append(item)
            case Message():
                self.messages.append(item)
            case RowCount(rows):
                self.row_counts.append(rows)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the last result set, empty if there is none."""
        return self.sets[-1].rows if self.sets else []
