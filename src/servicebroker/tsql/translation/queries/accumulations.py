"""SELECT @a = @a + column FROM ...: a variable that accumulates over rows.

The rows are numbered in the order of ORDER BY, and a recursive query visits them one by one.
"""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.translation.queries.aggregates import UNORDERED
from servicebroker.tsql.translation.queries.selects import translate_query
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.text_writer import Source, Sql, Writer, not_supported, write_value
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.translation.values.date_functions import is_date_part
from servicebroker.tsql.types import STRINGS, SqlType

_ROWS, _VALUES = "tsql_rows", "tsql_kept"


def translate_accumulation(writer: Writer, node: exp.Select, targets: list[str]) -> Translation:
    """Translate the SELECT to a query that returns the variables after the last row.

    Raises:
        TsqlError: 40515 the values contain aggregates or subqueries.
    """
    values = [item.expression for item in node.expressions]
    if any(value.find(exp.AggFunc, exp.Query, exp.Window, exp.Dot) is not None for value in values):
        raise not_supported(f"SELECT {targets[0]} = ... that accumulates over such a query", "Use STRING_AGG or SUM.")
    columns = list(
        dict.fromkeys(column for value in values for column in value.find_all(exp.Column) if not is_date_part(column))
    )
    rows = node.copy()
    fields = [exp.alias_(column.copy(), f"c{number}") for number, column in enumerate(columns)]
    rows.set("expressions", [exp.alias_(_row_number(rows), "n"), *fields])
    numbered = translate_query(writer, rows, outermost=False)
    row_columns = {
        output.name: Column(output.name, output.type) for output in numbered.outputs or [] if output.type is not None
    }
    value_columns = {
        f"v{number}": Column(f"v{number}", writer.variable_type(name)) for number, name in enumerate(targets)
    }
    names = ", ".join(value_columns)
    start = ", ".join(_with_collation(writer.variable(name).text, writer.variable_type(name)) for name in targets)
    steps = [value.transform(lambda inner: _refer_to_row(inner, columns)) for value in values]
    with writer.query(
        [Source(_ROWS, row_columns if len(row_columns) > len(columns) else None), Source(_VALUES, value_columns)]
    ):
        texts = _write_steps(writer, steps, targets)
    limit_condition = f" AND {_ROWS}.n <= {writer.scope.row_limit}" if writer.scope.row_limit else ""
    text = (
        f"WITH RECURSIVE {_ROWS} AS MATERIALIZED ({numbered.text}), {_VALUES} (n, {names}) AS (SELECT 0::bigint, {start} UNION ALL "
        f"SELECT {_ROWS}.n, {', '.join(texts)} FROM {_VALUES} JOIN {_ROWS} ON {_ROWS}.n = {_VALUES}.n + 1{limit_condition}) "
        f"SELECT {names} FROM {_VALUES} ORDER BY n DESC LIMIT 1"
    )
    types = tuple(writer.variable_type(name) for name in targets)
    return Translation(
        text, tuple(writer.parameters), "assign", None, types, tuple(targets), before=tuple(writer.statements_before)
    )


def _write_steps(writer: Writer, steps: list[exp.Expression], targets: list[str]) -> list[str]:
    """Write the new values of the variables for a row. Variables to the left already have their new values."""
    writer.assigned = {
        name: Sql(f"{_VALUES}.v{number}", writer.variable_type(name)) for number, name in enumerate(targets)
    }
    texts = []
    for step, name in zip(steps, targets, strict=True):
        kind = writer.variable_type(name)
        texts.append(_with_collation(cast_value(write_value(writer, step), kind).text, kind))
        writer.assigned[name] = Sql(f"({texts[-1]})", kind)
    writer.assigned = {}
    return texts


def _with_collation(text: str, sql_type: SqlType) -> str:
    """Set one collation for both parts of the recursive query. Names of catalog views have another one."""
    return f'({text}) COLLATE "C"' if sql_type.name in STRINGS or sql_type.name == "xml" else text


def _row_number(rows: exp.Select) -> exp.Expression:
    order = rows.args.get("order")
    if rows.args.get("limit") is None:
        rows.set("order", None)
    window = exp.Window(this=exp.RowNumber(), order=order.copy() if order is not None else None, over="OVER")
    window.meta[UNORDERED] = True
    return window


def _refer_to_row(node: exp.Expression, columns: list[exp.Column]) -> exp.Expression:
    if isinstance(node, exp.Column) and node in columns and not is_date_part(node):
        return exp.column(f"c{columns.index(node)}", table=_ROWS)
    return node
