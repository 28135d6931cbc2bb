"""The built-in functions of T-SQL: what each takes, the type of its result, how PostgreSQL does it, what it is for.

`functions.tsv` is the table. The reader of queries, their translation, the types of results, `tsql check` and
docs/reference/t-sql-functions.md all come from it.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import SqlType, parse_type

# what an argument is made into: a string, a number, an integer, a date, bytes, a value that has a type, or nothing else
_LETTERS = {"string": "s", "number": "n", "integer": "i", "date": "d", "bytes": "b", "value": "x", "any": "a"}
_UNLIMITED_ARGUMENTS = 1000
FIRST = "first"  # the result has the type of the first argument


class Function(NamedTuple):
    """One way to call a function.

    `text` is PostgreSQL's with {0}, {1}, ... and {all} for the arguments, or says who knows better: `session` (its
    state), `code` (a function registered in `SPECIAL`), `syntax` (a construct of the grammar), `refused`; then `description`
    is what to write instead. `letters` has one of `_LETTERS` for each argument, the last one again and again when
    `max_arguments` is endless.
    """

    name: str
    arguments: str
    returns: str
    text: str
    description: str
    group: str

    @property
    def letters(self) -> str:
        """What each argument is made into; of plain functions."""
        return "".join(_LETTERS[each.strip(" [].")] for each in self.arguments.split(",") if each)

    @property
    def min_arguments(self) -> int:
        """How many arguments there must be."""
        return sum(not each.strip().startswith("[") for each in self.arguments.split(",") if each)

    @property
    def max_arguments(self) -> int:
        """How many arguments there may be."""
        return (
            _UNLIMITED_ARGUMENTS
            if self.arguments.endswith("...")
            else len([each for each in self.arguments.split(",") if each])
        )

    @property
    def type(self) -> SqlType | None:
        """The type of the result; None where it is that of an argument, or depends on more."""
        return _parse_result_type(self.returns)


_DEPENDENT_TYPES = frozenset(
    {"", FIRST, "second", "third", "alike", "as named", "as its order", "as SQL Server's", "table", "condition"}
)


@functools.lru_cache(maxsize=256)
def _parse_result_type(returns: str) -> SqlType | None:
    return None if returns in _DEPENDENT_TYPES else parse_type(returns)


def _read_rows() -> tuple[Function, ...]:
    text = (resources.files(__package__) / "functions.tsv").read_text()
    group, rows = "", list[Function]()
    for line in text.splitlines():
        if line.startswith("# "):
            group = line.removeprefix("# ")
        else:
            name, arguments, returns, done, says = line.split("\t")
            rows.append(Function(name, arguments, returns, done, says, group))
    return tuple(rows)


ROWS = _read_rows()


def _rows_by_name(*texts: str) -> dict[str, Function]:
    return {row.name.lower(): row for row in ROWS if row.text in texts}


_MARKERS = ("session", "code", "syntax", "refused")
PLAIN: dict[str, tuple[Function, ...]] = {}
for _row in ROWS:
    if _row.text not in _MARKERS:
        PLAIN[_row.name.lower()] = (*PLAIN.get(_row.name.lower(), ()), _row)
SESSION = _rows_by_name("session")
REFUSED = _rows_by_name("refused")
CODE = _rows_by_name("code")
# what begins with @@ and is no variable
GLOBALS = frozenset(row.name.lower() for row in ROWS if row.name.startswith("@@"))
# words that are calls when a parenthesis follows, whatever else they may mean
CALLS = frozenset(row.name for row in ROWS if row.text != "syntax" and not row.name.startswith("@@"))


def session_function_type(name: str) -> SqlType:
    """The type of what the session knows by this name."""
    found = SESSION[name].type
    assert found is not None
    return found


def find_overload(name: str, given: int) -> Function | None:
    """The row for a plain call with so many arguments; None for a name that is no plain function.

    Raises:
        TsqlError: 174 or 189 for another number of arguments.
    """
    rows = PLAIN.get(name, ())
    for row in rows:
        if row.min_arguments <= given <= row.max_arguments:
            return row
    if rows or name in SESSION:
        counts = [(row.min_arguments, row.max_arguments) for row in rows] + ([(0, 0)] if name in SESSION else [])
        least, most = min(least for least, _ in counts), max(most for _, most in counts)
        raise argument_count_error(name, least, most)
    return None


def argument_count_error(name: str, least: int, most: int) -> TsqlError:
    """174 or 189."""
    if least == most:
        return TsqlError(174, f"The {name} function requires {least} argument(s).", severity=15)
    return TsqlError(189, f"The {name} function requires {least} to {most} arguments.", severity=15)
