"""Columns of a decoded body, and the conversion of a value to the type of its column."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from servicebroker.pipeline.decoding.coercion import coerce
from servicebroker.pipeline.decoding.json_number import JsonNumber
from servicebroker.pipeline.decoding.kinds import (
    Array,
    Field,
    Kind,
    Map,
    Plain,
    Struct,
    decimal_digits,
    is_nested,
    parse_kind,
)

MAX_VALUES = 1_000_000  # per body; each value becomes a Python object of about a hundred bytes
WHOLE_BODY = "$"  # path of a column whose value is the whole body
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BEYOND_MICROSECONDS = re.compile(r"(?<=[0-9][.,])[0-9]{6}([0-9]+)")  # group 1: digits that Python would cut off
_MICROSECOND: Final = timedelta(microseconds=1)
_RANGES: Final = {"integer": 2**31, "long": 2**63}
MISSING: Final = object()  # the mark for a value that the body does not have


class Undecodable(Exception):
    """A body that cannot be decoded. `reason` is the kind of error, a fixed phrase; `detail` describes this error."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def too_many_values() -> Undecodable:
    """Return the error for a body with more than `MAX_VALUES` values."""
    return Undecodable("too many values", f"the body has more than {MAX_VALUES:,} values")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        kind: name of its type, for `parse_kind`.
        is_optional: the value may be null or missing.
        source: path of the value in the body: keys separated by dots, a tuple of keys, or `WHOLE_BODY`. The default is
            the column's name.
        rounds: digits that do not fit the type are rounded, not refused.
        coerces: other spellings of a value are accepted (`coercion.py`).
        epoch: unit of numbers that stand for a timestamp, one of `coercion.EPOCHS`; "" for none.
    """

    name: str
    kind: str
    is_optional: bool = False
    source: str | tuple[str, ...] = ""
    rounds: bool = False
    coerces: bool = False
    epoch: str = ""

    @property
    def path(self) -> str:
        """The path of the value in the body, as one string."""
        return self.source if isinstance(self.source, str) and self.source else ".".join(self.source) or self.name

    @property
    def is_whole_body(self) -> bool:
        """True if the value of the column is the whole body."""
        return self.source == WHOLE_BODY

    @property
    def steps(self) -> tuple[str, ...]:
        """The keys on the path to the value, outermost first. In a string, dots separate the keys."""
        return self.source if self.source and isinstance(self.source, tuple) else tuple(self.path.split("."))


class Decoder(Protocol):
    """Decodes the bodies of one message type."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the decoded values."""
        ...

    def decode(self, body: bytes | None) -> list[Any]:
        """Return the values of the columns.

        Raises:
            Undecodable: the body is invalid.
        """
        ...


def with_rescue(columns: Sequence[Column], rescue: str) -> tuple[Column, ...]:
    """Return the columns, followed by the column `rescue` for fields that no column reads, unless `rescue` is ""."""
    return (*columns, Column(rescue, "json", is_optional=True)) if rescue else tuple(columns)


class Projection:
    """Reads the values of columns from nested fields.

    `rescues`: after the columns' values, return one with the fields that no column reads (`unknown_fields`).
    """

    def __init__(self, columns: Sequence[Column], *, refuse_extra: bool, rescues: bool = False) -> None:
        self._paths = [(column, column.steps, _ambiguous(column)) for column in columns]
        reads_all = any(column.is_whole_body for column in columns)
        self._allowed = {steps[0] for _, steps, _ in self._paths} if refuse_extra and not reads_all else None
        self._known = known_fields(columns)
        self._rescues = rescues

    def values(self, fields: Any) -> list[Any]:
        """Return one value for each column. `fields` is a mapping, unless each column reads the whole body.

        Raises:
            Undecodable: missing field, wrong type, extra field, ambiguous path.
        """
        if self._allowed is not None and (extra := fields.keys() - self._allowed):
            raise Undecodable("extra field", f"'{min(extra)}' has no column")
        values = []
        for column, steps, literal in self._paths:
            if column.is_whole_body:
                values.append(convert_column(column, fields, convert))
                continue
            if literal in fields:
                keys = ", ".join(f'"{step}"' for step in steps)
                raise Undecodable(
                    "ambiguous path", f"'{literal}' is a key too: write from = [\"{literal}\"], or from = [{keys}]"
                )
            values.append(convert_column(column, find_value(fields, steps), convert))
        if self._rescues:
            values.append(unknown_fields_json(fields, self._known))
        return values


# The fields that columns read. The value of a field is its own known fields; None means that all of it is read.
Known: TypeAlias = "dict[str, Known] | None"


def known_fields(columns: Sequence[Column]) -> Known:
    """Return the fields of a body that columns read."""
    known: dict[str, Known] = {}
    for column in columns:
        if column.is_whole_body:
            return None
        *parents, last = column.steps
        node: Known = known
        for step in parents:
            if node is not None:
                node = node.setdefault(step, {})
        if node is not None:
            fields = _known_parts(parse_kind(column.kind))
            node[last] = None if fields is None else {**(node.get(last) or {}), **fields}
    return known


