"""Values written to columns: conversions that are implicit in T-SQL and explicit in PostgreSQL."""

from __future__ import annotations

from servicebroker.model.names import postgres_name
from servicebroker.tsql.scope import Column
from servicebroker.tsql.translation.text_writer import Sql, quote_string, type_family
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import NATIONAL, PADDED, postgres_type


def convert_for_column(value: Sql, column: Column | None) -> str:
    """Write a value converted to the type of a column. PostgreSQL refuses strings that are too long."""
    if column is None or (value.is_untyped and value.type is None):
        return value.text
    to = column.type
    kind = type_family(to)
    if value.kind == kind == "string":
        return value.text
    if value.is_untyped and kind in ("uniqueidentifier", "number") and to.name != "bit":
        return cast_value(value, to).text if kind == "number" else value.text
    if value.type == to:
        return value.text
    if to.length is not None:
        to = to._replace(length=-1)
        if to.name in PADDED:
            to = to._replace(name="nvarchar" if to.name in NATIONAL else "varchar")
        if to.name == "binary":
            to = to._replace(name="varbinary")
    return cast_value(value, to).text


def cast_for_column(value: Sql, column: Column | None) -> str:
    """Write a value like `convert_for_column`, with a cast.

    PostgreSQL needs the cast where it does not see the column, as in a subquery.
    """
    text = convert_for_column(value, column)
    if value.is_untyped and column is not None and type_family(column.type) != "string":
        return f"({text})::{postgres_type(column.type)}"
    return text


def advance_identity(text: str, table: str, column: Column | None) -> str:
    """Write a value of a new row. An explicit value of an IDENTITY column moves the sequence behind it."""
    if column is None or not column.is_identity:
        return text
    sequence = f"pg_get_serial_sequence({quote_string(table)}, {quote_string(postgres_name(column.name))})"
    return f"tsql.count_on((SELECT s FROM pg_sequence AS s WHERE s.seqrelid = {sequence}::regclass), {text})"
