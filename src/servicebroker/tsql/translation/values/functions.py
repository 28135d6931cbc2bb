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
    chosen,
    type_of_session,
    wrong_count,
)
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.text_to_tree import MARK
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    closed_text,
    refused,
    string,
    value_of,
    write_value,
)
from servicebroker.tsql.translation.values.conversions import converted
from servicebroker.tsql.types import DATETIME, DECIMAL, FLOAT, INT, NVARCHAR, VARBINARY, VARCHAR, VARIANT, SqlType

# those whose arguments are not plain values; the modules that write them register them here
SPECIAL: dict[str, Callable[[Writer, list[exp.Expression]], Sql]] = {}


@value_of(exp.Anonymous)
def _call(writer: Writer, node: exp.Anonymous) -> Sql:
    written = str(node.this)
    name = written.lower().removeprefix(MARK)
    special = SPECIAL.get(name)
    if special is not None:
        made = special(writer, list(node.expressions))
        known = CODE[name].type if name in CODE else None
        return made if known is None else made._replace(type=known)
    return plain_call(writer, name, list(node.expressions), written.removeprefix(MARK))


def plain_call(writer: Writer, name: str, nodes: list[exp.Expression], written: str) -> Sql:
    """A call that the table alone describes.

    Raises:
        TsqlError: 195 for an unknown name, 40515 for a function that is not here, 174 and 189 for another number of
            arguments.
    """
    if name in SESSION and not nodes:
        return session_value(writer, name)
    if name in REFUSED:
        raise refused(name.upper(), REFUSED[name].says)
    function = chosen(name, len(nodes))
    if function is None:
        raise TsqlError(195, f"'{written[:60]}' is not a recognized built-in function name.")
    return _written(writer, function, nodes)


def session_value(writer: Writer, name: str) -> Sql:
    """What only the session knows, as a parameter."""
    known = name in writer.scope.functions
    writer.used["function", name] = known
    if not known:
        raise refused(name.upper())
    return Sql(writer.parameter(name, type_of_session(name)), type_of_session(name))


def _written(writer: Writer, function: Function, nodes: list[exp.Expression]) -> Sql:
    letters = function.letters
    letters += letters[-1:] * (len(nodes) - len(letters))
    values = [write_value(writer, node) for node in nodes]
    texts = [argument(value, letter) for value, letter in zip(values, letters, strict=False)]
    every = ", ".join(texts)
    text = function.text.format(
        *texts,
        all=every,
        all_or_dbo=every or "'dbo'",
        all_or_null=every or "NULL",
        database=string(writer.scope.database),
    )
    is_first = function.returns == FIRST and values
    if is_first and letters[0] == "s" and values[0].kind != "string":  # which was made a string
        return Sql(text, VARCHAR)
    if is_first and letters[0] == "n" and values[0].kind == "string":  # or a number
        return Sql(text, FLOAT)
    return Sql(text, _result_type(function.name, values[0].type) if is_first else function.type)


def _result_type(name: str, of: SqlType | None) -> SqlType | None:
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


def argument(value: Sql, letter: str) -> str:
    """An argument as the function takes it.

    Raises:
        TsqlError: 8116 for a sql_variant, of which nobody knows what it is.
    """
    if value.type == VARIANT:
        raise TsqlError(8116, "Argument data type sql_variant is invalid for the function. Use CAST.")
    if value.is_open and value.type is None:
        return {
            "s": "NULL::text",
            "i": "NULL::integer",
            "d": "NULL::timestamp",
            "b": "NULL::bytea",
            "x": "NULL::text",
        }.get(letter, "NULL")
    if letter == "s":
        return converted(value, NVARCHAR).text
    if letter == "i" and value.kind != "number":
        return f"tsql.to_int({closed_text(value)})"
    if letter == "i" and value.type is not None and value.type.name != "int":
        return f"{value.text}::integer"
    if letter == "n" and value.kind == "string":
        return f"tsql.to_float({closed_text(value)})"
    if letter == "d" and value.kind == "number":
        return converted(value, DATETIME).text
    if letter == "d" and value.kind != "date":
        return f"tsql.to_datetime2({closed_text(value)})"
    return closed_text(value)


def check_count(nodes: list[exp.Expression], number: int, name: str) -> None:
    """Raises 174 for another number of arguments."""
    if len(nodes) != number:
        raise wrong_count(name, number, number)
