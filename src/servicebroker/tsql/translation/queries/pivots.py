"""PIVOT and UNPIVOT after a source in FROM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.text_writer import (
    Source,
    Writer,
    not_supported,
    quote_identifier,
    quote_string,
    timestamp_text,
    typed_text,
    write_value,
)
from servicebroker.tsql.types import NVARCHAR, SqlType

_SYSNAME = SqlType("nvarchar", 128)


class _PivotInput(NamedTuple):
    """The pivoted sources: their SQL, and their columns by name in lower case."""

    text: str
    sources: list[Source]
    columns: dict[str, tuple[Source, Column]]


def write_pivot(writer: Writer, node: exp.Pivot, text: str, sources: list[Source]) -> tuple[str, Source]:
    """Write a source with PIVOT or UNPIVOT. Return its SQL, and the source that the query sees.

    Raises:
        TsqlError: 207 unknown column, 265 a new column has the name of a remaining one, 8156 a column is named twice,
            8114 a value of IN does not convert to the column's type, 8167 the columns of UNPIVOT differ in type, 208
            unknown table.
        UnknownColumns: 40515 the columns of the source are unknown.
    """
    operator = "UNPIVOT" if node.args.get("unpivot") else "PIVOT"
    alias = node.args.get("alias")
    if alias is None or not alias.name or node.args.get("include_nulls") is not None:
        raise syntax_error(operator, 0)
    if alias.args.get("columns"):
        raise not_supported(f"Names of columns after {operator}", "Name them in the select list.")
    pivot_input = _PivotInput(text, sources, _columns(writer, operator, sources))
    new_names = _read_names(node, alias.name)
    with writer.query(sources):
        pivot_sql, columns = (_unpivot if operator == "UNPIVOT" else _pivot)(writer, node, pivot_input, new_names)
    column_map = {column.name.lower(): column for column in columns if column is not None}
    return f"{pivot_sql} AS {quote_identifier(alias.name)}", Source(
        alias.name.lower(), column_map if None not in columns else None
    )


def _columns(writer: Writer, operator: str, sources: list[Source]) -> dict[str, tuple[Source, Column]]:
    columns: dict[str, tuple[Source, Column]] = {}
    for source in sources:
        if source.columns is None or source.is_catalog:
            if source.table in writer.table_uses and writer.scope.user_functions is not None:
                raise TsqlError(208, f"Invalid object name '{writer.table_uses[source.table].name}'.")
            raise UnknownColumns(operator)
        for name, column in source.columns.items():
            if name in columns:
                raise _duplicate_column(column.name, source.alias)
            columns[name] = source, column
    return columns


def _read_names(node: exp.Pivot, alias: str) -> list[str]:
    """Return the names listed in IN."""
    if len(node.args.get("fields") or []) != 1 or len(node.expressions) != 1:
        raise syntax_error(",", 0)
    names = [_column_name(item) for item in node.args["fields"][0].expressions]
    for index, name in enumerate(names):
        if name.lower() in [other.lower() for other in names[:index]]:
            raise _duplicate_column(name, alias)
    return names


def _column_name(node: exp.Expression | None) -> str:
    """Return the name of a column without a table prefix."""
    if isinstance(node, exp.Identifier) or (isinstance(node, exp.Column) and not node.table):
        return str(node.name)
    raise syntax_error("" if node is None else node.sql("tsql")[:40], 0)


def _duplicate_column(name: str, table: str) -> TsqlError:
    return TsqlError(8156, f"The column '{name}' was specified multiple times for '{table}'.")


def _find_column(pivot_input: _PivotInput, name: str) -> tuple[Source, Column]:
    source_column = pivot_input.columns.get(name.lower())
    if source_column is None:
        raise TsqlError(207, f"Invalid column name '{name}'.")
    return source_column


def _remaining_columns(
    pivot_input: _PivotInput, leaving: Iterable[str], new: Iterable[str], operator: str
) -> list[tuple[Source, Column]]:
    """Return the columns that remain unchanged."""
    removed = {name.lower() for name in leaving}
    staying = {name: column for name, column in pivot_input.columns.items() if name not in removed}
    for name in new:
        if name.lower() in staying:
            raise TsqlError(
                265, f'The column name "{name}" specified in the {operator} operator conflicts with the existing column '
                f"name in the {operator} argument."
            )  # fmt: skip
    return list(staying.values())


def _column_text(writer: Writer, source: Source, column: Column) -> str:
    return timestamp_text(f"{writer.alias(source.alias)}.{quote_identifier(column.name)}", column)


def _result_column(column: Column) -> Column:
    return Column(column.name, column.type, is_nullable=column.is_nullable)


def _pivot(
    writer: Writer, node: exp.Pivot, pivot_input: _PivotInput, new_names: list[str]
) -> tuple[str, list[Column | None]]:
    """Write PIVOT. Each value of IN aggregates its rows. The columns not mentioned form the groups."""
    call = node.expressions[0]
    operands = [item for item in (call.this, *call.expressions) if isinstance(item, exp.Expression)]
    is_call = isinstance(call, exp.AggFunc | exp.Anonymous)
    if not is_call or len(operands) != 1:
        raise syntax_error(call.sql("tsql")[:40], 0)
    value, by = _column_name(operands[0]), _column_name(node.args["fields"][0].this)
    _find_column(pivot_input, value)
    sql_type = _find_column(pivot_input, by)[1].type
    staying = _remaining_columns(pivot_input, (value, by), new_names, "PIVOT")
    groups = [_column_text(writer, *source_column) for source_column in staying]
    parts = [f"{text} AS {quote_identifier(column.name)}" for text, (_, column) in zip(groups, staying, strict=True)]
    columns: list[Column | None] = [_result_column(column) for _, column in staying]
    for name in new_names:
        _check_value(name, sql_type)
        aggregate_call = call.copy()
        operand = (
            aggregate_call.this if isinstance(aggregate_call.this, exp.Expression) else aggregate_call.expressions[0]
        )
        operand.replace(
            exp.Case(ifs=[exp.If(this=exp.EQ(this=exp.column(by, quoted=True), expression=exp.Literal.string(name)),
                                 true=exp.column(value, quoted=True))])
        )  # fmt: skip
        aggregate = write_value(writer, aggregate_call)
        parts.append(f"{typed_text(aggregate)} AS {quote_identifier(name)}")
        columns.append(None if aggregate.type is None else Column(name, aggregate.type))
    grouping = f" GROUP BY {', '.join(groups)}" if groups else ""
    return f"(SELECT {', '.join(parts)} FROM {pivot_input.text}{grouping})", columns


def _check_value(name: str, sql_type: SqlType) -> None:
    try:
        convert(name, NVARCHAR, sql_type)
    except TsqlError:
        raise TsqlError(
            8114, f'Error converting data type nvarchar to {sql_type}: the incorrect value "{name}" is supplied in the PIVOT '
            "operator.", state=5,
        ) from None  # fmt: skip


def _unpivot(
    writer: Writer, node: exp.Pivot, pivot_input: _PivotInput, source_names: list[str]
) -> tuple[str, list[Column | None]]:
    """Write UNPIVOT. Each column of IN becomes a row with its name and value, unless the value is NULL."""
    value, name = _column_name(node.expressions[0]), _column_name(node.args["fields"][0].this)
    unpivoted = [_find_column(pivot_input, column_name) for column_name in source_names]
    sql_type = unpivoted[0][1].type
    for _, column in unpivoted:
        if column.type != sql_type:
            raise TsqlError(
                8167, f'The type of column "{column.name}" conflicts with the type of other columns specified in the '
                "UNPIVOT list."
            )  # fmt: skip
    if value.lower() == name.lower():
        raise _duplicate_column(name, "UNPIVOT")
    staying = _remaining_columns(pivot_input, source_names, (value, name), "UNPIVOT")
    parts = [
        f"{_column_text(writer, *source_column)} AS {quote_identifier(source_column[1].name)}"
        for source_column in staying
    ]
    parts += [f"tsql_unpivoted.{quote_identifier(column_name)}" for column_name in (value, name)]
    rows = ", ".join(
        f"({_column_text(writer, *source_column)}, {quote_string(source_column[1].name)}::text)"
        for source_column in unpivoted
    )
    lateral = f"(VALUES {rows}) AS tsql_unpivoted ({quote_identifier(value)}, {quote_identifier(name)})"
    text = (
        f"(SELECT {', '.join(parts)} FROM {pivot_input.text} CROSS JOIN LATERAL {lateral} "
        f"WHERE tsql_unpivoted.{quote_identifier(value)} IS NOT NULL)"
    )
    return text, [*(_result_column(column) for _, column in staying), Column(value, sql_type), Column(name, _SYSNAME)]
