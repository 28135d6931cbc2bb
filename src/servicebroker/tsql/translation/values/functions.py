"""A call of one of T-SQL's functions: a special one writes itself, a plain one is a row of `plain_functions`."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.foreign_clauses import FOREIGN_FUNCTIONS
from servicebroker.tsql.translation.reading.text_to_tree import MARK
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    as_text,
    closed_text,
    refused,
    string,
    value_of,
    write_value,
)
from servicebroker.tsql.translation.values.plain_functions import (
    DECIMAL_38,
    FUNCTIONS,
    LIKE_FIRST,
    SESSION,
    WITH_ARGUMENT,
    Function,
)
from servicebroker.tsql.types import INT, NVARCHAR, VARBINARY, VARCHAR, SqlType

# those whose arguments are not plain values; the modules that write them register them here
SPECIAL: dict[str, Callable[[Writer, list[exp.Expression]], Sql]] = {}


@value_of(exp.Anonymous)
def _call(writer: Writer, node: exp.Anonymous) -> Sql:
    written = str(node.this)
    name = written.lower().removeprefix(MARK)
    special = SPECIAL.get(name)
    if special is not None:
        return special(writer, list(node.expressions))
    if name in SESSION and not node.expressions:
        return session_value(writer, name)
    function = WITH_ARGUMENT.get(name) or FUNCTIONS.get(name)
    if function is None and name.upper() in FOREIGN_FUNCTIONS:
        raise refused(f"{name.upper()}()")
    if function is None:
        raise TsqlError(195, f"'{written.removeprefix(MARK)[:60]}' is not a recognized built-in function name.")
    return _written(writer, name, function, list(node.expressions))


def session_value(writer: Writer, name: str) -> Sql:
    """What only the session knows, as a parameter."""
    known = name in writer.scope.functions
    writer.used["function", name] = known
    if not known:
        raise refused(name.upper())
    return Sql(writer.parameter(name, SESSION[name]), SESSION[name])


def _written(writer: Writer, name: str, function: Function, nodes: list[exp.Expression]) -> Sql:
    wanted = _letters(function.takes, len(nodes), name)
    values = [write_value(writer, node) for node in nodes]
    texts = [argument(value, letter) for value, letter in zip(values, wanted, strict=True)]
    every = ", ".join(texts)
    text = function.text.format(
        *texts,
        all=every,
        all_or_dbo=every or "'dbo'",
        all_or_null=every or "NULL",
        database=string(writer.scope.database),
    )
    of = function.type
    if of is None and name in LIKE_FIRST and values:
        of = _result_type(name, values[0].type)
    return Sql(text, of)


def _result_type(name: str, of: SqlType | None) -> SqlType | None:
    if of is None or of.name == "xml":
        return None
    if of.name in ("varchar", "char", "text"):
        return VARCHAR
    if of.name in ("nvarchar", "nchar", "ntext", "sysname"):
        return NVARCHAR
    if name in ("ceiling", "floor") and of.name in ("decimal", "money"):
        return DECIMAL_38
    if name in ("round", "power") and of.name in ("tinyint", "smallint"):
        return INT
    return VARBINARY if of.name in ("binary", "varbinary") else of


def _letters(takes: str, given: int, name: str) -> str:
    least = takes.split("?")[0].rstrip("*")
    most = takes.replace("?", "")
    if most.endswith("*"):
        most = most[:-1] + most[-2] * max(0, given - len(most) + 1)
        least = least[:-1] if takes.endswith("*") and "?" not in takes else least
    if not len(least) <= given <= len(most):
        bounds = f"{len(least)} to {len(most)} arguments" if len(least) != len(most) else f"{len(least)} argument(s)"
        raise TsqlError(
            189 if bounds.count("to") else 174, f"The {name.lower()} function requires {bounds}.", severity=15
        )
    return most[:given]


def argument(value: Sql, letter: str) -> str:
    """An argument as the function takes it."""
    if value.is_open and value.type is None:
        return {
            "s": "NULL::text",
            "i": "NULL::integer",
            "d": "NULL::timestamp",
            "b": "NULL::bytea",
            "x": "NULL::text",
        }.get(letter, "NULL")
    if letter == "s":
        return as_text(value) if value.kind == "string" else f"tsql.to_nvarchar({value.text})"
    if letter == "i" and value.kind != "number":
        return f"tsql.to_int({closed_text(value)})"
    if letter == "i" and value.type is not None and value.type.name != "int":
        return f"{value.text}::integer"
    if letter == "n" and value.kind == "string":
        return f"tsql.to_float({closed_text(value)})"
    if letter == "d" and value.kind != "date":
        return f"tsql.to_datetime({closed_text(value)})"
    return closed_text(value)


def check_count(nodes: list[exp.Expression], number: int, name: str) -> None:
    """Raises 174 for another number of arguments."""
    if len(nodes) != number:
        raise TsqlError(174, f"The {name} function requires {number} argument(s).", severity=15)
