"""SELECT @a = @a + column FROM ...: a variable that goes on with its own value from row to row.

The rows are numbered in the order of ORDER BY, and a recursive query walks along them.
"""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.scope import Column
from servicebroker.tsql.translation.queries.selects import query
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.text_writer import Source, Sql, Writer, refused, write_value
from servicebroker.tsql.translation.values.conversions import converted
from servicebroker.tsql.translation.values.date_functions import is_part
from servicebroker.tsql.types import STRINGS, SqlType

_ROWS, _KEPT = "tsql_rows", "tsql_kept"


def collected(writer: Writer, node: exp.Select, targets: list[str]) -> Translated:
    """The variables after the last row.

    Raises:
        TsqlError: 40515 with aggregates or subqueries among the values.
    """
    values = [each.expression for each in node.expressions]
    if any(value.find(exp.AggFunc, exp.Query, exp.Window, exp.Dot) is not None for value in values):
        raise refused(
            f"SELECT {targets[0]} = ... that goes on with its own value over such a query", "Use STRING_AGG or SUM."
        )
    columns = list(
        dict.fromkeys(column for value in values for column in value.find_all(exp.Column) if not is_part(column))
    )
    rows = node.copy()
    fields = [exp.alias_(column.copy(), f"c{number}") for number, column in enumerate(columns)]
    rows.set("expressions", [exp.alias_(_numbered(rows), "n"), *fields])
    numbered = query(writer, rows, outermost=False)
    known = {
        output.name: Column(output.name, output.type) for output in numbered.outputs or [] if output.type is not None
    }
    kept = {f"v{number}": Column(f"v{number}", writer.variable_type(name)) for number, name in enumerate(targets)}
    names = ", ".join(kept)
    start = ", ".join(_plain(writer.variable(name).text, writer.variable_type(name)) for name in targets)
    steps = [value.transform(lambda each: _renamed(each, columns)) for value in values]
    with writer.query([Source(_ROWS, known if len(known) > len(columns) else None), Source(_KEPT, kept)]):
        texts = _steps(writer, steps, targets)
    most = f" AND {_ROWS}.n <= {writer.scope.most}" if writer.scope.most else ""
    text = (
        f"WITH RECURSIVE {_ROWS} AS MATERIALIZED ({numbered.text}), {_KEPT} (n, {names}) AS (SELECT 0::bigint, {start} UNION ALL "
        f"SELECT {_ROWS}.n, {', '.join(texts)} FROM {_KEPT} JOIN {_ROWS} ON {_ROWS}.n = {_KEPT}.n + 1{most}) "
        f"SELECT {names} FROM {_KEPT} ORDER BY n DESC LIMIT 1"
    )
    types = tuple(writer.variable_type(name) for name in targets)
    return Translated(text, tuple(writer.parameters), "assign", None, types, tuple(targets), before=tuple(writer.locks))


def _steps(writer: Writer, steps: list[exp.Expression], targets: list[str]) -> list[str]:
    """What a row makes of each variable: of those to the left what it has made of them, of others what they were."""
    writer.assigned = {
        name: Sql(f"{_KEPT}.v{number}", writer.variable_type(name)) for number, name in enumerate(targets)
    }
    texts = []
    for step, name in zip(steps, targets, strict=True):
        kind = writer.variable_type(name)
        texts.append(_plain(converted(write_value(writer, step), kind).text, kind))
        writer.assigned[name] = Sql(f"({texts[-1]})", kind)
    writer.assigned = {}
    return texts


def _plain(text: str, of: SqlType) -> str:
    """Names of catalog views have another collation, and both parts of a recursive query must have one."""
    return f'({text}) COLLATE "C"' if of.name in STRINGS or of.name == "xml" else text


def _numbered(rows: exp.Select) -> exp.Expression:
    order = rows.args.get("order")
    if rows.args.get("limit") is None:
        rows.set("order", None)
    return exp.Window(this=exp.RowNumber(), order=order.copy() if order is not None else None, over="OVER")


def _renamed(node: exp.Expression, columns: list[exp.Column]) -> exp.Expression:
    if isinstance(node, exp.Column) and node in columns and not is_part(node):
        return exp.column(f"c{columns.index(node)}", table=_ROWS)
    return node
