"""Evaluates simple expressions in Python: constants, variables, comparisons, sums and some functions.

PostgreSQL evaluates every other expression: those with a subquery, or with a function or operator that is missing in
this file. It also evaluates an expression if its values turn out to have other types. Both give the same result.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.function_table import GLOBALS, session_function_type
from servicebroker.tsql.interpreter.procedures.session_functions import SESSION_FUNCTIONS
from servicebroker.tsql.parser.token_reader import TokenReader, parse_number
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import NUMBER, STRING, VARIABLE, WORD, string_value, tokenize
from servicebroker.tsql.translation.values.type_precedence import concatenated_type
from servicebroker.tsql.types import BINARIES, INT, STRINGS, SYSNAME, UNIQUEIDENTIFIER, SqlType, parse_type

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


class NotSimple(Exception):
    """PostgreSQL must evaluate the expression."""


class Value(NamedTuple):
    """A value and its type. The type is None for NULL without a type, and for a condition."""

    value: object
    type: SqlType | None


_NULL = Value(None, None)
Compiled = Callable[["Machine"], Value]
_MAX_TOKENS = 400  # longer expressions go to PostgreSQL
# The ranges of the integer types, by rank
_INTEGER_RANGES = {"tinyint": (0, 255), "smallint": (-(2**15), 2**15 - 1), "int": (-(2**31) + 1, 2**31 - 1)}
_INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
_CONVERTIBLE = STRINGS | BINARIES | {*_INTEGER_TYPES, "uniqueidentifier"}
_INTEGER_RANKS = list(_INTEGER_RANGES)
_COMPARABLE_STRINGS = ("nvarchar", "varchar", "nchar", "char", "sysname")
_CONCATENATED_STRINGS = ("nvarchar", "varchar", "sysname")
_COMPARISONS: dict[str, Callable[[object, object], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,  # type: ignore[dict-item] # both sides are of one kind
    ">": operator.gt,  # type: ignore[dict-item]
    "<=": operator.le,  # type: ignore[dict-item]
    ">=": operator.ge,  # type: ignore[dict-item]
}


@functools.lru_cache(maxsize=4096)
def compile_expression(text: str) -> Compiled | None:
    """Return the expression as a function of the session; None if it needs PostgreSQL."""
    try:
        tokens = tokenize(text)
        if len(tokens.words) > _MAX_TOKENS:
            return None
        reader = _Compiler(tokens)
        function = reader.disjunction()
        return function if reader.word == "" else None
    except (NotSimple, TsqlError):
        return None


class _Compiler(TokenReader):
    """A recursive-descent parser: one method for each level of precedence, from OR down to a primary."""

    def disjunction(self) -> Compiled:
        left = self.conjunction()
        while self.take("OR"):
            left = _or(left, self.conjunction())
        return left

    def conjunction(self) -> Compiled:
        left = self.negation()
        while self.take("AND"):
            left = _and(left, self.negation())
        return left

    def negation(self) -> Compiled:
        if self.take("NOT"):
            return _not(self.negation())
        return self.comparison()

    def comparison(self) -> Compiled:
        left = self.sum()
        if self.take("IS"):
            wanted = not self.take("NOT")
            self.expect("NULL")
            return _is_null(left, wanted)
        compare = _COMPARISONS.get(self.word)
        if compare is None:
            return left
        self.at += 1
        return _compare(left, self.sum(), compare)

    def sum(self) -> Compiled:
        left = self.product()
        while self.word in ("+", "-"):
            sign = self.word
            self.at += 1
            left = _add(left, self.product()) if sign == "+" else _calculate(left, self.product(), operator.sub)
        return left

    def product(self) -> Compiled:
        left = self.primary()
        while self.take("*"):
            left = _calculate(left, self.primary(), operator.mul)
        if self.word in ("/", "%", "&", "|", "^"):
            raise NotSimple
        return left

    def primary(self) -> Compiled:
        kind, text = self.tokens.kinds[self.at], self.tokens.text(self.at)
        if kind == VARIABLE:
            return self._variable(text.lower())
        if kind == STRING:
            self.at += 1
            value = string_value(text)
            return _constant(Value(value, SqlType("nvarchar" if text[0] in "nN" else "varchar", max(1, len(value)))))
        if kind == NUMBER:
            self.at += 1
            return _constant(_parse_integer(text))
        if self.take("-"):
            if self.tokens.kinds[self.at] != NUMBER:
                raise NotSimple
            negated = _parse_integer(self.tokens.text(self.at))
            if not isinstance(negated.value, int):
                raise NotSimple
            self.at += 1
            return _constant(Value(-negated.value, negated.type))
        if self.take("NULL"):
            return _constant(Value(None, None))
        if self.take("("):
            inner = self.disjunction()
            self.expect(")")
            return inner
        if kind == WORD:
            return self._function()
        raise NotSimple

    def _variable(self, name: str) -> Compiled:
        self.at += 1
        if self.word == ".":
            raise NotSimple
        if name in GLOBALS:
            return _session_value(name)
        return lambda machine: Value(machine.frame.value_of(name), machine.frame.types[name])

    def _function(self) -> Compiled:
        name = self.word
        self.at += 1
        self.expect("(")
        if name == "CAST":
            value = self.sum()
            self.expect("AS")
            target = parse_type(self.type_name(), 30)
            self.expect(")")
            return _convert(value, target)
        if name == "CONVERT":
            target = parse_type(self.type_name(), 30)
            self.expect(",")
            value = self.sum()
            self.expect(")")
            return _convert(value, target)
        self.expect(")")
        if name == "NEWID":
            return lambda machine: Value(uuid4(), UNIQUEIDENTIFIER)
        return _session_value(name.lower())


def _constant(value: Value) -> Compiled:
    return lambda machine: value


def _parse_integer(text: str) -> Value:
    """Return the value of a number or binary constant. Other numbers than int need PostgreSQL."""
    value = parse_number(text)
    if isinstance(value, bytes):
        return Value(value, SqlType("varbinary", max(1, len(value))))
    if not isinstance(value, int) or not _fits(value, "int"):
        raise NotSimple
    return Value(value, INT)


def _fits(value: int, integer: str) -> bool:
    low, high = _INTEGER_RANGES[integer]
    return low <= value <= high


def _session_value(name: str) -> Compiled:
    """Compile a session function, such as @@ROWCOUNT or DB_NAME()."""
    if name not in SESSION_FUNCTIONS:
        raise NotSimple
    value, type_ = SESSION_FUNCTIONS[name], session_function_type(name)
    return lambda machine: Value(value(machine), type_)


def _convert(value: Compiled, target: SqlType) -> Compiled:
    """Compile CAST or CONVERT. A failed conversion is left to PostgreSQL, which raises the error."""

    def result(machine: Machine) -> Value:
        operand, source = value(machine)
        is_untyped_null = operand is None and source is None
        if isinstance(operand, bool) or not (is_untyped_null or _is_convertible_here(source, target)):
            raise NotSimple
        try:
            return Value(None if operand is None else convert(operand, source, target), target)
        except TsqlError:
            raise NotSimple from None  # PostgreSQL raises the error

    return result


def _is_convertible_here(source: SqlType | None, target: SqlType) -> bool:
    """Return True for a conversion from or to text, or between integers. PostgreSQL converts the other types."""
    if source is None or not {source.name, target.name} <= _CONVERTIBLE:
        return False
    return source.name in STRINGS or target.name in STRINGS or {source.name, target.name} <= set(_INTEGER_TYPES)


# Both sides are evaluated, whatever the first one is, so that a wrong type on either side is found.
def _or(left: Compiled, right: Compiled) -> Compiled:
    """Compile OR, with three truth values."""

    def result(machine: Machine) -> Value:
        first, second = _truth_value(left(machine)), _truth_value(right(machine))
        return Value(
            True if first is True or second is True else None if first is None or second is None else False, None
        )

    return result


def _and(left: Compiled, right: Compiled) -> Compiled:
    """Compile AND, with three truth values."""

    def result(machine: Machine) -> Value:
        first, second = _truth_value(left(machine)), _truth_value(right(machine))
        return Value(
            False if first is False or second is False else None if first is None or second is None else True, None
        )

    return result


def _not(value: Compiled) -> Compiled:
    def result(machine: Machine) -> Value:
        truth = _truth_value(value(machine))
        return Value(None if truth is None else not truth, None)

    return result


def _truth_value(value: Value) -> bool | None:
    """Return the value of a condition: True, False, or None for unknown."""
    if value.type is not None or not isinstance(value.value, bool | None):
        raise NotSimple
    return value.value


def _is_null(value: Compiled, wanted: bool) -> Compiled:
    return lambda machine: Value((value(machine).value is None) == wanted, None)


def _compare(left: Compiled, right: Compiled, compare: Callable[[object, object], bool]) -> Compiled:
    """Compile a comparison. Its value is None if a side is NULL."""

    def result(machine: Machine) -> Value:
        first, second = left(machine), right(machine)
        _check_comparable(first, second)
        if first.value is None or second.value is None:
            return Value(None, None)
        left_value, right_value = _strip_trailing_blanks(first.value), _strip_trailing_blanks(second.value)
        if (
            isinstance(left_value, str)
            and _depends_on_case(left_value, str(right_value), compare)
            and (SYSNAME in (first.type, second.type) or machine.ignores_case)
        ):
            raise NotSimple
        return Value(compare(left_value, right_value), None)

    return result


def _depends_on_case(first: str, second: str, compare: Callable[[object, object], bool]) -> bool:
    """Check whether the result may be another one if case does not count. PostgreSQL then compares the strings.

    It is the same for identical strings, and for ASCII strings that differ in more than case.
    """
    if compare not in (operator.eq, operator.ne):
        return True
    return first != second and not (first.isascii() and second.isascii() and first.lower() != second.lower())


def _strip_trailing_blanks(value: object) -> object:
    """Remove the blanks at the end of a string, which do not count in a comparison."""
    return value.rstrip(" ") if isinstance(value, str) else value


def _check_comparable(first: Value, second: Value) -> None:
    """Require two integers, strings or identifiers, which Python orders as SQL does, or an untyped NULL."""
    kinds = {_comparison_kind(value) for value in (first, second) if value != _NULL}
    if len(kinds) > 1 or None in kinds:
        raise NotSimple


def _comparison_kind(value: Value) -> str | None:
    """Return "string", "integer" or "uniqueidentifier"; None for a type that PostgreSQL compares."""
    if value.type is None:
        return None
    name = value.type.name
    if name in _COMPARABLE_STRINGS:
        return "string"
    return "integer" if name in (*_INTEGER_TYPES, "bit") else name if name == "uniqueidentifier" else None


def _add(left: Compiled, right: Compiled) -> Compiled:
    """Compile +, which concatenates strings and adds integers."""
    add = _calculate(left, right, operator.add)

    def result(machine: Machine) -> Value:
        first, second = left(machine), right(machine)
        if (
            first.type
            and second.type
            and first.type.name in _CONCATENATED_STRINGS
            and second.type.name in _CONCATENATED_STRINGS
        ):
            type_ = concatenated_type(first.type, second.type)
            if first.value is None or second.value is None:
                return Value(None, type_)
            return Value(str(first.value) + str(second.value), type_)
        return add(machine)

    return result


def _calculate(left: Compiled, right: Compiled, calculate: Callable[[int, int], int]) -> Compiled:
    """Compile an operator of integers. The result has the larger of both types, as in SQL Server."""

    def result(machine: Machine) -> Value:
        first, second = left(machine), right(machine)
        if not (
            first.type and second.type and first.type.name in _INTEGER_RANGES and second.type.name in _INTEGER_RANGES
        ):
            raise NotSimple
        type_ = max(first.type, second.type, key=lambda operand_type: _INTEGER_RANKS.index(operand_type.name))
        if not isinstance(first.value, int) or not isinstance(second.value, int):
            return Value(None, type_)
        value = calculate(first.value, second.value)
        if not _fits(value, type_.name):
            raise NotSimple  # PostgreSQL raises the overflow
        return Value(value, type_)

    return result
