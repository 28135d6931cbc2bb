"""Calls of built-in functions: special functions write themselves, plain ones are rows of `function_table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from servicebroker.tsql.function_table import (
    CODE,
    FIRST,
    SESSION,
    UNSUPPORTED,
    Function,
    argument_count_error,
    find_overload,
    session_function_type,
)
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX, ODBC_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    not_supported,
    quote_string,
    typed_text,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import cast_value, constant_moment, own_clock
from servicebroker.tsql.types import DATETIME, DECIMAL, FLOAT, INT, NVARCHAR, VARBINARY, VARCHAR, VARIANT, XML, SqlType

_DATETIME2 = SqlType("datetime2")
_TAKE_XML = frozenset({"BINARY_CHECKSUM"})  # plain functions whose arguments may be xml
# functions whose arguments are not plain values, registered by the modules that write them
SPECIAL: dict[str, Callable[[Writer, list[exp.Expression]], Sql]] = {}


class InvalidArgument(TsqlError):
    """Error 8116 for an argument of a type that no function takes. `named` adds the function and the position."""

    def __init__(self, sql_type: SqlType) -> None:
        super().__init__(8116, f"Argument data type {sql_type.name} is invalid for the function.")
        self.type = sql_type

    def named(self, writer: Writer, name: str, nodes: Sequence[exp.Expression]) -> TsqlError:
        """Return the error with the function's name and the position of its first argument of this type."""
        types = [write_value(writer, node).type for node in nodes]
        position = types.index(self.type) + 1 if self.type in types else 1
        return TsqlError(
            8116, f"Argument data type {self.type.name} is invalid for argument {position} of {name} function."
        )


@writes_value(exp.Anonymous)
def _write_call(writer: Writer, node: exp.Anonymous) -> Sql:
    name = str(node.this).lower().removeprefix(CALL_PREFIX)
    try:
        return _write_named_call(writer, node, name)
    except InvalidArgument as error:
        raise error.named(writer, name.removeprefix(ODBC_PREFIX), node.expressions) from None


def _write_named_call(writer: Writer, node: exp.Anonymous, name: str) -> Sql:
    written = str(node.this)
    special = SPECIAL.get(name)
    if special is not None:
        written_call = special(writer, list(node.expressions))
        fixed_type = CODE[name].type if name in CODE else None
        return written_call if fixed_type is None else written_call._replace(type=fixed_type)
    return write_plain_call(
        writer, name, list(node.expressions), written.removeprefix(CALL_PREFIX).removeprefix(ODBC_PREFIX)
    )


def write_plain_call(writer: Writer, name: str, nodes: list[exp.Expression], written: str) -> Sql:
    """Write a call that a row of the table describes completely.

    Raises:
        TsqlError: 195 unknown function, 40515 the function is not supported, 174 and 189 the number of arguments is
            wrong.
    """
    if name in SESSION and not nodes:
        return write_session_value(writer, name)
    if name in UNSUPPORTED:
        raise not_supported(name.upper(), UNSUPPORTED[name].description)
    function = find_overload(name, len(nodes))
    if function is None:
        raise TsqlError(195, f"'{written[:60]}' is not a recognized built-in function name.")
    return _write_function(writer, function, nodes)


def write_session_value(writer: Writer, name: str) -> Sql:
    """Write a value that only the session knows, as a parameter."""
    is_known = name in writer.scope.functions
    writer.scope_answers["function", name] = is_known
    if not is_known:
        raise not_supported(name.upper())
    return Sql(writer.parameter(name, session_function_type(name)), session_function_type(name))


def _write_function(writer: Writer, function: Function, nodes: list[exp.Expression]) -> Sql:
    letters = function.letters
    letters += letters[-1:] * (len(nodes) - len(letters))
    values = [write_value(writer, node) for node in nodes]
    if XML in [value.type for value in values] and function.name not in _TAKE_XML:
        raise InvalidArgument(XML)
    texts = [write_argument(value, letter) for value, letter in zip(values, letters, strict=False)]
    if function.name == "FORMAT" and values[0].type is not None and values[0].type.name == "datetimeoffset":
        texts[1] = f"tsql.offset_mask({texts[1]}, {values[0].offset() if values[0].offset else 0})"
    every = ", ".join(texts)
    text = function.text.format(
        *texts,
        all=every,
        all_or_dbo=every or "'dbo'",
        all_or_null=every or "NULL",
        database=quote_string(writer.scope.database),
    )
    is_first = function.returns == FIRST and values
    if is_first and letters[0] == "s" and values[0].kind != "string":  # converted to a string
        return Sql(text, VARCHAR)
    if is_first and letters[0] == "n" and values[0].kind == "string":  # converted to a number
        return Sql(text, FLOAT)
    return Sql(text, _first_argument_type(function.name, values[0].type) if is_first else function.type)


def _first_argument_type(name: str, sql_type: SqlType | None) -> SqlType | None:
    if sql_type is None or sql_type.name == "xml":
        return None
    if sql_type.name in ("varchar", "char", "text"):
        return VARCHAR
    if sql_type.name in ("nvarchar", "nchar", "ntext", "sysname"):
        return NVARCHAR
    if name in ("CEILING", "FLOOR") and sql_type.name in ("decimal", "money"):
        return DECIMAL
    if sql_type.name in ("tinyint", "smallint") and name in ("ROUND", "POWER", "LEFT_SHIFT", "RIGHT_SHIFT", "SET_BIT"):
        return INT
    return VARBINARY if sql_type.name in ("binary", "varbinary") else sql_type


def write_argument(value: Sql, letter: str) -> str:
    """Write an argument converted as its letter of `_LETTERS` requires.

    Raises:
        TsqlError: 8116 a sql_variant, whose type is known at run time only.
        InvalidArgument: the value is xml.
    """
    if value.type == XML:
        raise InvalidArgument(XML)
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
        return cast_value(value, VARCHAR if value.kind == "binary" else NVARCHAR).text
    if letter in ("d", "x"):
        value = own_clock(value)
    if letter == "i" and value.kind != "number":
        return f"tsql.to_int({typed_text(value)})"
    if letter == "i" and value.type is not None and value.type.name != "int":
        return f"{value.text}::integer"
    if letter == "n" and value.kind == "string":
        return f"tsql.to_float({typed_text(value)})"
    if letter == "d" and value.kind == "number":
        return cast_value(value, DATETIME).text
    if letter == "d" and value.kind != "date":
        return constant_moment(value, _DATETIME2) or f"tsql.to_datetime2({typed_text(value)})"
    return typed_text(value)


def check_count(nodes: list[exp.Expression], number: int, name: str) -> None:
    """Check the number of arguments.

    Raises:
        TsqlError: 174 another number.
    """
    if len(nodes) != number:
        raise argument_count_error(name, number, number)
