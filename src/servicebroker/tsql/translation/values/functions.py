"""A call of one of T-SQL's functions: a special one writes itself, a plain one is a row of `function_table`."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from servicebroker.tsql.function_table import (
    CODE,
    FIRST,
    REFUSED,
    SESSION,
    Function,
    argument_count_error,
    find_overload,
    session_function_type,
)
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    not_supported,
    quote_string,
    typed_text,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import DATETIME, DECIMAL, FLOAT, INT, NVARCHAR, VARBINARY, VARCHAR, VARIANT, SqlType

# those whose arguments are not plain values; the modules that write them register them here
SPECIAL: dict[str, Callable[[Writer, list[exp.Expression]], Sql]] = {}


@writes_value(exp.Anonymous)
def _write_call(writer: Writer, node: exp.Anonymous) -> Sql:
    written = str(node.this)
    name = written.lower().removeprefix(CALL_PREFIX)
    special = SPECIAL.get(name)
    if special is not None:
        made = special(writer, list(node.expressions))
        known = CODE[name].type if name in CODE else None
        return made if known is None else made._replace(type=known)
    return write_plain_call(writer, name, list(node.expressions), written.removeprefix(CALL_PREFIX))


def write_plain_call(writer: Writer, name: str, nodes: list[exp.Expression], written: str) -> Sql:
    """A call that the table alone describes.

    Raises:
        TsqlError: 195 for an unknown name, 40515 for a function that is not here, 174 and 189 for another number of
            arguments.
    """
    if name in SESSION and not nodes:
        return write_session_value(writer, name)
    if name in REFUSED:
        raise not_supported(name.upper(), REFUSED[name].description)
    function = find_overload(name, len(nodes))
    if function is None:
        raise TsqlError(195, f"'{written[:60]}' is not a recognized built-in function name.")
    return _write_function(writer, function, nodes)


def write_session_value(writer: Writer, name: str) -> Sql:
    """What only the session knows, as a parameter."""
    known = name in writer.scope.functions
    writer.scope_answers["function", name] = known
    if not known:
        raise not_supported(name.upper())
    return Sql(writer.parameter(name, session_function_type(name)), session_function_type(name))


def _write_function(writer: Writer, function: Function, nodes: list[exp.Expression]) -> Sql:
    letters = function.letters
    letters += letters[-1:] * (len(nodes) - len(letters))
    values = [write_value(writer, node) for node in nodes]
    texts = [write_argument(value, letter) for value, letter in zip(values, letters, strict=False)]
    every = ", ".join(texts)
    text = function.text.format(
        *texts,
        all=every,
        all_or_dbo=every or "'dbo'",
        all_or_null=every or "NULL",
        database=quote_string(writer.scope.database),
    )
    is_first = function.returns == FIRST and values
    if is_first and letters[0] == "s" and values[0].kind != "string":  # which was made a string
        return Sql(text, VARCHAR)
    if is_first and letters[0] == "n" and values[0].kind == "string":  # or a number
        return Sql(text, FLOAT)
    return Sql(text, _first_argument_type(function.name, values[0].type) if is_first else function.type)


def _first_argument_type(name: str, of: SqlType | None) -> SqlType | None:
    if of is None or of.name == "xml":
        return None
    if of.name in ("varchar", "char", "text"):
        return VARCHAR
    if of.name in ("nvarchar", "nchar", "ntext", "sysname"):
        return NVARCHAR
    if name in ("CEILING", "FLOOR") and of.name in ("decimal", "money"):
        return DECIMAL
    if of.name in ("tinyint", "smallint") and name in ("ROUND", "POWER", "LEFT_SHIFT", "RIGHT_SHIFT", "SET_BIT"):
        return INT
    return VARBINARY if of.name in ("binary", "varbinary") else of


def write_argument(value: Sql, letter: str) -> str:
    """An argument as the function takes it.

    Raises:
        TsqlError: 8116 for a sql_variant, of which nobody knows what it is.
    """
    if value.type == VARIANT:
        raise TsqlError(8116, "Argument data type sql_variant is invalid for the function. Use CAST.")
    if value.is_untyped and value.type is None:
        return {
            "s": "NULL::text",
            "i": "NULL::integer",
            "d": "NULL::timestamp",
            "b": "NULL::bytea",
            "x": "NULL::text",
        }.get(letter, "NULL")
    if letter == "s":
        return cast_value(value, NVARCHAR).text
    if letter == "i" and value.kind != "number":
        return f"tsql.to_int({typed_text(value)})"
    if letter == "i" and value.type is not None and value.type.name != "int":
        return f"{value.text}::integer"
    if letter == "n" and value.kind == "string":
        return f"tsql.to_float({typed_text(value)})"
    if letter == "d" and value.kind == "number":
        return cast_value(value, DATETIME).text
    if letter == "d" and value.kind != "date":
        return f"tsql.to_datetime2({typed_text(value)})"
    return typed_text(value)


def check_count(nodes: list[exp.Expression], number: int, name: str) -> None:
    """Raises 174 for another number of arguments."""
    if len(nodes) != number:
        raise argument_count_error(name, number, number)
