"""Writes docs/reference/t-sql-functions.md from src/servicebroker/tsql/functions.tsv: python tools/make_functions.py"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from servicebroker.tsql.function_table import FIRST, ROWS, Function

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "t-sql-functions.md"
_INTRODUCTION = """# Functions in T-SQL

The built-in functions that T-SQL expressions can call. `python tools/make_functions.py` writes this page from
`tsql/functions.tsv`, which the parser, the translation and the result types use too.

An unknown name raises error 195. A wrong number of arguments raises 174 or 189, and an argument of a type that the
function does not accept raises 8116. Functions of SQL Server that are not supported are listed at the end of each
section, with the replacement. A call of them raises error 40515; `tsql check` and CREATE PROCEDURE report it, too.

Optional arguments are in brackets. *As the first* means the type of the first argument.
"""
_SYNTAX = {"CASE": "CASE WHEN ... THEN ... [ELSE ...] END"}  # calls that are not NAME(arguments)
_RETURNS = {
    FIRST: "as the first",
    "second": "as the second",
    "third": "as the third",
    "alike": "the type of highest precedence",
    "as named": "the named type",
    "as its order": "the type in ORDER BY",
    "as SQL Server's": "the type as in SQL Server",
}


def page() -> str:
    """The whole page."""
    return _INTRODUCTION + "".join(_part(group, list(rows)) for group, rows in groupby(ROWS, lambda row: row.group))


def _part(group: str, rows: list[Function]) -> str:
    here = [_line(row) for row in rows if row.text != "refused"]
    text = f"\n## {group}\n\n| function | result | |\n|---|---|---|\n" + "".join(here)
    refused = groupby((row for row in rows if row.text == "refused"), lambda row: row.description)
    said = [f"- {', '.join(f'`{row.name}`' for row in several)}: {instead}\n" for instead, several in refused]
    return text + ("\nNot supported:\n\n" + "".join(said) if said else "")


def _line(row: Function) -> str:
    is_word = row.name.startswith("@@") or "without parentheses" in row.description
    arguments = row.arguments.replace("any", "value")
    call = _SYNTAX.get(row.name, row.name if is_word else f"{row.name}({arguments})")
    return f"| `{call}` | {_RETURNS.get(row.returns, row.returns)} | {row.description} |\n".replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page())
