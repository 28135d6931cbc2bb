"""Common table expressions whose rows are changed: WITH x AS (SELECT TOP (1) ... FROM t) DELETE FROM x.

They carry the address of each row of their table beside their columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.selects import CommonTable
from servicebroker.tsql.translation.queries.sources import is_common_table, object_name, resolve_table
from servicebroker.tsql.translation.reading.hints import read_hints
from servicebroker.tsql.translation.text_writer import Writer, not_supported, quote_identifier

ADDRESS_COLUMN = "tsql_row"


class CommonTarget(NamedTuple):
    """What is changed: the table's PostgreSQL name, and its columns by what the expression calls them, in lower case.

    A star among them stands for columns that nobody knows.
    """

    table: str
    columns: dict[str, str]
    definition: CommonTable


def make_common_target(writer: Writer, made: CommonTable) -> CommonTarget:
    """A common table expression as the target of UPDATE and DELETE; its rows are locked where PostgreSQL can.

    Raises:
        TsqlError: 4403 it has aggregates, DISTINCT or GROUP BY; 4405 it joins tables; 40515 for other queries.
    """
    node, shown = made.query, made.name
    if not isinstance(node, exp.Select) or node.args.get("with_") or node.args.get("for_"):
        raise not_supported(f"A change of {shown}, which is not a query of one table", "Change the table itself.")
    if any(node.args.get(part) for part in ("distinct", "group", "having")) or _has_node(node, exp.AggFunc):
        raise TsqlError(
            4403,
            f"Cannot update the view or function '{shown}' because it contains aggregates, or a DISTINCT or GROUP BY "
            "clause, or PIVOT or UNPIVOT operator.",
        )
    source: Any = node.args["from_"].this if node.args.get("from_") else None
    if node.args.get("joins") or (isinstance(source, exp.Table) and source.args.get("joins")):
        raise TsqlError(
            4405,
            f"View or function '{shown}' is not updatable because the modification affects multiple base tables.",
        )
    is_table = isinstance(source, exp.Table) and (
        isinstance(source.this, exp.Parameter) or not isinstance(source.this, exp.Func)
    )
    if not is_table or (not source.db and is_common_table(writer, source.name)):
        raise not_supported(f"A change of {shown}, which does not read a table itself", "Change the table itself.")
    own = object_name(source)
    table = resolve_table(writer, own)
    alias = quote_identifier(source.alias or own.name)
    hints = read_hints(source)
    text = made.text
    if _has_node(node, exp.Window):
        if hints.locks_rows or hints.skips_locked:
            raise not_supported("A hint that locks rows beside OVER (...)", "Leave the hint out.")
    elif not (hints.locks_rows or hints.skips_locked):
        text += f" FOR UPDATE OF {alias}"
    text = f"SELECT {alias}.ctid AS {ADDRESS_COLUMN}, {text.removeprefix('SELECT ')}"
    names = made.names and [ADDRESS_COLUMN, *made.names]
    return CommonTarget(table, _columns(writer, made, table), made._replace(text=text, names=names))


def _has_node(node: exp.Select, kind: type[exp.Window] | type[exp.AggFunc]) -> bool:
    """Whether the list of SELECT has such a part, outside of OVER (...) for aggregates."""
    found = [each for part in node.expressions for each in part.find_all(kind)]
    return any(kind is exp.Window or not isinstance(each.parent, exp.Window) for each in found)


def _columns(writer: Writer, made: CommonTable, table: str) -> dict[str, str]:
    own: dict[str, Column] = writer.table_columns(table) or {}
    said: list[tuple[str, str]] = []
    assert isinstance(made.query, exp.Select)
    for node in made.query.expressions:
        inside = node.this if isinstance(node, exp.Alias) else node
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            said += [(column.name, column.name) for column in own.values()] or [("*", "*")]
        else:
            said.append((node.alias_or_name, inside.name if isinstance(inside, exp.Column) else ""))
    renamed = made.names or [name for name, _ in said]
    return {name.lower(): column for name, (_, column) in zip(renamed, said, strict=False) if column}
