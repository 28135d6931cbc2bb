"""Columns of a decoded body, and how a value that was found becomes a value of its column's type."""

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

MOST_DIGITS = 38  # of a decimal
MAX_VALUES = 1_000_000  # in a body; each becomes a Python object of about a hundred bytes
KINDS = ("string", "integer", "long", "double", "boolean", "date", "timestamp", "binary", "json")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BEYOND_MICROSECONDS = re.compile(r"(?<=[0-9][.,])[0-9]{6}([0-9]+)")  # what Python would cut off
_MICROSECOND: Final = timedelta(microseconds=1)
_RANGES: Final = {"integer": 2**31, "long": 2**63}
MISSING: Final = object()


class Undecodable(Exception):
    """Why a body cannot be read: `reason` in few words, the same for all of its kind, and `detail` of this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def too_many_values() -> Undecodable:
    """Return the refusal of a body with more than `MAX_VALUES` values."""
    return Undecodable("too many values", f"the body has more than {MAX_VALUES:,}")


class Number:
    """A number of JSON as it is written, where Python would keep another one: `1.10`, `1e400`, `-0`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Column(NamedTuple):
    """A column: its type is one of `KINDS` or decimal(p,s).

    Attributes:
        source: where its value stands, by default its name: a path, or the keys of one, each as it is.
        rounds: whether digits that the type has no place for are rounded, and not refused.
    """

    name: str
    kind: str
    is_optional: bool = False
    source: str | tuple[str, ...] = ""
    rounds: bool = False

    @property
    def path(self) -> str:
        """Where the value stands in the body."""
        return self.source if isinstance(self.source, str) and self.source else ".".join(self.source) or self.name

    @property
    def steps(self) -> tuple[str, ...]:
        """The keys on the way to the value, from the outermost: a dot in a path goes one level down."""
        return self.source if self.source and isinstance(self.source, tuple) else tuple(self.path.split("."))


class Decoder(Protocol):
    """Reads bodies of one message type."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it gives."""
        ...

    def decode(self, body: bytes | None) -> list[Any]:
        """The values of the columns.

        Raises:
            Undecodable: the body is not what it should be.
        """
        ...


def check_kind(kind: str) -> None:
    """Refuse a type that there is not.

    Raises:
        ValueError: with those that there are.
    """
    if kind in KINDS:
        return
    found = _DECIMAL.fullmatch(kind)
    if found is None:
        raise ValueError(f"'{kind}' is no type: there are {', '.join(KINDS)} and decimal(precision, scale)")
    if not 0 < int(found[1]) <= MOST_DIGITS or int(found[2]) > int(found[1]):
        raise ValueError(f"'{kind}' is no type: precision goes from 1 to {MOST_DIGITS}, and scale up to precision")


