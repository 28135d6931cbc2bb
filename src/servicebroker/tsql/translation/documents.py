"""What FOR XML and FOR JSON share: their options, and the rows of the query under them."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.translation.selects import Output, query
from servicebroker.tsql.translation.writer import Writer, refused


class Rows(NamedTuple):
    """The query: its columns, and its text with these named c0, c1, ..."""

    outputs: list[Output]
    text: str


def options_of(clause: exp.Expression, known: frozenset[str], what: str) -> dict[str, str]:
    """The options of the clause by their names; the value in parentheses, "" where there is none.

    Raises:
        TsqlError: 40515 for one that is not known.
    """
    given: dict[str, str] = {}
    for each in clause.expressions:
        said = each.this if isinstance(each, exp.QueryOption) else each
        value = ""
        if isinstance(said, exp.XMLKeyValueOption):
            value = said.expression.name if said.args.get("expression") is not None else ""
            if said.args.get("expression") is not None and not value:
                value = "''"
            said = said.this
        name = said.name.upper()
        if name not in known:
            raise refused(f"{what} {name}")
        given[name] = value
    return given


def rows_of(writer: Writer, node: exp.Expression) -> Rows:
    """The rows that become the document.

    Raises:
        TsqlError: 40515 where a star hides the columns.
    """
    plain = node.copy()
    plain.set("for_", None)
    done = query(writer, plain, outermost=False)
    if done.outputs is None:
        raise refused("A star under FOR XML or FOR JSON over a table whose columns are not known", "Name the columns.")
    names = ", ".join(f"c{number}" for number in range(len(done.outputs)))
    return Rows(done.outputs, f"({done.text}) AS document ({names})")