def _known_parts(kind: Kind) -> Known:
    """Return the known fields of a struct, or of the structs in an array."""
    if isinstance(kind, Struct):
        return {field.name: _known_parts(field.kind) for field in kind.fields}
    return _known_parts(kind.item.kind) if isinstance(kind, Array) else None


def unknown_fields(value: Any, known: Known) -> Any:
    """Return the part of a value that no column reads; MISSING if there is none.

    For an array, return an item for each of its items; {} for an item without unknown fields.
    """
    if known is None:
        return MISSING
    if isinstance(value, Mapping):
        unknown = {
            key: part
            for key, inner in value.items()
            if (part := unknown_fields(inner, known[key]) if key in known else inner) is not MISSING
        }
        return unknown or MISSING
    if isinstance(value, list):
        items = [unknown_fields(item, known) for item in value]
        is_known = all(item is MISSING for item in items)
        return MISSING if is_known else [{} if item is MISSING else item for item in items]
    return MISSING


def unknown_fields_json(fields: Any, known: Known) -> str | None:
    """Return the unknown fields of a body as JSON text; None if there are none.

    Raises:
        Undecodable: a value cannot be written as JSON.
    """
    try:
        unknown = unknown_fields(fields, known)
        return None if unknown is MISSING else as_json(unknown)
    except RecursionError:
        raise Undecodable("too deep", "the body is nested too deeply") from None
    except (ValueError, TypeError) as problem:
        raise Undecodable("wrong type", f"a field without a column cannot be written as JSON: {problem}") from None


def _ambiguous(column: Column) -> str | None:
    """Return the path of a column as one key, which the author of the rule may mean; None if the path has one step."""
    return column.path if isinstance(column.source, str) and len(column.steps) > 1 else None


def convert_column(column: Column, value: Any, conversion: Callable[[str, Any, bool], Any]) -> Any:
    """Return the value of a column, converted by `conversion` to the column's type.

    Raises:
        Undecodable: missing field, wrong type, too deep.
    """
    if value is MISSING or value is None:
        if column.is_optional:
            return None
        raise missing_field(column.path, value)
    if column.coerces or column.epoch:
        conversion = _lenient(column, conversion)
    if is_nested(column.kind):
        return _convert_nested(parse_kind(column.kind), value, column, conversion, column.path)
    return _convert_plain(column.kind, value, column, conversion, column.path)


Conversion: TypeAlias = Callable[[str, Any, bool], Any]


def _lenient(column: Column, conversion: Conversion) -> Conversion:
    """Return a conversion that also accepts the spellings that the column's `coerce` and `epoch` allow."""

    def convert_leniently(kind: str, value: Any, rounds: bool) -> Any:
        rounds = rounds or (column.coerces and kind == "timestamp")
        changed = coerce(kind, value, is_lenient=column.coerces, epoch=column.epoch, rounds=rounds)
        return (conversion if isinstance(changed, str) else convert)(kind, changed, rounds)

    return convert_leniently


def _convert_plain(kind: str, value: Any, column: Column, conversion: Conversion, path: str) -> Any:
    try:
        return conversion(kind, value, column.rounds)
    except RecursionError:
        raise Undecodable("too deep", f"'{path}' is nested too deeply") from None
    except (ValueError, TypeError, ArithmeticError):
        raise Undecodable("wrong type", f"'{path}' is not of type {kind}: {abbreviate(value)}") from None


def _convert_nested(kind: Kind, value: Any, column: Column, conversion: Conversion, path: str) -> Any:
    """Return a value in the form that Arrow needs: a list for an array, pairs for a map, a dictionary for a struct."""
    match kind:
        case Plain():
            return _convert_plain(kind.name, value, column, conversion, path)
        case Array() if isinstance(value, list | tuple):
            return [
                _convert_part(kind.item, item, column, conversion, f"{path}[{number}]")
                for number, item in enumerate(value)
            ]
        case Map() if isinstance(value, Mapping):
            return [
                (
                    _convert_plain("string", key, column, convert, path),
                    _convert_part(kind.value, item, column, conversion, f"{path}.{key}"),
                )
                for key, item in value.items()
            ]
        case Struct() if isinstance(value, Mapping):
            return {
                field.name: _convert_part(
                    field, value.get(field.name, MISSING), column, conversion, f"{path}.{field.name}"
                )
                for field in kind.fields
            }
    raise Undecodable("wrong type", f"'{path}' is not of type {kind}: {abbreviate(value)}")


def _convert_part(field: Field, value: Any, column: Column, conversion: Conversion, path: str) -> Any:
    if value is MISSING or value is None:
        if field.is_optional:
            return None
        raise missing_field(path, value)
    return _convert_nested(field.kind, value, column, conversion, path)


def missing_field(path: str, value: Any) -> Undecodable:
    """Return the error for a value that is MISSING or null in a column that is not optional."""
    return Undecodable("missing field", f"'{path}' is {'null' if value is None else 'missing'}")


