"""SELECT @a = expression, ... The values are returned as columns."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.accumulations import translate_accumulation
from servicebroker.tsql.translation.queries.selects import apply_row_limit, translate_query
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.text_writer import Sql, Writer, write_value
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.translation.values.functions import SPECIAL


def translate_assignment(writer: Writer, node: exp.Select) -> Translation:
    """Translate a SELECT that assigns every column to a variable.

    Raises:
        TsqlError: 141 a column is not assigned.
    """
    targets: list[str] = []
    replaced = node.copy()
    for assignment in replaced.expressions:
        if not isinstance(assignment, exp.EQ) or not isinstance(assignment.this, exp.Parameter):
            raise TsqlError(
                141,
                "A SELECT statement that assigns a value to a variable must not be combined with data-retrieval operations.",
                severity=15,
            )
        targets.append("@" + assignment.this.name.lower())
    if _accumulates(replaced, targets):
        return translate_accumulation(writer, replaced, targets)
    calls = [
        exp.Anonymous(this=CALL_PREFIX + "assigned", expressions=[assignment.this, assignment.expression])
        for assignment in replaced.expressions
    ]
    replaced.set("expressions", calls)
    translated = translate_query(writer, replaced, outermost=True)
    types = tuple(writer.variable_type(name) for name in targets)
    return Translation(
        apply_row_limit(writer, translated.text),
        tuple(writer.parameters),
        "assign",
        None,
        types,
        tuple(targets),
        before=tuple(writer.statements_before),
    )


def _accumulates(node: exp.Select, targets: list[str]) -> bool:
    """Check whether a variable depends on its own value over several rows."""
    if node.args.get("from_") is None or _is_one_row(node):
        return False
    used = {
        "@" + parameter.name.lower()
        for part in node.expressions
        for parameter in part.expression.find_all(exp.Parameter)
    }
    return bool(used & set(targets)) and any(part.expression.find(exp.Column) for part in node.expressions)


def _is_one_row(node: exp.Select) -> bool:
    limit = node.args.get("limit")
    if isinstance(limit, exp.Limit) and limit.expression.name == "1":
        return True
    return all(item.expression.find(exp.AggFunc) is not None for item in node.expressions)


def _write_assigned(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write the value of a variable, converted to its type."""
    name = "@" + nodes[0].name.lower()
    value = cast_value(write_value(writer, nodes[1]), writer.variable_type(name))
    writer.assigned[name] = value._replace(text=f"({value.text})")
    return value


SPECIAL["assigned"] = _write_assigned
