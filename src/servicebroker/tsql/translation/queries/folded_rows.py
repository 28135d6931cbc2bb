"""Rows of which a string ignores case: GROUP BY, DISTINCT, UNION, EXCEPT and INTERSECT, and their ORDER BY.

PostgreSQL compares strings by their characters. So rows are compared by `lower()` of such columns, and one of the equal
values stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.queries.aggregates import direction_text
from servicebroker.tsql.translation.queries.results import Output
from servicebroker.tsql.translation.text_writer import Source, Writer, folded_text, typed_text, write_value

_GROUP_FORMS = (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)


def groups_ignore_case(writer: Writer, output: Output) -> bool:
    """Check whether a column of a result ignores case."""
    return output.type is not None and writer.groups_ignore_case(output.as_sql(""))


@contextmanager
def group_keys(writer: Writer, node: exp.Select, sources: Sequence[Source]) -> Iterator[dict[str, str]]:
    """Yield the items of GROUP BY that ignore case, for `Writer.group_keys` in the clauses that see groups.

    Those of outer queries stay known in the `with` block, except where a table has the same name.
    """
    group = node.args.get("group")
    outer_keys, outer_qualifies = writer.group_keys, writer.qualifies_columns
    if outer_keys:
        hidden = tuple(f"{writer.alias(source.alias)}." for source in sources)
        writer.group_keys = {key: text for key, text in outer_keys.items() if not key.startswith(hidden)}
    writer.qualifies_columns = outer_qualifies or group is not None or bool(node.args.get("distinct"))
    try:
        yield _own_keys(writer, group) if group is not None else {}
    finally:
        writer.group_keys, writer.qualifies_columns = outer_keys, outer_qualifies


def _own_keys(writer: Writer, group: exp.Expression) -> dict[str, str]:
    """Return the SQL of each item of GROUP BY that ignores case, and SQL for one of the group's values."""
    keys: dict[str, str] = {}
    parameters = list(writer.parameters)
    for item in _grouped_values(group):
        with suppress(TsqlError):  # raised when the clause is written
            value = write_value(writer, item)
            if writer.groups_ignore_case(value):
                minimum = f"min({typed_text(value)})"
                is_null = f"grouping({folded_text(value)})"
                keys[value.text] = f"(CASE WHEN {is_null} = 0 THEN {minimum} END)" if _has_totals(group) else minimum
    if not keys:
        writer.parameters[:] = parameters
    return keys


def _has_totals(group: exp.Expression) -> bool:
    """Check whether GROUP BY makes rows for several groups, in which the item is NULL."""
    return any(group.args.get(form) for form in ("rollup", "cube")) or any(
        isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets) for item in group.expressions
    )


def _grouped_values(node: exp.Expression) -> Iterator[exp.Expression]:
    """Yield the values of GROUP BY, also those in lists and in ROLLUP, CUBE and GROUPING SETS."""
    for item in node.expressions:
        inner = item.unnest()
        if isinstance(inner, _GROUP_FORMS):
            yield from _grouped_values(inner)
        else:
            yield inner


def keep_distinct_rows(writer: Writer, text: str, outputs: Sequence[Output], labels: Sequence[str]) -> str:
    """Write a query that keeps one of the rows that are equal."""
    fields = [f"c{index}" for index in range(len(outputs))]
    listed = ", ".join(f"{field} AS {label}" for field, label in zip(fields, labels, strict=True))
    keys = ", ".join(_keys(writer, outputs, fields))
    return f"SELECT DISTINCT ON ({keys}) {listed} FROM ({text}) AS tsql_part ({', '.join(fields)})"


def combine_rows(
    writer: Writer, operator: str, texts: tuple[str, str], outputs: Sequence[Output], labels: Sequence[str]
) -> str:
    """Write UNION, EXCEPT or INTERSECT of two queries with the same columns."""
    if operator == "UNION":
        return keep_distinct_rows(writer, f"({texts[0]}) UNION ALL ({texts[1]})", outputs, labels)
    others = [f"d{index}" for index in range(len(outputs))]
    pairs = zip(
        _keys(writer, outputs, [f"c{index}" for index in range(len(outputs))]),
        _keys(writer, outputs, others),
        strict=True,
    )
    condition = " AND ".join(f"{left} IS NOT DISTINCT FROM {right}" for left, right in pairs)
    exists_in_other = f"EXISTS (SELECT FROM ({texts[1]}) AS tsql_other ({', '.join(others)}) WHERE {condition})"
    distinct_rows = keep_distinct_rows(writer, texts[0], outputs, labels)
    return f"{distinct_rows} WHERE {'NOT ' if operator == 'EXCEPT' else ''}{exists_in_other}"


def _keys(writer: Writer, outputs: Sequence[Output], fields: Sequence[str]) -> list[str]:
    return [
        f"lower({field})" if groups_ignore_case(writer, output) else field
        for output, field in zip(outputs, fields, strict=True)
    ]


def order_rows(
    writer: Writer, text: str, order: exp.Expression | None, outputs: Sequence[Output], labels: Sequence[str]
) -> str:
    """Write a query of distinct or combined rows with its ORDER BY.

    Raises:
        TsqlError: 145 an item is none of the query's columns.
    """
    if order is None:
        return text
    items = []
    for item in order.expressions:
        index = _ordered_column(writer, item.this, outputs)
        field = f"tsql_rows.c{index}"
        items.append(
            (f"lower({field})" if groups_ignore_case(writer, outputs[index]) else field) + direction_text(item)
        )
    fields = [f"c{index}" for index in range(len(outputs))]
    listed = ", ".join(f"{field} AS {label}" for field, label in zip(fields, labels, strict=True))
    return f"SELECT {listed} FROM ({text}) AS tsql_rows ({', '.join(fields)}) ORDER BY {', '.join(items)}"


def _ordered_column(writer: Writer, key: exp.Expression, outputs: Sequence[Output]) -> int:
    """Return the index of the column that an item of ORDER BY refers to by its number, name or expression."""
    if isinstance(key, exp.Literal) and not key.is_string and 1 <= int(key.this) <= len(outputs):
        return int(key.this) - 1
    for index, output in enumerate(outputs):
        if isinstance(key, exp.Column) and not key.table and output.name.lower() == key.name.lower():
            return index
    written = write_value(writer, key).text
    for index, output in enumerate(outputs):
        if output.value == written:
            return index
    raise TsqlError(145, "ORDER BY items must appear in the select list if SELECT DISTINCT is specified.", severity=15)
