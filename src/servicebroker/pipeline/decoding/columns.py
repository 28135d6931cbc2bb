"""Columns of a decoded body, and how a value that was found becomes a value of its column's type."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, Protocol

KINDS = ("string", "integer", "long", "double", "boolean", "date", "timestamp", "binary", "json")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_RANGES: Final = {"integer": 2**31, "long": 2**63}
MISSING: Final = object()


class Undecodable(Exception):
    """Why a body cannot be read: `reason` in few words, the same for all of its kind, and `detail` of this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Column(NamedTuple):
    """A column: its type is one of `KINDS` or decimal(p,s); `source` is where its value stands, by default its name."""

    name: str
    kind: str
    is_optional: bool = False
    source: str = ""

    @property
    def path(self) -> str:
        """Where the value stands in the body."""
        return self.source or self.name


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
    if not 0 < int(found[1]) <= 38 or int(found[2]) > int(found[1]):
        raise ValueError(f"'{kind}' is no type: precision goes from 1 to 38, and scale up to precision")


def digits(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for other types."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def project(fields: Mapping[str, Any], columns: Sequence[Column], *, refuse_extra: bool) -> list[Any]:
    """The values of columns from nested fields; a dot in a path goes one level down.

    Raises:
        Undecodable: missing field, wrong type, extra field.
    """
    if refuse_extra:
        extra = fields.keys() - {column.path.split(".")[0] for column in columns}
        if extra:
            raise Undecodable("extra field", f"'{sorted(extra)[0]}' has no column")
    return [checked(column, _find(fields, column.path), convert) for column in columns]


def checked(column: Column, value: Any, conversion: Any) -> Any:
    """The value of one column, converted.

    Raises:
        Undecodable: missing field, wrong type.
    """
    if value is MISSING or value is None:
        if column.is_optional:
            return None
        raise Undecodable("missing field", f"'{column.path}' is {'null' if value is None else 'not there'}")
    try:
        return conversion(column.kind, value)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise Undecodable("wrong type", f"'{column.path}' is no {column.kind}: {_shown(value)}") from None


def _find(fields: Mapping[str, Any], path: str) -> Any:
    if path in fields:
        return fields[path]
    found: Any = fields
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return MISSING
        found = found[step]
    return found


def convert(kind: str, value: Any) -> Any:
    """A value as JSON, Avro or Protobuf give it, as one of the column's type.

    Raises:
        ValueError, TypeError, ArithmeticError: it is none.
    """
    if kind == "string" and isinstance(value, str):
        value.encode()  # a lone surrogate is no text
        return value
    if kind in _RANGES and isinstance(value, int) and not isinstance(value, bool):
        return _in_range(kind, value)
    if kind == "double" and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _finite(float(value))
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "date":
        return value if type(value) is date else date.fromisoformat(value)
    if kind == "timestamp":
        return _instant(value if isinstance(value, datetime) else datetime.fromisoformat(value))
    if kind == "binary":
        return bytes(value) if isinstance(value, bytes) else _from_base64(value)
    if kind == "json":
        return as_json(value)
    if (places := digits(kind)) and isinstance(value, int | str | Decimal) and not isinstance(value, bool):
        return _decimal(places, value)
    raise TypeError(kind)


def convert_text(kind: str, text: str) -> Any:
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
        return _finite(float(text))
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}[text] if text in _BOOLEANS else _no(text)
    if kind == "json":
        return as_json(text)
    return convert(kind, text)


_BOOLEANS = ("true", "1", "false", "0")


def _no(text: str) -> Any:
    raise ValueError(text)


def as_json(value: Any) -> str:
    """A nested value as the text of JSON.

    Raises:
        ValueError: it holds a number that JSON does not have, or a lone surrogate.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))
    text.encode()
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return int(value) if -(2**53) < value < 2**53 and value == value.to_integral_value() else float(value)
    return str(value)


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


def _from_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as problem:
        raise ValueError(str(problem)) from None


def _decimal(places: tuple[int, int], value: int | str | Decimal) -> Decimal:
    precision, scale = places
    number = Decimal(value) if not isinstance(value, str) else Decimal(value.strip())
    if not number.is_finite():
        raise ValueError(value)
    exact = number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=80))
    if exact != number or exact.adjusted() >= precision - scale:
        raise OverflowError(value)
    return exact


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, something too deep
        return type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
