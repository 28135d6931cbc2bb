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
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

MAX_DECIMAL_DIGITS = 38  # precision of Spark's, Delta's and Iceberg's decimals
MAX_VALUES = 1_000_000  # in a body; each becomes a Python object of about a hundred bytes
KINDS = ("string", "integer", "long", "double", "boolean", "date", "timestamp", "binary", "json")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BEYOND_MICROSECONDS = re.compile(r"(?<=[0-9][.,])[0-9]{6}([0-9]+)")  # group 1: digits that Python would cut off
_MICROSECOND: Final = timedelta(microseconds=1)
_RANGES: Final = {"integer": 2**31, "long": 2**63}
MISSING: Final = object()


class Undecodable(Exception):
    """A body that cannot be read. `reason` is the kind of error in a few words, `detail` describes this error."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def too_many_values() -> Undecodable:
    """Return the error for a body with more than `MAX_VALUES` values."""
    return Undecodable("too many values", f"the body has more than {MAX_VALUES:,}")


class JsonNumber:
    """A JSON number as written, for numbers that Python would change: `1.10`, `1e400`, `-0`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Column(NamedTuple):
    """A column of a table. Its type `kind` is one of `KINDS`, or decimal(p,s).

    Attributes:
        source: place of its value in the body, by default its name: a path with dots, or a tuple of keys.
        rounds: digits that do not fit the type are rounded, not refused.
    """

    name: str
    kind: str
    is_optional: bool = False
    source: str | tuple[str, ...] = ""
    rounds: bool = False

    @property
    def path(self) -> str:
        """The place of the value in the body, as text."""
        return self.source if isinstance(self.source, str) and self.source else ".".join(self.source) or self.name

    @property
    def steps(self) -> tuple[str, ...]:
        """The keys on the path to the value, outermost first: a dot in a path goes one level down."""
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


def check_kind(kind: str) -> None:
    """Refuse an unknown type.

    Raises:
        ValueError: the text lists the known types.
    """
    if kind in KINDS:
        return
    match = _DECIMAL.fullmatch(kind)
    if match is None:
        raise ValueError(f"'{kind}' is no type: there are {', '.join(KINDS)} and decimal(precision, scale)")
    if not 0 < int(match[1]) <= MAX_DECIMAL_DIGITS or int(match[2]) > int(match[1]):
        raise ValueError(
            f"'{kind}' is no type: precision goes from 1 to {MAX_DECIMAL_DIGITS}, and scale up to precision"
        )


def decimal_digits(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal; None for other types."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


class Projection:
    """Takes the values of columns from nested fields."""

    def __init__(self, columns: Sequence[Column], *, refuse_extra: bool) -> None:
        self._paths = [(column, column.steps, _ambiguous(column)) for column in columns]
        self._taken = {steps[0] for _, steps, _ in self._paths} if refuse_extra else None

    def values(self, fields: Mapping[str, Any]) -> list[Any]:
        """Return one value for each column.

        Raises:
            Undecodable: missing field, wrong type, extra field, ambiguous path.
        """
        if self._taken is not None and (extra := fields.keys() - self._taken):
            raise Undecodable("extra field", f"'{min(extra)}' has no column")
        values = []
        for column, steps, literal in self._paths:
            if literal in fields:
                keys = ", ".join(f'"{step}"' for step in steps)
                raise Undecodable(
                    "ambiguous path", f"'{literal}' is a key too: say from = [\"{literal}\"], or from = [{keys}]"
                )
            values.append(convert_column(column, find_value(fields, steps), convert))
        return values


def _ambiguous(column: Column) -> str | None:
    """Return the path of a column as a single key, which the author may have meant; None if the path is one key."""
    return column.path if isinstance(column.source, str) and len(column.steps) > 1 else None


def convert_column(column: Column, value: Any, conversion: Callable[[str, Any, bool], Any]) -> Any:
    """Return the converted value of one column.

    Raises:
        Undecodable: missing field, wrong type, too deep.
    """
    if value is MISSING or value is None:
        if column.is_optional:
            return None
        raise Undecodable("missing field", f"'{column.path}' is {'null' if value is None else 'missing'}")
    try:
        return conversion(column.kind, value, column.rounds)
    except RecursionError:
        raise Undecodable("too deep", f"'{column.path}' is nested too deeply") from None
    except (ValueError, TypeError, ArithmeticError):
        raise Undecodable("wrong type", f"'{column.path}' is no {column.kind}: {_abbreviated(value)}") from None


def find_value(fields: Any, steps: Sequence[str]) -> Any:
    """Return the value at the end of a path of keys; MISSING if the path ends earlier or at a null.

    Raises:
        Undecodable: something on the path has no fields.
    """
    value = fields
    for number, step in enumerate(steps):
        if value is None:
            return MISSING
        if not isinstance(value, Mapping):
            raise Undecodable("wrong type", f"'{'.'.join(steps[:number])}' is no object: {_abbreviated(value)}")
        if step not in value:
            return MISSING
        value = value[step]
    return value


def convert(kind: str, value: Any, rounds: bool = False) -> Any:
    """Convert a value from JSON, Avro or Protobuf to the column's type.

    `rounds`: digits that do not fit are rounded; else such a value is refused.

    Raises:
        ValueError, TypeError, ArithmeticError: the value has no such type.
    """
    if kind == "string" and isinstance(value, str | UUID):
        text = str(value)
        text.encode()  # raises for a lone surrogate, which is no text
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
    """Convert a text from XML to the column's type.

    Raises:
        ValueError, ArithmeticError: the text is no value of this type.
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
    """Return a nested value as JSON text, with numbers as they were written.

    Raises:
        ValueError: the value has a number that JSON lacks, or a lone surrogate.
    """
    try:
        text = _WRITER.encode(value)
    except _ExactNumberError:
        text = _encode(value)
    text.encode()
    return text


class _ExactNumberError(Exception):
    """A number that Python's own JSON encoder would change. That encoder is ten times as fast as `_encode`."""


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
    """Return the time in UTC, which is also assumed for a time without a zone."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _timestamp(text: str, rounds: bool) -> datetime:
    """Parse ISO 8601 with any number of digits of a second, of which six fit.

    With `rounds`, further digits are rounded.

    Raises:
        ValueError: the text is no timestamp, or needs rounding without `rounds`.
    """
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
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise ValueError(value)
    number = Decimal(value.text if isinstance(value, JsonNumber) else value)
    if not number.is_finite():
        raise ValueError(value)
    quantized = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=80))
    if (quantized != number and not rounds) or quantized.adjusted() >= precision - scale:
        raise OverflowError(value)
    return quantized


def _abbreviated(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with too many digits, or a value nested too deeply
        return type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
