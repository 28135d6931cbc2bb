"""Limits of an Avro body, checked before the library decodes it.

fastavro recurses in C and makes a Python object of every value. So a few kilobytes could end the process (a record
that holds itself, nested 5,000 deep), take gigabytes (many records of 200 fields of type null) or compute for minutes
(a decimal of a megabyte). `Limits.check` walks such a body first, without recursion and without making values.

Most schemas leave no room for any of that. Their bodies are walked only when they are so large that they may hold more
than `MAX_VALUES` values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from servicebroker.pipeline.decoding.columns import MAX_VALUES, Undecodable, too_many_values

MAX_DEPTH = 64  # values in each other; fastavro takes some hundred bytes of C stack for each
MAX_SCHEMA_DEPTH = 4 * MAX_DEPTH  # levels of JSON: a record in a record takes three or four
MAX_DECIMAL_BYTES = 512  # of a decimal, some 1,200 digits; Python's conversion takes time by their square
MAX_VARINT_BYTES = 10  # of a long

_BYTES_PER_DIGIT = 0.4153  # log2(10) / 8
_FIXED_BYTES = {"boolean": 1, "float": 4, "double": 8, "null": 0}
_VARINTS = ("int", "long", "enum")
_NAMED = ("record", "error", "enum", "fixed")


class _Repeated(NamedTuple):
    """The items of an array or a map that are still to be walked: `left` of the block, then further blocks."""

    schema: Mapping[str, Any]
    left: int


class Limits:
    """What bodies of a schema are checked for.

    Args:
        schema: as fastavro has parsed it.
        named: its named types, as fastavro has parsed them.
        added_fields: how many fields a record can get from another schema by which bodies are read.

    Raises:
        ValueError: bodies of this schema cannot be bounded, or all of them are beyond the limits.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any], added_fields: int = 0) -> None:
        self._schema = schema
        self._named = named
        self._added_fields = added_fields
        survey = _Survey(named)
        try:
            depth = survey.depth(schema)
        except RecursionError:
            raise ValueError("its types are too deep in each other") from None
        if depth > MAX_DEPTH:
            raise ValueError(f"its types are {depth} deep in each other; {MAX_DEPTH} is the most")
        self._walks_all = survey.is_recursive or survey.has_empty
        self._largest_unwalked = MAX_VALUES // (depth * (1 + added_fields))  # bytes
        if survey.has_decimal:
            self._largest_unwalked = min(self._largest_unwalked, MAX_DECIMAL_BYTES)

    def check(self, body: bytes) -> None:
        """Refuse a body that is beyond the limits.

        Raises:
            Undecodable: too deep, too many values, wrong type (a decimal with more bytes than its precision needs), or
                malformed.
        """
        if self._walks_all or len(body) > self._largest_unwalked:
            self._walk(body)

    def _walk(self, body: bytes) -> None:
        place = values = 0
        ahead: list[tuple[Any, int]] = [(self._schema, 1)]
        while ahead:
            schema, depth = ahead.pop()
            if isinstance(schema, _Repeated):
                place, left = (place, schema.left) if schema.left else _block(body, place)
                if left:
                    ahead.append((_Repeated(schema.schema, left - 1), depth))
                    if schema.schema["type"] == "map":
                        place = _skip(body, *reversed(_varint(body, place)))
                    ahead.append((schema.schema["items" if schema.schema["type"] == "array" else "values"], depth + 1))
                continue
            schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
            values += 1
            if values > MAX_VALUES:
                raise too_many_values()
            if depth > MAX_DEPTH:
                raise Undecodable("too deep", f"the body is nested more than {MAX_DEPTH} deep")
            if isinstance(schema, list):
                branch, place = _varint(body, place)
                if not 0 <= branch < len(schema):
                    raise Undecodable("malformed", f"a union has no branch {branch}")
                ahead.append((schema[branch], depth))
                continue
            kind = schema if isinstance(schema, str) else schema["type"]
            if kind in ("record", "error"):
                values += self._added_fields
                ahead += [(field["type"], depth + 1) for field in reversed(schema["fields"])]
            elif kind in ("array", "map"):
                ahead.append((_Repeated(schema, 0), depth))
            elif kind in _VARINTS:
                _, place = _varint(body, place)
            elif kind in ("string", "bytes"):
                length, place = _varint(body, place)
                _check_decimal(schema, length)
                place = _skip(body, place, length)
            elif kind == "fixed":
                place = _skip(body, place, schema["size"])
            elif isinstance(kind, str) and kind in _FIXED_BYTES:
                place = _skip(body, place, _FIXED_BYTES[kind])
            else:  # {"type": {"type": ...}}, or a named type
                ahead.append((kind, depth))