def find_value(fields: Any, steps: Sequence[str]) -> Any:
    """Return the value at the path `steps`; MISSING if a field on the path is missing or null.

    Raises:
        Undecodable: a value on the path is not an object.
    """
    value = fields
    for number, step in enumerate(steps):
        if value is None:
            return MISSING
        if not isinstance(value, Mapping):
            raise Undecodable("wrong type", f"'{'.'.join(steps[:number])}' is not an object: {abbreviate(value)}")
        if step not in value:
            return MISSING
        value = value[step]
    return value


def convert(kind: str, value: Any, rounds: bool = False) -> Any:
    """Convert a value from JSON, Avro or Protobuf to the column's type.

    `rounds`: digits that do not fit the type are rounded. If False, a value with such digits is refused.

    Raises:
        ValueError, TypeError, ArithmeticError: the value is not of the type.
    """
    if kind == "string" and isinstance(value, str | UUID):
        text = str(value)
        text.encode()  # raises for a lone surrogate, which is not valid in a string
        return text
    if kind in _RANGES and isinstance(value, int) and not isinstance(value, bool):
        return _in_range(kind, value)
    if kind in _RANGES and isinstance(value, JsonNumber) and value.text == "-0":
        return 0
    if kind == "double" and isinstance(value, int | float | Decimal | JsonNumber) and not isinstance(value, bool):
        return _finite(float(value.text if isinstance(value, JsonNumber) else value))
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "date":
        return value if type(value) is date else date.fromisoformat(value)
    if kind == "timestamp":
        return _instant(value if isinstance(value, datetime) else _timestamp(value, rounds))
    if kind == "binary":
        return bytes(value) if isinstance(value, bytes) else _from_base64(value)
    if kind == "json":
        return as_json(value)
    is_number = isinstance(value, int | str | Decimal | JsonNumber) and not isinstance(value, bool)
    if is_number and (precision_and_scale := decimal_digits(kind)):
        return _decimal(precision_and_scale, value, rounds)
    raise TypeError(kind)


def convert_text(kind: str, text: str, rounds: bool = False) -> Any:
    """Convert the text of an XML element or attribute to the column's type.

    Raises:
        ValueError, ArithmeticError: the text is not of the type.
    """
    if kind == "string":
        return text
    text = text.strip()
    if kind in _RANGES:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError(text)
        return _in_range(kind, int(text))
    if kind == "double":
        return _finite(float(text)) if _NUMBER.fullmatch(text) else _refuse(text)
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}[text] if text in _BOOLEANS else _refuse(text)
    if kind == "json":
        return as_json(text)
    return convert(kind, text, rounds)


_BOOLEANS = ("true", "1", "false", "0")


def _refuse(text: str) -> Any:
    raise ValueError(text)


def as_json(value: Any) -> str:
    """Return a value as JSON, with numbers as they were written in the body.

    Raises:
        ValueError: the value has a lone surrogate, or a number such as NaN that JSON does not have.
    """
    try:
        text = _WRITER.encode(value)
    except _ExactNumberError:
        text = _encode(value)
    text.encode()
    return text


class _ExactNumberError(Exception):
    """The value has a number that Python's JSON encoder would change. `_encode` would not, but is ten times slower."""


def _default(value: Any) -> Any:
    if isinstance(value, JsonNumber | Decimal):
        raise _ExactNumberError
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_default, separators=(",", ":"))


def _encode(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode_basestring(str(key))}:{_encode(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_encode(item) for item in value]) + "]"
    return format(value, "f") if isinstance(value, Decimal) else _WRITER.encode(value)


def _in_range(kind: str, value: int) -> int:
    if not -_RANGES[kind] <= value < _RANGES[kind]:
        raise OverflowError(value)
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return value


def _instant(value: datetime) -> datetime:
    """Return a time in UTC. A time without a time zone is in UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _timestamp(text: str, rounds: bool) -> datetime:
    """Parse a timestamp in ISO 8601. With `rounds`, fractions of a second are rounded to six digits.

    Raises:
        ValueError: the text is not a timestamp, or has more than six digits without `rounds`.
    """
    if isinstance(text, str) and text.endswith("z"):  # RFC 3339 allows the small letter
        text = f"{text[:-1]}Z"
    surplus_digits: list[str] = [digits for digits in _BEYOND_MICROSECONDS.findall(text) if digits.strip("0")]
    if not surplus_digits:
        return datetime.fromisoformat(text)
    if not rounds or len(surplus_digits) > 1:
        raise ValueError(text)
    increment = _MICROSECOND if surplus_digits[0] >= "5" else timedelta()
    return datetime.fromisoformat(text) + increment


def _from_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None


def _decimal(precision_and_scale: tuple[int, int], value: int | str | Decimal | JsonNumber, rounds: bool) -> Decimal:
    precision, scale = precision_and_scale
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError(value)
    number = Decimal(value.text if isinstance(value, JsonNumber) else value)
    if not number.is_finite():
        raise ValueError(value)
    quantized = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=80))
    if (quantized != number and not rounds) or quantized.adjusted() >= precision - scale:
        raise OverflowError(value)
    return quantized


def abbreviate(value: Any) -> str:
    """Return the text of a value for an error, shortened to 60 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with too many digits, or a value nested too deeply
        return type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
