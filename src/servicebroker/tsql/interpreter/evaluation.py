"""The value of an expression: by `simple` where that is enough, else by the translation to SQL."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from servicebroker.model.number_bounds import WHOLE
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.function_table import GLOBALS
from servicebroker.tsql.interpreter.simple import NotSimple, Value, compiled
from servicebroker.tsql.statement_errors import no_condition
from servicebroker.tsql.syntax import Constant, Expression, Name, Operand, Variable
from servicebroker.tsql.types import INT, NVARCHAR, UNIQUEIDENTIFIER, SqlType

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def evaluate(machine: Machine, expression: Expression) -> Value:
    """The value of an expression, and its type where it has one."""
    function = compiled(expression.text)
    if function is not None:
        try:
            return function(machine)
        except NotSimple:
            pass
    return machine.queries.scalar(expression.text)


def condition(machine: Machine, expression: Expression) -> bool:
    """Whether a condition holds; unknown is no.

    Raises:
        TsqlError: 4145 it is no condition.
    """
    function = compiled(expression.text)
    if function is not None:
        try:
            value = function(machine)
        except NotSimple:
            pass
        else:
            if value.type is None and isinstance(value.value, bool | None):
                return value.value is True
            raise no_condition(expression.text)
    return machine.queries.condition(expression.text)


def operand(machine: Machine, given: Operand | None) -> object:
    """The value of a clause; a name stands for itself."""
    match given:
        case None:
            return None
        case Variable(name):
            return machine.frame.value_of(name)
        case Constant(value):
            return value
        case Name():
            return given.own
        case Expression():
            return evaluate(machine, given).value


def operand_value(machine: Machine, given: Operand) -> Value:
    """The value of a clause, with its type."""
    match given:
        case Variable(name) if name in GLOBALS:
            return evaluate(machine, Expression(name, 0))
        case Variable(name):
            return Value(machine.frame.value_of(name), machine.frame.types[name])
        case Constant(None):
            return Value(None, None)
        case Constant(value):
            return Value(value, type_of(value))
        case Name():
            return Value(given.own, NVARCHAR)
        case Expression():
            return evaluate(machine, given)


def type_of(value: object) -> SqlType | None:
    """The type of a value as Python has it: of a constant, a parameter, a row; None of NULL."""
    from servicebroker.tsql import types

    match value:
        case None:
            return None
        case str():
            return types.NVARCHAR
        case bytes():
            return types.VARBINARY
        case UUID():
            return types.UNIQUEIDENTIFIER
        case bool():
            return types.BIT
        case int():
            least, most = WHOLE["int"]
            return types.INT if least <= value <= most else types.BIGINT
        case Decimal():
            digits, exponent = value.as_tuple()[1:]
            scale = max(0, -int(exponent))
            return SqlType("decimal", None, max(len(digits), scale, 1), scale)
        case datetime():
            return types.DATETIME2 if value.tzinfo is None else SqlType("datetimeoffset", None, None, 7)
        case date():
            return SqlType("date")
        case time():
            return SqlType("time", None, None, 7)
        case _:
            return types.FLOAT


def text(machine: Machine, given: Operand | None) -> str | None:
    """A clause that is a name or a string."""
    if given is None:
        return None
    value, source = operand_value(machine, given)
    return None if value is None else str(convert(value, source, NVARCHAR))


def integer(machine: Machine, given: Operand | None) -> int | None:
    """A clause that is a whole number."""
    if given is None:
        return None
    value, source = operand_value(machine, given)
    return None if value is None else int(convert(value, source, INT))


def identifier(machine: Machine, given: Operand | None) -> UUID | None:
    """A clause that is a uniqueidentifier, or a string that is one.

    Raises:
        TsqlError: 8169 it is none.
    """
    if given is None:
        return None
    value, source = operand_value(machine, given)
    if value is None or isinstance(value, UUID):
        return value
    made = convert(value, source, UNIQUEIDENTIFIER)
    return made if isinstance(made, UUID) else None
