"""The types of columns: plain types, and arrays, maps and structs of types, as in `array<struct<sku: string>>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

from servicebroker.overriding import override

MAX_DECIMAL_DIGITS = 38  # precision of Spark's, Delta's and Iceberg's decimals
MAX_DEPTH = 20  # levels of nested types
KINDS = ("string", "integer", "long", "double", "boolean", "date", "timestamp", "binary", "json")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_TOKEN = re.compile(r"\s*(decimal\(\s*\d{1,2}\s*,\s*\d{1,2}\s*\)|[A-Za-z_][A-Za-z0-9_]*|[<>,:?])\s*")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Plain:
    """A type that is not nested: one of `KINDS`, or decimal(precision,scale)."""

    name: str

    @override
    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct, the item of an array, or the value of a map. Only a field of a struct has a name."""

    name: str
    kind: Kind
    is_optional: bool = False

    @override
    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{name}{self.kind}{'?' if self.is_optional else ''}"


@dataclass(frozen=True, slots=True)
class Array:
    """The type of lists whose items have one type."""

    item: Field

    @override
    def __str__(self) -> str:
        return f"array<{self.item}>"


@dataclass(frozen=True, slots=True)
class Map:
    """The type of maps from strings to values of one type."""

    value: Field

    @override
    def __str__(self) -> str:
        return f"map<string, {self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """The type of objects with these fields."""

    fields: tuple[Field, ...]

    @override
    def __str__(self) -> str:
        return f"struct<{', '.join(map(str, self.fields))}>"


Kind: TypeAlias = Plain | Array | Map | Struct


@lru_cache(maxsize=1000)
def parse_kind(text: str) -> Kind:
    """Return the type with a name. In a nested type, "?" after an inner type makes that value optional.

    Raises:
        ValueError: the name is invalid; the error lists the types.
    """
    if "<" not in text:
        return _plain(text)
    reader = _Reader(text)
    kind = reader.kind(1)
    if reader.position < len(text):
        raise ValueError(f"'{text}' is not a type: '{text[reader.position :]}' follows it")
    return kind


def is_nested(kind: str) -> bool:
    """True if a name is that of an array, map or struct type."""
    return "<" in kind


def decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return (precision, scale) of a decimal type; None for other types."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def has_plain(kind: Kind, test: Callable[[str], bool]) -> bool:
    """True if the test holds for the type, or for a plain type inside it."""
    if isinstance(kind, Plain):
        return test(kind.name)
    return any(has_plain(field.kind, test) for field in parts(kind))


def parts(kind: Kind) -> tuple[Field, ...]:
    """Return the inner types of a nested type: its fields, item or value; none for a plain type."""
    match kind:
        case Array():
            return (kind.item,)
        case Map():
            return (kind.value,)
        case Struct():
            return kind.fields
    return ()


def _plain(text: str) -> Plain:
    if text in KINDS:
        return Plain(text)
    digits = decimal_digits(text)
    if digits is None:
        known = f"{', '.join(KINDS)}, decimal(precision, scale), array<T>, map<string, T> and struct<name: T, ...>"
        raise ValueError(f"'{text}' is not a type: there are {known}")
    precision, scale = digits
    if not 0 < precision <= MAX_DECIMAL_DIGITS or scale > precision:
        raise ValueError(
            f"'{text}' is not a type: precision goes from 1 to {MAX_DECIMAL_DIGITS}, and scale up to precision"
        )
    return Plain(text)


class _Reader:
    """Parses the name of a nested type."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.position = 0

    def kind(self, depth: int) -> Kind:
        """Parse the type at the current position."""
        if depth > MAX_DEPTH:
            raise ValueError(f"'{self.text}' is not a type: it is nested more than {MAX_DEPTH} deep")
        name = self._next()
        if name not in ("array", "map", "struct"):
            return _plain(name)
        self._expect("<")
        kind: Kind
        if name == "array":
            kind = Array(self._field("", depth))
        elif name == "map":
            if self._next() != "string":
                raise ValueError(f"'{self.text}' is not a type: the keys of a map are of type string")
            self._expect(",")
            kind = Map(self._field("", depth))
        else:
            kind = Struct(tuple(self._fields(depth)))
        self._expect(">")
        return kind

    def _fields(self, depth: int) -> list[Field]:
        fields: list[Field] = []
        while True:
            name = self._next()
            self._expect(":")
            if name.lower() in (field.name.lower() for field in fields):
                raise ValueError(f"'{self.text}' is not a type: the field '{name}' occurs twice")
            fields.append(self._field(name, depth))
            if self._peek() != ",":
                return fields
            self._expect(",")

    def _field(self, name: str, depth: int) -> Field:
        kind = self.kind(depth + 1)
        is_optional = self._peek() == "?"
        if is_optional:
            self._expect("?")
        return Field(name, kind, is_optional)

    def _peek(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        return match[1] if match else ""

    def _next(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            rest = self.text[self.position :].strip() or "its end"
            raise ValueError(f"'{self.text}' is not a type: it breaks off at '{rest}'")
        self.position = match.end()
        return "".join(match[1].split())

    def _expect(self, token: str) -> None:
        if (next_token := self._next()) != token:
            raise ValueError(f"'{self.text}' is not a type: '{token}' is missing before '{next_token}'")
