"""Common table expressions whose rows are changed: WITH x AS (SELECT TOP (1) ... FROM t) DELETE FROM x.

Such an expression also returns the address of each row of its table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.results import output_name
from servicebroker.tsql.translation.queries.selects import CommonTable
from servicebroker.tsql.translation.queries.sources import is_common_table, object_name, resolve_table
from servicebroker.tsql.translation.reading.hints import read_hints
from servicebroker.tsql.translation.text_writer import Writer, not_supported, quote_identifier

ADDRESS_COLUMN = "tsql_row"


class CommonTarget(NamedTuple):
    """The changed table: its PostgreSQL name, and its columns by their names in the expression, in lower case.

    The key * stands for unknown columns.
    """

    table: str
    columns: dict[str, str]
    definition: CommonTable


def make_common_target(writer: Writer, common_table: CommonTable) -> CommonTarget:
    """Make a common table expression the target of UPDATE or DELETE. Its rows are locked if PostgreSQL allows it.

    Raises:
        TsqlError: 4403 aggregates, DISTINCT or GROUP BY; 4405 joined tables; 40515 other queries.
    """
    node, name = common_table.query, common_table.name
    if not isinstance(node, exp.Select) or node.args.get("with_") or node.args.get("for_"):
        raise not_supported(f"A change of {name}, which is not a query of a single table", "Change the table itself.")
    if any(node.args.get(part) for part in ("distinct", "group", "having")) or _has_node(node, exp.AggFunc):
        raise TsqlError(
            4403,
            f"Cannot update the view or function '{name}' because it contains aggregates, or a DISTINCT or GROUP BY "
            "clause, or PIVOT or UNPIVOT operator.",
        )
    source: Any = node.args["from_"].this if node.args.get("from_") else None
    if node.args.get("joins") or (isinstance(source, exp.Table) and source.args.get("joins")):
        raise TsqlError(
            4405,
            f"View or function '{name}' is not updatable because the modification affects multiple base tables.",
        )
    is_table = isinstance(source, exp.Table) and (
        isinstance(source.this, exp.Parameter) or not isinstance(source.this, exp.Func)
    )
    if not is_table or (not source.db and is_common_table(writer, source.name)):
        raise not_supported(f"A change of {name}, which does not read a table directly", "Change the table itself.")
    qualified_name = object_name(source)
    table = resolve_table(writer, qualified_name)
    alias = quote_identifier(source.alias or qualified_name.name)
    hints = read_hints(source)
    text = common_table.text
    if _has_node(node, exp.Window):
        if hints.locks_rows or hints.skips_locked:
            raise not_supported("A hint that locks rows beside OVER (...)", "Omit the hint.")
    elif not (hints.locks_rows or hints.skips_locked):
        text += f" FOR UPDATE OF {alias}"
    text = f"SELECT {alias}.ctid AS {ADDRESS_COLUMN}, {text.removeprefix('SELECT ')}"
    names = common_table.names and [ADDRESS_COLUMN, *common_table.names]
    return CommonTarget(table, _columns(writer, common_table, table), common_table._replace(text=text, names=names))


def _has_node(node: exp.Select, kind: type[exp.Window] | type[exp.AggFunc]) -> bool:
    """Check whether the select list contains a window function, or an aggregate outside of OVER (...)."""
    nodes = [inner for part in node.expressions for inner in part.find_all(kind)]
    return any(kind is exp.Window or not isinstance(candidate.parent, exp.Window) for candidate in nodes)


def _columns(writer: Writer, common_table: CommonTable, table: str) -> dict[str, str]:
    table_columns: dict[str, Column] = writer.table_columns(table) or {}
    listed: list[tuple[str, str]] = []
    assert isinstance(common_table.query, exp.Select)
    for node in common_table.query.expressions:
        name, inside = output_name(node)
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            listed += [(column.name, column.name) for column in table_columns.values()] or [("*", "*")]
        else:
            column = inside.unnest()
            listed.append((name, column.name if isinstance(column, exp.Column) else ""))
    renamed = common_table.names or [name for name, _ in listed]
    return {name.lower(): column for name, (_, column) in zip(renamed, listed, strict=False) if column}
