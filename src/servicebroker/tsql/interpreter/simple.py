"""Expressions that need no database: constants, variables, their comparison and sums.

An expression with a function, a subquery or an operator that is not here is translated to SQL and run by PostgreSQL; so
is one whose values turn out to have types that this file does not compute with. Both ways give the same answer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.function_table import GLOBALS, type_of_session
from servicebroker.tsql.interpreter.procedures.session_functions import KNOWN
from servicebroker.tsql.parser.token_reader import Reader, number
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import NUMBER, STRING, VARIABLE, WORD, string_value, tokenize
from servicebroker.tsql.translation.values.alternatives import joined
from servicebroker.tsql.types import BINARIES, INT, STRINGS, SYSNAME, UNIQUEIDENTIFIER, SqlType, parse_type

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


class NotSimple(Exception):
    """The expression is for the translation."""


class Value(NamedTuple):
    """A value and its type; the type of NULL and of conditions is None."""

    value: object
    type: SqlType | None


_NULL = Value(None, None)
Compiled = Callable[["Machine"], Value]
_SIZE = 400  # tokens; longer expressions go to the translation
_INTEGERS = {"tinyint": (0, 255), "smallint": (-(2**15), 2**15 - 1), "int": (-(2**31) + 1, 2**31 - 1)}  # by rank
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_PLAIN = STRINGS | BINARIES | {*_WHOLE, "uniqueidentifier"}
_RANKS = list(_INTEGERS)
_COMPARED = ("nvarchar", "varchar", "nchar", "char", "sysname")
_STRINGS = ("nvarchar", "varchar", "sysname")
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
def compiled(text: str) -> Compiled | None:
    """The expression as a function, None when it is not simple."""
    try:
        tokens = tokenize(text)
        if len(tokens.words) > _SIZE:
            return None
        reader = _Compiler(tokens)
        made = reader.disjunction()
        return made if reader.word == "" else None
    except (NotSimple, TsqlError):
        return None


class _Compiler(Reader):
    """Values and conditions by the precedence of their operators."""

    def disjunction(self) -> Compiled:
        left = self.conjunction()
        while self.take("OR"):
            left = _either(left, self.conjunction())
        return left

    def conjunction(self) -> Compiled:
        left = self.negation()
        while self.take("AND"):
            left = _both(left, self.negation())
        return left

    def negation(self) -> Compiled:
        if self.take("NOT"):
            return _negated(self.negation())
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
        return _compared(left, self.sum(), compare)

    def sum(self) -> Compiled:
        left = self.product()
        while self.word in ("+", "-"):
            sign = self.word
            self.at += 1
            left = _added(left, self.product()) if sign == "+" else _calculated(left, self.product(), operator.sub)
        return left

    def product(self) -> Compiled:
        left = self.primary()
        while self.take("*"):
            left = _calculated(left, self.primary(), operator.mul)
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
            return _constant(_number(text))
        if self.take("-"):
            if self.tokens.kinds[self.at] != NUMBER:
                raise NotSimple
            given = _number(self.tokens.text(self.at))
            if not isinstance(given.value, int):
                raise NotSimple
            self.at += 1
            return _constant(Value(-given.value, given.type))
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
            return _known(name)
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
            return _converted(value, target)
        if name == "CONVERT":
            target = parse_type(self.type_name(), 30)
            self.expect(",")
            value = self.sum()
            self.expect(")")
            return _converted(value, target)
        self.expect(")")
        if name == "NEWID":
            return lambda machine: Value(uuid4(), UNIQUEIDENTIFIER)
        return _known(name.lower())


def _constant(value: Value) -> Compiled:
    return lambda machine: value


def _number(text: str) -> Value:
    value = number(text)
    if isinstance(value, bytes):
        return Value(value, SqlType("varbinary", max(1, len(value))))
    if not isinstance(value, int) or not _fits(value, "int"):
        raise NotSimple
    return Value(value, INT)


def _fits(value: int, integer: str) -> bool:
    low, high = _INTEGERS[integer]
    return low <= value <= high


def _known(name: str) -> Compiled:
    if name not in KNOWN:
        raise NotSimple
    value, of = KNOWN[name], type_of_session(name)
    return lambda machine: Value(value(machine), of)


def _converted(value: Compiled, target: SqlType) -> Compiled:
    def result(machine: Machine) -> Value:
        given, source = value(machine)
        is_untyped_null = given is None and source is None
        if isinstance(given, bool) or not (is_untyped_null or _is_plain(source, target)):
            raise NotSimple
        try:
            return Value(None if given is None else convert(given, source, target), target)
        except TsqlError:
            raise NotSimple from None  # PostgreSQL says what is wrong

    return result


def _is_plain(source: SqlType | None, target: SqlType) -> bool:
    """Whether a conversion is from or to text, or between whole numbers; PostgreSQL has the forms of all types."""
    if source is None or not {source.name, target.name} <= _PLAIN:
        return False
    return source.name in STRINGS or target.name in STRINGS or {source.name, target.name} <= set(_WHOLE)


# Both sides are evaluated whatever the first one is: types that do not go together are wrong in either.
def _either(left: Compiled, right: Compiled) -> Compiled:
    def result(machine: Machine) -> Value:
        first, second = _truth(left(machine)), _truth(right(machine))
        return Value(
            True if first is True or second is True else None if first is None or second is None else False, None
        )

    return result


def _both(left: Compiled, right: Compiled) -> Compiled:
    def result(machine: Machine) -> Value:
        first, second = _truth(left(machine)), _truth(right(machine))
        return Value(
            False if first is False or second is False else None if first is None or second is None else True, None
        )

    return result


def _negated(value: Compiled) -> Compiled:
    def result(machine: Machine) -> Value:
        truth = _truth(value(machine))
        return Value(None if truth is None else not truth, None)

    return result


def _truth(value: Value) -> bool | None:
    if value.type is not None or not isinstance(value.value, bool | None):
        raise NotSimple
    return value.value


def _is_null(value: Compiled, wanted: bool) -> Compiled:
    return lambda machine: Value((value(machine).value is None) == wanted, None)


def _compared(left: Compiled, right: Compiled, compare: Callable[[object, object], bool]) -> Compiled:
    def result(machine: Machine) -> Value:
        first, second = left(machine), right(machine)
        _check_alike(first, second)
        if first.value is None or second.value is None:
            return Value(None, None)
        one, other = _without_blanks(first.value), _without_blanks(second.value)
        if SYSNAME in (first.type, second.type):
            _check_names(str(one), str(other), compare)
        return Value(compare(one, other), None)

    return result


def _check_names(one: str, other: str, compare: Callable[[object, object], bool]) -> None:
    """Names that are equal in their letters too, or differ in more than case, are compared here, others not."""
    differ = one.isascii() and other.isascii() and one.lower() != other.lower()
    if compare not in (operator.eq, operator.ne) or not (one == other or differ):
        raise NotSimple


def _without_blanks(value: object) -> object:
    """Blanks at the end of a string do not count where it is compared."""
    return value.rstrip(" ") if isinstance(value, str) else value


def _check_alike(first: Value, second: Value) -> None:
    """Both integers, both strings, or both identifiers, of equal order here and in SQL; or an untyped NULL."""
    kinds = {_kind(value) for value in (first, second) if value != _NULL}
    if len(kinds) > 1 or None in kinds:
        raise NotSimple


def _kind(value: Value) -> str | None:
    if value.type is None:
        return None
    name = value.type.name
    if name in _COMPARED:
        return "string"
    return "integer" if name in (*_WHOLE, "bit") else name if name == "uniqueidentifier" else None


def _added(left: Compiled, right: Compiled) -> Compiled:
    add = _calculated(left, right, operator.add)

    def result(machine: Machine) -> Value:
        first, second = left(machine), right(machine)
        if first.type and second.type and first.type.name in _STRINGS and second.type.name in _STRINGS:
            of = joined(first.type, second.type)
            if first.value is None or second.value is None:
                return Value(None, of)
            return Value(str(first.value) + str(second.value), of)
        return add(machine)

    return result


def _calculated(left: Compiled, right: Compiled, calculate: Callable[[int, int], int]) -> Compiled:
    def result(machine: Machine) -> Value:
        first, second = left(machine), right(machine)
        if not (first.type and second.type and first.type.name in _INTEGERS and second.type.name in _INTEGERS):
            raise NotSimple
        of = max(first.type, second.type, key=lambda one: _RANKS.index(one.name))
        if not isinstance(first.value, int) or not isinstance(second.value, int):
            return Value(None, of)
        value = calculate(first.value, second.value)
        if not _fits(value, of.name):
            raise NotSimple  # PostgreSQL says what overflows
        return Value(value, of)

    return result
