"""Options of FOR XML and FOR JSON, and the query whose rows become the document."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.queries.results import Output, write_query
from servicebroker.tsql.translation.text_writer import Writer, not_supported

_DOCUMENT_MODES = frozenset({"RAW", "AUTO", "PATH"})


class UnknownColumns(TsqlError):
    """The translation needs columns that are unknown: a view of PostgreSQL, or a table missing from the cache."""

    def __init__(self, where: str) -> None:
        super().__init__(
            40515,
            f"{where} over a table whose columns are not known is not supported here. Name the columns.",
        )


class DocumentRows(NamedTuple):
    """A query whose rows become the document: its columns, and its text with the columns named c0, c1, ..."""

    outputs: list[Output]
    text: str


def read_options(clause: exp.Expression, allowed: frozenset[str], clause_name: str) -> dict[str, str]:
    """Return the options of the clause by name. The value is the text in parentheses, "" without them.

    Raises:
        TsqlError: 40515 unknown option, 102 no mode, or two modes.
    """
    options: dict[str, str] = {}
    for option_node in clause.expressions:
        option = option_node.this if isinstance(option_node, exp.QueryOption) else option_node
        value = ""
        if isinstance(option, exp.XMLKeyValueOption):
            value = option.expression.name if option.args.get("expression") is not None else ""
            if option.args.get("expression") is not None and not value:
                value = "''"
            option = option.this
        name = option.name.upper()
        if name not in allowed:
            raise not_supported(f"{clause_name} {name}")
        options[name] = value
    if len(_DOCUMENT_MODES & options.keys()) != 1:
        raise syntax_error(clause_name, 0)
    return options


def translate_rows(writer: Writer, node: exp.Expression) -> DocumentRows:
    """Translate the query whose rows become the document.

    Raises:
        UnknownColumns: 40515 a star over unknown columns.
    """
    query = node.copy()
    query.set("for_", None)
    writer.writes_document = True
    translated = write_query(writer, query)
    if translated.outputs is None:
        raise UnknownColumns("A star in a query with FOR XML or FOR JSON")
    names = ", ".join(f"c{number}" for number in range(len(translated.outputs)))
    return DocumentRows(translated.outputs, f"({translated.text}) AS document ({names})")
