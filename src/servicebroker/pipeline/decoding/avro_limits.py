"""Checks limits of an Avro body before the library decodes it.

fastavro recurses in C and makes a Python object of every value. A body of a few kilobytes could crash the process (a
record nested in itself 5,000 times) or take gigabytes (many records of 200 fields of type null). A decimal of a
megabyte could take minutes. `AvroLimits.check` first walks such a body, without recursion and without making values.

Most schemas do not allow such bodies. Their bodies are walked only if they are large enough for more than `MAX_VALUES`
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from servicebroker.pipeline.decoding.columns import MAX_VALUES, Undecodable, too_many_values

MAX_DEPTH = 64  # levels of nested values; fastavro needs several hundred bytes of C stack for each
MAX_SCHEMA_DEPTH = 4 * MAX_DEPTH  # levels of JSON: a record in a record takes three or four
MAX_DECIMAL_BYTES = 512  # about 1,200 digits; the time to convert them is quadratic
MAX_VARINT_BYTES = 10  # a long has 64 bits, 7 in each byte

_BYTES_PER_DIGIT = 0.4153  # log2(10) / 8
_FIXED_BYTES = {"boolean": 1, "float": 4, "double": 8, "null": 0}
_VARINTS = ("int", "long", "enum")
_NAMED = ("record", "error", "enum", "fixed")


class _Repeated(NamedTuple):
    """The rest of an array or a map: `remaining` items of the current block, then further blocks."""

    schema: Mapping[str, Any]
    remaining: int


class AvroLimits:
    """The limits for bodies of a schema.

    Args:
        schema: the schema, as parsed by fastavro.
        named: its named types, as parsed by fastavro.
        added_fields: number of fields that a record may get from the reader's schema.

    Raises:
        ValueError: no limit can be checked for bodies of this schema, or every body exceeds a limit.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any], added_fields: int = 0) -> None:
        self._schema = schema
        self._named = named
        self._added_fields = added_fields
        analysis = _SchemaAnalysis(named)
        try:
            depth = analysis.depth(schema)
        except RecursionError:
            raise ValueError("its types are nested too deeply") from None
        if depth > MAX_DEPTH:
            raise ValueError(f"its types are nested {depth} deep, and {MAX_DEPTH} is the maximum")
        self._walks_all = analysis.is_recursive or analysis.has_empty
        self._max_unwalked_bytes = MAX_VALUES // (depth * (1 + added_fields))
        if analysis.has_decimal:
            self._max_unwalked_bytes = min(self._max_unwalked_bytes, MAX_DECIMAL_BYTES)

    def check(self, body: bytes) -> None:
        """Refuse a body that exceeds the limits.

        Raises:
            Undecodable: too deep, too many values, wrong type (a decimal with more bytes than its precision needs), or
                malformed.
        """
        if self._walks_all or len(body) > self._max_unwalked_bytes:
            self._walk(body)

    def _walk(self, body: bytes) -> None:
        position = values = 0
        pending: list[tuple[Any, int]] = [(self._schema, 1)]
        while pending:
            schema, depth = pending.pop()
            if isinstance(schema, _Repeated):
                position, count = (position, schema.remaining) if schema.remaining else _block(body, position)
                if count:
                    pending.append((_Repeated(schema.schema, count - 1), depth))
                    if schema.schema["type"] == "map":
                        position = _skip(body, *reversed(_varint(body, position)))
                    item_key = "items" if schema.schema["type"] == "array" else "values"
                    pending.append((schema.schema[item_key], depth + 1))
                continue
            schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
            values += 1
            if values > MAX_VALUES:
                raise too_many_values()
            if depth > MAX_DEPTH:
                raise Undecodable("too deep", f"the body is nested more than {MAX_DEPTH} deep")
            if isinstance(schema, list):
                branch, position = _varint(body, position)
                if not 0 <= branch < len(schema):
                    raise Undecodable("malformed", f"a union has no branch {branch}")
                pending.append((schema[branch], depth))
                continue
            kind = schema if isinstance(schema, str) else schema["type"]
            if kind in ("record", "error"):
                values += self._added_fields
                pending += [(field["type"], depth + 1) for field in reversed(schema["fields"])]
            elif kind in ("array", "map"):
                pending.append((_Repeated(schema, 0), depth))
            elif kind in _VARINTS:
                _, position = _varint(body, position)
            elif kind in ("string", "bytes"):
                length, position = _varint(body, position)
                _check_decimal(schema, length)
                position = _skip(body, position, length)
            elif kind == "fixed":
                position = _skip(body, position, schema["size"])
            elif isinstance(kind, str) and kind in _FIXED_BYTES:
                position = _skip(body, position, _FIXED_BYTES[kind])
            else:  # {"type": {"type": ...}}, or the name of a type
                pending.append((kind, depth))


class _SchemaAnalysis:
    """Finds out which values a schema allows. Each named type is visited once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.is_recursive = False
        self.has_empty = False  # a value outside a union may take no bytes
        self.has_decimal = False
        self._named = named
        self._depths: dict[str, int | None] = {}  # None: visit in progress
        self._empty: dict[str, bool] = {}

    def depth(self, schema: Any) -> int:
        """Return the depth of nested values. For a type that contains itself, count one level."""
        if isinstance(schema, str):
            self.has_empty |= schema == "null"
            return self._depth_of_named(schema) if schema in self._named else 1
        if isinstance(schema, list):
            return max((self.depth(branch) for branch in schema if branch != "null"), default=1)
        if schema["type"] in _NAMED and schema["name"] in self._named:
            return self._depth_of_named(schema["name"])
        return self._depth_of(schema)

    def _depth_of_named(self, name: str) -> int:
        if name in self._depths:
            known_depth = self._depths[name]
            self.is_recursive |= known_depth is None
            return known_depth or 1
        self._depths[name] = None
        self._depths[name] = depth = self._depth_of(self._named[name])
        return depth

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
        """True if values of a type take no bytes. False for a type that contains itself, which has no finite value."""
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
    """Refuse the JSON of a schema that is nested so deeply that the library, which recurses, could crash.

    Raises:
        ValueError: the schema is nested too deeply.
    """
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [inner for value in level for inner in _inner(value)]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _decimal_bytes(schema: Mapping[str, Any]) -> int:
    """Return the maximum size in bytes of a decimal: its digits and a sign."""
    return int(schema["precision"] * _BYTES_PER_DIGIT) + 2


def _check_decimal(schema: Any, length: int) -> None:
    is_decimal = isinstance(schema, dict) and schema.get("logicalType") == "decimal"
    if is_decimal and length > _decimal_bytes(schema):
        raise Undecodable("wrong type", f"a decimal of precision {schema['precision']} has {length:,} bytes")


def _block(body: bytes, position: int) -> tuple[int, int]:
    """Return the position of the first item of a block, and the number of its items."""
    count, position = _varint(body, position)
    if count < 0:  # a negative count is followed by the size of the block in bytes
        _, position = _varint(body, position)
    return position, abs(count)


def _skip(body: bytes, position: int, length: int) -> int:
    if not 0 <= length <= len(body) - position:
        raise Undecodable("malformed", "the body ends within a value")
    return position + length


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag-encoded integer, and the position after it."""
    value = 0
    for number, byte in enumerate(body[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position + number + 1
    raise Undecodable("malformed", "a whole number does not end")
