"""The built-in functions of T-SQL: for each, its arguments, result type, PostgreSQL expression and description.

The table is `functions.tsv`. The query parser, the translation, result types, `tsql check` and
docs/reference/t-sql-functions.md are derived from it.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import SqlType, parse_type

# the conversion of an argument: "value" only requires a type, "any" converts nothing
_LETTERS = {"string": "s", "number": "n", "integer": "i", "date": "d", "bytes": "b", "value": "x", "any": "a"}
_UNLIMITED_ARGUMENTS = 1000  # maximum of a function without a limit
FIRST = "first"  # marks a result with the type of the first argument


class Function(NamedTuple):
    """One overload of a function.

    Attributes:
        text: the PostgreSQL expression, with {0}, {1}, ... and {all} for the arguments; or one of four markers:
            `session` (a session value), `code` (a Python function in `SPECIAL` of `translation/values/functions.py`),
            `syntax` (a construct of the grammar), `refused`.
        description: for a refused function, the replacement.
    """

    name: str
    arguments: str
    returns: str
    text: str
    description: str
    group: str

    @property
    def letters(self) -> str:
        """The conversion of each argument of a plain function, as one of `_LETTERS`.

        If the number of arguments is unlimited, the last letter is that of all further arguments.
        """
        return "".join(_LETTERS[argument.strip(" [].")] for argument in self.arguments.split(",") if argument)

    @property
    def min_arguments(self) -> int:
        """The minimum number of arguments."""
        return sum(not argument.strip().startswith("[") for argument in self.arguments.split(",") if argument)

    @property
    def max_arguments(self) -> int:
        """The maximum number of arguments."""
        return (
            _UNLIMITED_ARGUMENTS
            if self.arguments.endswith("...")
            else len([argument for argument in self.arguments.split(",") if argument])
        )

    @property
    def type(self) -> SqlType | None:
        """The type of the result, or None if it depends on an argument."""
        return _parse_result_type(self.returns)


# results whose type depends on arguments or on the code that writes the function
_DEPENDENT_TYPES = frozenset(
    {"", FIRST, "second", "third", "alike", "as named", "as its order", "as SQL Server's", "table", "condition"}
    | {"int or bigint", "datetimeoffset(n)"}
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
            name, arguments, returns, postgres_text, description = line.split("\t")
            rows.append(Function(name, arguments, returns, postgres_text, description, group))
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
UNSUPPORTED = _rows_by_name("refused")
CODE = _rows_by_name("code")
# global variables such as @@ROWCOUNT
GLOBALS = frozenset(row.name.lower() for row in ROWS if row.name.startswith("@@"))
# words that are function calls if a parenthesis follows
CALLS = frozenset(row.name for row in ROWS if row.text != "syntax" and not row.name.startswith("@@"))


def session_function_type(name: str) -> SqlType:
    """Return the type of a value of the session."""
    sql_type = SESSION[name].type
    assert sql_type is not None
    return sql_type


def find_overload(name: str, count: int) -> Function | None:
    """Return the row for a plain call with `count` arguments, or None if `name` is not a plain function.

    Raises:
        TsqlError: 174 or 189 the number of arguments is wrong.
    """
    rows = PLAIN.get(name, ())
    for row in rows:
        if row.min_arguments <= count <= row.max_arguments:
            return row
    if rows or name in SESSION:
        limits = [(row.min_arguments, row.max_arguments) for row in rows]
        if name in SESSION:
            limits.append((0, 0))
        raise argument_count_error(name, min(low for low, _ in limits), max(high for _, high in limits))
    return None


def argument_count_error(name: str, min_arguments: int, max_arguments: int) -> TsqlError:
    """Build error 174 or 189: the number of arguments is wrong."""
    if min_arguments == max_arguments:
        return TsqlError(174, f"The {name} function requires {min_arguments} argument(s).", severity=15)
    return TsqlError(189, f"The {name} function requires {min_arguments} to {max_arguments} arguments.", severity=15)
