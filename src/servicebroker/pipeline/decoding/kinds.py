"""Types of columns as values: plain ones, and arrays, maps and structs of them, as in `array<struct<sku: string>>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

MAX_DECIMAL_DIGITS = 38  # precision of Spark's, Delta's and Iceberg's decimals
MAX_DEPTH = 20  # of types in types
KINDS = ("string", "integer", "long", "double", "boolean", "date", "timestamp", "binary", "json")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_TOKEN = re.compile(r"\s*(decimal\(\s*\d{1,2}\s*,\s*\d{1,2}\s*\)|[A-Za-z_][A-Za-z0-9_]*|[<>,:?])\s*")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Plain:
    """A type without parts: one of `KINDS`, or decimal(p,s)."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct. An item of an array and a value of a map are fields without a name."""

    name: str
    kind: Kind
    is_optional: bool = False

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{name}{self.kind}{'?' if self.is_optional else ''}"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items of one type."""

    item: Field

    def __str__(self) -> str:
        return f"array<{self.item}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type by text."""

    value: Field

    def __str__(self) -> str:
        return f"map<string, {self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields with names, each of its own type."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(map(str, self.fields))}>"


Kind: TypeAlias = Plain | Array | Map | Struct


@lru_cache(maxsize=1000)
def parse_kind(text: str) -> Kind:
    """Return the type that a text names. A "?" after a type inside another one makes that value optional.

    Raises:
        ValueError: it is no type; the text lists the known ones.
    """
    if "<" not in text:
        return _plain(text)
    reader = _Reader(text)
    kind = reader.kind(1)
    if reader.position < len(text):
        raise ValueError(f"'{text}' is no type: '{text[reader.position :]}' follows it")
    return kind


def is_nested(kind: str) -> bool:
    """True if the name of a type is that of an array, map or struct."""
    return "<" in kind


def decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal; None for other types."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def has_plain(kind: Kind, test: Callable[[str], bool]) -> bool:
    """True if the test holds for a plain type, or for one inside of an array, map or struct."""
    if isinstance(kind, Plain):
        return test(kind.name)
    return any(has_plain(field.kind, test) for field in parts(kind))


def parts(kind: Kind) -> tuple[Field, ...]:
    """Return the fields, the item or the value of a nested type; nothing for a plain one."""
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
        raise ValueError(f"'{text}' is no type: there are {known}")
    precision, scale = digits
    if not 0 < precision <= MAX_DECIMAL_DIGITS or scale > precision:
        raise ValueError(
            f"'{text}' is no type: precision goes from 1 to {MAX_DECIMAL_DIGITS}, and scale up to precision"
        )
    return Plain(text)


class _Reader:
    """Reads a nested type from left to right."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.position = 0

    def kind(self, depth: int) -> Kind:
        """Read a type."""
        if depth > MAX_DEPTH:
            raise ValueError(f"'{self.text}' is no type: it is nested more than {MAX_DEPTH} deep")
        name = self._next()
        if name not in ("array", "map", "struct"):
            return _plain(name)
        self._expect("<")
        kind: Kind
        if name == "array":
            kind = Array(self._field("", depth))
        elif name == "map":
            if self._next() != "string":
                raise ValueError(f"'{self.text}' is no type: the keys of a map are of type string")
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
                raise ValueError(f"'{self.text}' is no type: the field '{name}' is there twice")
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
            raise ValueError(f"'{self.text}' is no type: it breaks off at '{rest}'")
        self.position = match.end()
        return "".join(match[1].split())

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise ValueError(f"'{self.text}' is no type: '{token}' is missing before '{found}'")