class _Survey:
    """What a schema leaves room for. A named type is looked at once, however often it is used."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.is_recursive = False
        self.has_empty = False  # a value outside a union that takes no bytes
        self.has_decimal = False
        self._named = named
        self._depths: dict[str, int | None] = {}  # None: being looked at
        self._empty: dict[str, bool] = {}

    def depth(self, schema: Any) -> int:
        """How deep values are in each other, a named type within itself not counted."""
        if isinstance(schema, str):
            self.has_empty |= schema == "null"
            return self._depth_of_named(schema) if schema in self._named else 1
        if isinstance(schema, list):
            return max((self.depth(one) for one in schema if one != "null"), default=1)
        if schema["type"] in _NAMED and schema["name"] in self._named:
            return self._depth_of_named(schema["name"])
        return self._depth_of(schema)

    def _depth_of_named(self, name: str) -> int:
        if name in self._depths:
            known = self._depths[name]
            self.is_recursive |= known is None
            return known or 1
        self._depths[name] = None
        self._depths[name] = found = self._depth_of(self._named[name])
        return found

    def _depth_of(self, schema: Mapping[str, Any]) -> int:
        kind = schema["type"]
        if schema.get("logicalType") == "decimal":
            self.has_decimal |= kind == "bytes"
            if max(schema.get("size", 0), _decimal_bytes(schema)) > MAX_DECIMAL_BYTES:
                raise ValueError(f"a decimal may take more than {MAX_DECIMAL_BYTES} bytes")
        if kind in ("record", "error"):
            self.has_empty |= not schema["fields"]
            return 1 + max((self.depth(field["type"]) for field in schema["fields"]), default=0)
        if kind == "array" and self._takes_nothing(schema["items"]):
            raise ValueError("an array of items without content may claim any length")
        if kind in ("array", "map"):
            return 1 + self.depth(schema["items" if kind == "array" else "values"])
        self.has_empty |= kind == "null" or (kind == "fixed" and not schema["size"])
        return 1 if isinstance(kind, str) and kind not in self._named else self.depth(kind)

    def _takes_nothing(self, schema: Any) -> bool:
        """Whether a value takes no bytes. A record within itself has no value that ends."""
        if isinstance(schema, list):
            return False
        name = schema if isinstance(schema, str) else schema.get("name")
        if name not in self._named:
            return schema == "null" or (isinstance(schema, dict) and schema["type"] == "null")
        if name not in self._empty:
            self._empty[name] = False
            named = self._named[name]
            self._empty[name] = (named["type"] == "fixed" and not named["size"]) or (
                named["type"] in ("record", "error")
                and all(self._takes_nothing(field["type"]) for field in named["fields"])
            )
        return self._empty[name]


def check_nesting(schema: Any) -> None:
    """Refuse the JSON of a schema that the library, which recurses, might not survive.

    Raises:
        ValueError: it is nested too deeply.
    """
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _decimal_bytes(schema: Mapping[str, Any]) -> int:
    """How many bytes a decimal of that precision may take: those of its digits, and one for the sign."""
    return int(schema["precision"] * _BYTES_PER_DIGIT) + 2


def _check_decimal(schema: Any, length: int) -> None:
    is_decimal = isinstance(schema, dict) and schema.get("logicalType") == "decimal"
    if is_decimal and length > _decimal_bytes(schema):
        raise Undecodable("wrong type", f"a decimal of precision {schema['precision']} has {length:,} bytes")


def _block(body: bytes, place: int) -> tuple[int, int]:
    """The place of the first item of a block, and how many items it has."""
    count, place = _varint(body, place)
    if count < 0:  # the block says how many bytes it has, too
        _, place = _varint(body, place)
    return place, abs(count)


def _skip(body: bytes, place: int, length: int) -> int:
    if not 0 <= length <= len(body) - place:
        raise Undecodable("malformed", "the body ends within a value")
    return place + length


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """A whole number, and the place behind it."""
    value = 0
    for number, byte in enumerate(body[place : place + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), place + number + 1
    raise Undecodable("malformed", "a whole number does not end")
