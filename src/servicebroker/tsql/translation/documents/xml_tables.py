"""OPENXML: a document that sp_xml_preparedocument keeps, as rows. It is written as nodes() and value() of xml."""

from __future__ import annotations

import re

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.results import columns_of, write_query
from servicebroker.tsql.translation.reading.syntax_tree import OPENXML_MARK, parse_slice, slice_text
from servicebroker.tsql.translation.text_writer import (
    DOCUMENT_PREFIX,
    Source,
    Sql,
    Writer,
    allow_only,
    not_supported,
    quote_identifier,
    quote_string,
)
from servicebroker.tsql.translation.values.casts import read_type
from servicebroker.tsql.types import XML

_DOCUMENT = "@tsql_document"  # the name of the document in the query that is written
_ATTRIBUTE_FLAG, _ELEMENT_FLAG = 1, 2  # bits of the flags: what a column without a pattern reads
_MARKED = re.compile(re.escape(OPENXML_MARK) + r"(\d*):(.*)", re.DOTALL)


def marked_pattern(node: exp.OpenJSON) -> re.Match[str] | None:
    """Return flags and pattern of OPENXML, which parses as OPENJSON with a mark in its path; None for OPENJSON."""
    path = node.args.get("path")
    return _MARKED.fullmatch(path.name) if isinstance(path, exp.Expression) else None


def open_xml(
    writer: Writer, node: exp.OpenJSON, marked: re.Match[str], alias: exp.Expression | None, sources: list[Source]
) -> str:
    """Write OPENXML(@handle, 'pattern', flags) WITH (column type ['pattern'], ...) in FROM.

    Raises:
        TsqlError: 40515 the edge table, meta properties, or other flags; 137 the variable is not declared.
    """
    allow_only(node, "this", "path", "expressions")
    if not node.expressions:
        raise not_supported("OPENXML without WITH", "List the columns: WITH (name type 'path', ...).")
    flags, pattern = int(marked[1] or 0), marked[2]
    if flags > _ATTRIBUTE_FLAG + _ELEMENT_FLAG:
        raise not_supported(f"The flags {flags} of OPENXML", "Use 1, 2 or 3.")
    if writer.is_body():
        raise not_supported("OPENXML in a function", "Use nodes() of a parameter of type xml.")
    columns = ", ".join(_column(item, flags) for item in node.expressions)
    rows = pattern if pattern.startswith("/") else f"/{pattern}"
    text = f"SELECT {columns} FROM {_DOCUMENT}.nodes({quote_string(rows)}) AS tsql_rows(tsql_node)"
    handle = "@" + node.this.name.lower()
    writer.variable(handle)
    outer = writer.assigned
    writer.assigned = outer | {_DOCUMENT: Sql(writer.parameter(DOCUMENT_PREFIX + handle, XML), XML)}
    try:
        query = write_query(writer, parse_slice(slice_text(text)))
    finally:
        writer.assigned = outer
    name = alias.name if alias is not None and alias.name else "openxml"
    sources.append(Source(name.lower(), columns_of(query.outputs)))
    return f"({query.text}) AS {quote_identifier(name)}"


def _column(node: exp.Expression, flags: int) -> str:
    """Return a column of WITH as an item of the select list."""
    if not isinstance(node, exp.OpenJSONColumnDef):
        raise TsqlError(102, "Incorrect syntax in WITH of OPENXML.", severity=15)
    allow_only(node, "this", "kind", "path")
    name, path = node.name, node.args.get("path")
    sql_type = read_type(node.args["kind"])
    if isinstance(path, exp.Expression):
        pattern = path.name
    elif flags == _ATTRIBUTE_FLAG + _ELEMENT_FLAG:
        pattern = f"@{name}, {name}"
    else:
        pattern = name if flags == _ELEMENT_FLAG else f"@{name}"
    if "@mp:" in pattern:
        raise not_supported(f"The meta property {pattern[:60]} of OPENXML", "Number the rows with ROW_NUMBER().")
    escaped = name.replace("]", "]]")
    if sql_type == XML:
        return f"tsql_node.query({quote_string(pattern)}) AS [{escaped}]"
    return f"tsql_node.value({quote_string(f'({pattern})[1]')}, {quote_string(str(sql_type))}) AS [{escaped}]"
