"""SELECT @a = expression, ...: the values come as columns."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.errors import TsqlError
from servicebroker.tsql.translation.conversions import converted
from servicebroker.tsql.translation.functions import SPECIAL
from servicebroker.tsql.translation.reading import MARK
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.selects import query
from servicebroker.tsql.translation.writer import Sql, Writer, refused, write_value


def assignment(writer: Writer, node: exp.Select) -> Translated:
    """A SELECT of which every column is assigned to a variable.

    Raises:
        TsqlError: 141 where one is not; 40515 for `@a = @a + column`, whose value would depend on the order of rows.
    """
    targets: list[str] = []
    replaced = node.copy()
    for each in replaced.expressions:
        if not isinstance(each, exp.EQ) or not isinstance(each.this, exp.Parameter):
            raise TsqlError(
                141,
                "A SELECT statement that assigns a value to a variable must not be combined with data-retrieval operations.",
                severity=15,
            )
        targets.append("@" + each.this.name.lower())
    _check_rows(replaced, targets)
    calls = [
        exp.Anonymous(this=MARK + "assigned", expressions=[each.this, each.expression]) for each in replaced.expressions
    ]
    replaced.set("expressions", calls)
    done = query(writer, replaced, outermost=True)
    types = tuple(writer.variable_type(name) for name in targets)
    return Translated(
        done.text, tuple(writer.parameters), "assign", None, types, tuple(targets), before=tuple(writer.locks)
    )


def _check_rows(node: exp.Select, targets: list[str]) -> None:
    """Over several rows the variable would collect them, in an order that nobody has promised."""
    if node.args.get("from_") is None:
        return
    for each in node.expressions:
        used = {"@" + parameter.name.lower() for parameter in each.expression.find_all(exp.Parameter)}
        if used & set(targets) and each.expression.find(exp.Column) is not None and not _is_one_row(node):
            raise refused(
                f"SELECT {targets[0]} = ... that goes on with its own value row by row",
                "Use STRING_AGG, SUM or another aggregate.",
            )


def _is_one_row(node: exp.Select) -> bool:
    limit = node.args.get("limit")
    if isinstance(limit, exp.Limit) and limit.expression.name == "1":
        return True
    return all(each.expression.find(exp.AggFunc) is not None for each in node.expressions)


def _assigned(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """What goes into a variable, as its type."""
    name = "@" + nodes[0].name.lower()
    value = converted(write_value(writer, nodes[1]), writer.variable_type(name))
    writer.assigned[name] = Sql(f"({value.text})", value.type)
    return value


SPECIAL["assigned"] = _assigned
