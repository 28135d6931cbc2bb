"""The row of a cursor for WHERE CURRENT OF, found by its address in PostgreSQL."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CURSOR_ADDRESS, ROW_ADDRESS, slice_text
from servicebroker.tsql.translation.text_writer import Sql, Writer
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import NVARCHAR

CURRENT_OF_PREFIX = "current of "  # prefix of the parameter that holds the address of a cursor's row
_GROUPING_WORDS = ("GROUP", "UNION", "EXCEPT", "INTERSECT", "HAVING")


def with_row_addresses(query: str) -> str | None:
    """Add a column with row addresses to a cursor's query. Return None if its rows have no address."""
    piece = slice_text(query)
    words = piece.words
    from_ = piece.find("FROM")
    if words[:1] != ["SELECT"] or from_ is None or words[1] in ("DISTINCT", "TOP") or piece.find(*_GROUPING_WORDS):
        return None
    return f"{piece.part(0, from_).text}, {ROW_ADDRESS}() AS tsql_place {piece.part(from_, len(words)).text}"


def _write_row_address(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    (source, *others) = writer.sources[-1]
    if others or not source.table or source.is_catalog or source.table.startswith(("sys.", "tsql.")):
        raise TsqlError(16929, "The cursor is READ ONLY.")
    row = writer.alias(source.alias)
    return Sql(f"concat_ws(' ', {row}.ctid, {row}.xmin, {row}.tableoid::regclass)", NVARCHAR)


def _write_cursor_address(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write the condition that a row is the cursor's. A freed address can be reused, so xmin is compared too."""
    row = writer.alias(writer.sources[-1][0].alias)
    cursor = writer.parameter(f"{CURRENT_OF_PREFIX}{nodes[0].name.lower()}", NVARCHAR)
    is_there = f"{row}.ctid = split_part({cursor}, ' ', 1)::tid"
    return Sql(f"({is_there} and concat_ws(' ', {row}.ctid, {row}.xmin, {row}.tableoid::regclass) = {cursor})::integer")


SPECIAL |= {ROW_ADDRESS: _write_row_address, CURSOR_ADDRESS: _write_cursor_address}
