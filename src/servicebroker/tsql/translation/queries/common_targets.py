"""Common table expressions whose rows are changed: WITH x AS (SELECT TOP (1) ... FROM t) DELETE FROM x.

Such an expression also returns the address of each row of its table.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def make_common_target(writer: Writer, common_table: CommonTable, assigned: Sequence[str] | None) -> CommonTarget:
    """Make a common table expression the target of UPDATE or DELETE. Its rows are locked if PostgreSQL allows it.

    `assigned` are the columns that UPDATE sets, None for DELETE. Of joined tables, UPDATE changes the one that has all of
    them.

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
    joins = node.args.get("joins") or []
    qualifier = ""
    if joins or (isinstance(source, exp.Table) and source.args.get("joins")):
        qualifier = _assigned_qualifier(common_table, assigned or [])
        found = [one for one in (source, *(join.this for join in joins)) if one.alias_or_name.lower() == qualifier]
        if not qualifier or not found or source.args.get("joins"):
            raise TsqlError(
                4405,
                f"View or function '{name}' is not updatable because the modification affects multiple base tables.",
            )
        source = found[0]
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
    elif not (hints.locks_rows or hints.skips_locked or any(join.side for join in joins)):
        text += f" FOR UPDATE OF {alias}"
    text = f"SELECT {alias}.ctid AS {ADDRESS_COLUMN}, {text.removeprefix('SELECT ')}"
    names = common_table.names and [ADDRESS_COLUMN, *common_table.names]
    columns = _columns(writer, common_table, table, qualifier)
    return CommonTarget(table, columns, common_table._replace(text=text, names=names))


def _assigned_qualifier(common_table: CommonTable, assigned: Sequence[str]) -> str:
    """Return the table or alias that qualifies the assigned columns in the select list, in lower case.

    The result is "" if they have more than one, or none.
    """
    wanted = {name.lower() for name in assigned}
    nodes = common_table.query.expressions
    names = common_table.names or [output_name(node)[0] for node in nodes]
    qualifiers = {
        inside.table.lower() if isinstance(inside, exp.Column) else ""
        for name, inside in zip(names, (output_name(node)[1].unnest() for node in nodes), strict=False)
        if name.lower() in wanted
    }
    return qualifiers.pop() if len(qualifiers) == 1 else ""


def _has_node(node: exp.Select, kind: type[exp.Window] | type[exp.AggFunc]) -> bool:
    """Check whether the select list contains a window function, or an aggregate outside of OVER (...)."""
    nodes = [inner for part in node.expressions for inner in part.find_all(kind)]
    return any(kind is exp.Window or not isinstance(candidate.parent, exp.Window) for candidate in nodes)


def _columns(writer: Writer, common_table: CommonTable, table: str, qualifier: str) -> dict[str, str]:
    """Return the columns of the table by their names in the expression. With `qualifier`, only those that have it."""
    table_columns: dict[str, Column] = writer.table_columns(table) or {}
    listed: list[tuple[str, str]] = []
    assert isinstance(common_table.query, exp.Select)
    for node in common_table.query.expressions:
        name, inside = output_name(node)
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            listed += [(column.name, column.name) for column in table_columns.values()] or [("*", "*")]
        else:
            column = inside.unnest()
            is_own = isinstance(column, exp.Column) and qualifier in ("", column.table.lower())
            listed.append((name, column.name if is_own else ""))
    renamed = common_table.names or [name for name, _ in listed]
    return {name.lower(): column for name, (_, column) in zip(renamed, listed, strict=False) if column}