def digits(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for other types."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


class Projection:
    """The values of columns from nested fields."""

    def __init__(self, columns: Sequence[Column], *, refuse_extra: bool) -> None:
        self._ways = [(column, column.steps, _ambiguous(column)) for column in columns]
        self._taken = {steps[0] for _, steps, _ in self._ways} if refuse_extra else None

    def values(self, fields: Mapping[str, Any]) -> list[Any]:
        """One for each column.

        Raises:
            Undecodable: missing field, wrong type, extra field, ambiguous path.
        """
        if self._taken is not None and (extra := fields.keys() - self._taken):
            raise Undecodable("extra field", f"'{min(extra)}' has no column")
        found = []
        for column, steps, literal in self._ways:
            if literal in fields:
                keys = ", ".join(f'"{step}"' for step in steps)
                raise Undecodable(
                    "ambiguous path", f"'{literal}' is a key too: say from = [\"{literal}\"], or from = [{keys}]"
                )
            found.append(checked(column, find(fields, steps), convert))
        return found


def _ambiguous(column: Column) -> str | None:
    """The key that somebody may have meant with the column's path."""
    return column.path if isinstance(column.source, str) and len(column.steps) > 1 else None


def checked(column: Column, value: Any, conversion: Callable[[str, Any, bool], Any]) -> Any:
    """The value of one column, converted.

    Raises:
        Undecodable: missing field, wrong type, too deep.
    """
    if value is MISSING or value is None:
        if column.is_optional:
            return None
        raise Undecodable("missing field", f"'{column.path}' is {'null' if value is None else 'not there'}")
    try:
        return conversion(column.kind, value, column.rounds)
    except RecursionError:
        raise Undecodable("too deep", f"'{column.path}' is nested too deeply") from None
    except (ValueError, TypeError, ArithmeticError):
        raise Undecodable("wrong type", f"'{column.path}' is no {column.kind}: {_shown(value)}") from None


def find(fields: Any, steps: Sequence[str]) -> Any:
    """What stands at the end of a way of keys; MISSING where it ends before, or at a null.

    Raises:
        Undecodable: something on the way has no fields.
    """
    found = fields
    for number, step in enumerate(steps):
        if found is None:
            return MISSING
        if not isinstance(found, Mapping):
            raise Undecodable("wrong type", f"'{'.'.join(steps[:number])}' is no object: {_shown(found)}")
        if step not in found:
            return MISSING
        found = found[step]
    return found


def convert(kind: str, value: Any, rounds: bool = False) -> Any:
    """A value as JSON, Avro or Protobuf give it, as one of the column's type.

    `rounds`: whether digits that the type has no place for are rounded; else such a value is none.

    Raises:
        ValueError, TypeError, ArithmeticError: it is none.
    """
    if kind == "string" and isinstance(value, str | UUID):
        text = str(value)
        text.encode()  # a lone surrogate is no text
        return text
    if kind in _RANGES and isinstance(value, int) and not isinstance(value, bool):
        return _in_range(kind, value)
    if kind in _RANGES and isinstance(value, Number) and value.text == "-0":
        return 0
    if kind == "double" and isinstance(value, int | float | Decimal | Number) and not isinstance(value, bool):
        return _finite(float(value.text if isinstance(value, Number) else value))
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "date":
        return value if type(value) is date else date.fromisoformat(value)
    if kind == "timestamp":
        return _instant(value if isinstance(value, datetime) else _moment(value, rounds))
    if kind == "binary":
        return bytes(value) if isinstance(value, bytes) else _from_base64(value)
    if kind == "json":
        return as_json(value)
    if (places := digits(kind)) and isinstance(value, int | str | Decimal | Number) and not isinstance(value, bool):
        return _decimal(places, value, rounds)
    raise TypeError(kind)


def convert_text(kind: str, text: str, rounds: bool = False) -> Any:
    """A value that stands in XML, as one of the column's type.

    Raises:
        ValueError, ArithmeticError: it is none.
    """
    if kind == "string":
        return text
    text = text.strip()
    if kind in _RANGES:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError(text)
        return _in_range(kind, int(text))
    if kind == "double":
        return _finite(float(text)) if _NUMBER.fullmatch(text) else _no(text)
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}[text] if text in _BOOLEANS else _no(text)
    if kind == "json":
        return as_json(text)
    return convert(kind, text, rounds)


_BOOLEANS = ("true", "1", "false", "0")


def _no(text: str) -> Any:
    raise ValueError(text)


def as_json(value: Any) -> str:
    """A nested value as the text of JSON, its numbers as they were written.

    Raises:
        ValueError: it holds a number that JSON does not have, or a lone surrogate.
    """
    try:
        text = _WRITER.encode(value)
    except _HasDigitsError:
        text = _spelled(value)
    text.encode()
    return text


class _HasDigitsError(Exception):
    """There is a number that Python's own writer of JSON, which is ten times as fast, would change."""


def _plain(value: Any) -> Any:
    if isinstance(value, Number | Decimal):
        raise _HasDigitsError
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))


def _spelled(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode_basestring(str(key))}:{_spelled(one)}" for key, one in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_spelled(one) for one in value]) + "]"
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
    """In UTC, which a time without a zone is taken to be in."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _moment(text: str, rounds: bool) -> datetime:
    """ISO 8601 with as many digits of a second as stand there, of which six have a place."""
    beyond: list[str] = [digits for digits in _BEYOND_MICROSECONDS.findall(text) if digits.strip("0")]
    if not beyond:
        return datetime.fromisoformat(text)
    if not rounds or len(beyond) > 1:
        raise ValueError(text)
    more = _MICROSECOND if beyond[0] >= "5" else timedelta()
    return datetime.fromisoformat(text) + more


def _from_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None


def _decimal(places: tuple[int, int], value: int | str | Decimal | Number, rounds: bool) -> Decimal:
    precision, scale = places
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise ValueError(value)
    number = Decimal(value.text if isinstance(value, Number) else value)
    if not number.is_finite():
        raise ValueError(value)
    exact = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=80))
    if (exact != number and not rounds) or exact.adjusted() >= precision - scale:
        raise OverflowError(value)
    return exact


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, something too deep
        return type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
