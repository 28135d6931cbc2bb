"""Evaluates expressions and operands: in Python if `simple_expressions.py` can, otherwise in PostgreSQL."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from servicebroker.model.number_bounds import WHOLE
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.function_table import GLOBALS
from servicebroker.tsql.interpreter.simple_expressions import NotSimple, Value, compile_expression
from servicebroker.tsql.statement_errors import condition_expected
from servicebroker.tsql.syntax import Constant, Expression, Name, Operand, Variable
from servicebroker.tsql.types import INT, NVARCHAR, UNIQUEIDENTIFIER, SqlType

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def evaluate(machine: Machine, expression: Expression) -> Value:
    """Return the value of an expression, and its type if it has one."""
    function = compile_expression(expression.text)
    if function is not None:
        try:
            return function(machine)
        except NotSimple:
            pass
    return machine.queries.evaluate_scalar(expression.text)


def evaluate_condition(machine: Machine, expression: Expression) -> bool:
    """Return True if a condition is true, False if it is false or unknown.

    Raises:
        TsqlError: 4145 the expression is not a condition.
    """
    function = compile_expression(expression.text)
    if function is not None:
        try:
            value = function(machine)
        except NotSimple:
            pass
        else:
            if value.type is None and isinstance(value.value, bool | None):
                return value.value is True
            raise condition_expected(expression.text)
    return machine.queries.evaluate_condition(expression.text)


def evaluate_untyped(machine: Machine, operand: Operand | None) -> object:
    """Return the value of an operand. The value of a name is the name as a string."""
    match operand:
        case None:
            return None
        case Variable(name):
            return machine.frame.value_of(name)
        case Constant(value):
            return value
        case Name():
            return operand.object
        case Expression():
            return evaluate(machine, operand).value


def evaluate_operand(machine: Machine, operand: Operand) -> Value:
    """Return the value of an operand, with its type. The value of a name is the name as a string."""
    match operand:
        case Variable(name) if name in GLOBALS:
            return evaluate(machine, Expression(name, 0))
        case Variable(name):
            return Value(machine.frame.value_of(name), machine.frame.types[name])
        case Constant(None):
            return Value(None, None)
        case Constant(value, sql_type):
            return Value(value, sql_type or infer_type(value))
        case Name():
            return Value(operand.object, NVARCHAR)
        case Expression():
            return evaluate(machine, operand)


def infer_type(value: object) -> SqlType | None:
    """Return the T-SQL type of a Python value, of a constant, a parameter or a row; None for NULL."""
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
            lowest, highest = WHOLE["int"]
            return types.INT if lowest <= value <= highest else types.BIGINT
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


def evaluate_text(machine: Machine, operand: Operand | None) -> str | None:
    """Return the value of an operand as text, None for NULL or no operand."""
    if operand is None:
        return None
    value, source = evaluate_operand(machine, operand)
    return None if value is None else str(convert(value, source, NVARCHAR))


def evaluate_integer(machine: Machine, operand: Operand | None) -> int | None:
    """Return the value of an operand as int, None for NULL or no operand."""
    if operand is None:
        return None
    value, source = evaluate_operand(machine, operand)
    return None if value is None else int(convert(value, source, INT))


def evaluate_identifier(machine: Machine, operand: Operand | None) -> UUID | None:
    """Return the value of an operand as uniqueidentifier, None for NULL or no operand.

    Raises:
        TsqlError: 8169 a string is not a uniqueidentifier.
    """
    if operand is None:
        return None
    value, source = evaluate_operand(machine, operand)
    if value is None or isinstance(value, UUID):
        return value
    converted = convert(value, source, UNIQUEIDENTIFIER)
    return converted if isinstance(converted, UUID) else None
