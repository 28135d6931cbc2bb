"""What FOR XML and FOR JSON share: their options, and the rows of the query under them."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.queries.results import Output, write_query
from servicebroker.tsql.translation.text_writer import Writer, not_supported

_DOCUMENT_MODES = frozenset({"RAW", "AUTO", "PATH"})


class UnknownColumns(TsqlError):
    """Columns matter that are not known: those of PostgreSQL's own views, or of tables nobody has looked up."""

    def __init__(self, where: str) -> None:
        super().__init__(
            40515,
            f"{where} over a table whose columns are not known is not supported here. Name the columns.",
        )


class DocumentRows(NamedTuple):
    """The query: its columns, and its text with these named c0, c1, ..."""

    outputs: list[Output]
    text: str


def read_options(clause: exp.Expression, known: frozenset[str], what: str) -> dict[str, str]:
    """The options of the clause by their names; the value in parentheses, "" where there is none.

    Raises:
        TsqlError: 40515 for one that is not known, 102 without a mode, or with two.
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
            raise not_supported(f"{what} {name}")
        given[name] = value
    if len(_DOCUMENT_MODES & given.keys()) != 1:
        raise syntax_error(what, 0)
    return given


def translate_rows(writer: Writer, node: exp.Expression) -> DocumentRows:
    """The rows that become the document.

    Raises:
        UnknownColumns: 40515 where a star hides the columns.
    """
    plain = node.copy()
    plain.set("for_", None)
    done = write_query(writer, plain)
    if done.outputs is None:
        raise UnknownColumns("A star in a query with FOR XML or FOR JSON")
    names = ", ".join(f"c{number}" for number in range(len(done.outputs)))
    return DocumentRows(done.outputs, f"({done.text}) AS document ({names})")
