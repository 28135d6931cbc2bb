"""Values written to columns: conversions that are implicit in T-SQL and explicit in PostgreSQL."""

from __future__ import annotations

from servicebroker.model.names import postgres_name
from servicebroker.tsql.scope import Column
from servicebroker.tsql.translation.text_writer import NEXT_VALUE_CALL, Sql, quote_string, type_family
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import BINARIES, NATIONAL, PADDED, STRINGS, SqlType, postgres_type

_TOO_LONG = "String or binary data would be truncated."
_TOO_LONG_FOR_COLUMN = "String or binary data would be truncated in table '{}', column '{}'. Truncated value: '"


def convert_for_column(value: Sql, column: Column | None) -> str:
    """Write a value converted to the type of a column. PostgreSQL refuses strings that are too long.

    Numbers and identifiers are fitted to the size as by CAST.
    """
    text = _converted(value, column)
    return text if column is None or not column.owner else _explain_truncation(text, column)


def _explain_truncation(text: str, column: Column) -> str:
    """Write a value so that error 2628 names its column if it is too long. A sequence is not drawn from again."""
    length = column.type.length
    if column.type.name not in STRINGS or length is None or length < 0 or NEXT_VALUE_CALL in text:
        return text
    value = f"({text})::text"
    begin = quote_string(_TOO_LONG_FOR_COLUMN.format(column.owner, column.name))
    refusal = f"tsql.refuse(2628 + 0 * length({value}), {begin} || left({value}, {length}) || '''.')"
    return f"CASE WHEN length(rtrim({value}, ' ')) > {length} THEN {refusal}::text ELSE {value} END"


def _converted(value: Sql, column: Column | None) -> str:
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
    if to.length is None or value.kind in ("number", "uniqueidentifier"):
        return cast_value(value, to).text
    whole = to._replace(length=-1)
    if to.name in PADDED:
        whole = whole._replace(name="nvarchar" if to.name in NATIONAL else "varchar")
    if to.name not in BINARIES:
        return cast_value(value, whole).text
    return _fit_bytes(cast_value(value, whole._replace(name="varbinary")).text, value.type, to)


def _fit_bytes(text: str, source: SqlType | None, to: SqlType) -> str:
    """Fill bytes up to a fixed length, and refuse those that are too long: PostgreSQL's type has no length."""
    if to.length is None or to.length < 0:
        return text
    whens = f"WHEN octet_length({text}) < {to.length} THEN tsql.padded({text}, {to.length}) " * (to.name == "binary")
    is_short = source is not None and source.name in BINARIES and 0 <= (source.length or -1) <= to.length
    if not is_short:  # the length in it, or the planner would compute the refusal as a constant
        refusal = f"tsql.refuse(8152 + 0 * octet_length({text}), '{_TOO_LONG}')::text::bytea"
        whens += f"WHEN octet_length({text}) > {to.length} THEN {refusal} "
    return f"CASE {whens}ELSE {text} END" if whens else text


def cast_for_column(value: Sql, column: Column | None) -> str:
    """Write a value like `convert_for_column`, with a cast.

    PostgreSQL needs the cast where it does not see the column, as in a subquery.
    """
    text = convert_for_column(value, column)
    if value.is_untyped and column is not None and type_family(column.type) != "string":
        return f"({text})::{postgres_type(column.type)}"
    return text


def advance_identity(text: str, table: str, column: Column | None) -> str:
    """Write a value of a new row. An explicit value of an IDENTITY column advances the sequence beyond it."""
    if column is None or not column.is_identity:
        return text
    sequence = f"pg_get_serial_sequence({quote_string(table)}, {quote_string(postgres_name(column.name))})"
    return f"tsql.count_on((SELECT s FROM pg_sequence AS s WHERE s.seqrelid = {sequence}::regclass), {text})"
