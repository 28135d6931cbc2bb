"""Lenient conversion, for columns with `coerce` or `epoch`: accepts other spellings of a value, such as "1" for 1.

The spellings that each type accepts: "Strict and lenient columns" in docs/reference/pipeline-file.md.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from servicebroker.pipeline.decoding.json_number import JsonNumber

EPOCHS: Final = {
    "s": Decimal(1_000_000),
    "ms": Decimal(1_000),
    "us": Decimal(1),
    "ns": Decimal("0.001"),
}  # microseconds
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DIGITS = 25  # an integer with more digits is out of the range of every type
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_CONTEXT = Context(prec=80)


def coerce(kind: str, value: Any, *, is_lenient: bool, epoch: str, rounds: bool) -> Any:
    """Return a value that a strict column of the plain type `kind` accepts, or else the value unchanged.

    Args:
        is_lenient: the column has `coerce`. If False, only numbers in a timestamp with `epoch` are changed.
        epoch: unit of numbers that stand for a timestamp; "" for none.
        rounds: fractions of a microsecond are rounded.

    Raises:
        ValueError, ArithmeticError: the value cannot be of the type.
    """
    if kind == "timestamp":
        return _timestamp(value, epoch, rounds=rounds) if epoch or is_lenient else value
    if not is_lenient:
        return value
    text = _text_of(value)
    if kind == "string":
        return value if text is None else text
    if kind in ("integer", "long"):
        return _whole(text, value)
    if kind == "double" or kind.startswith("decimal"):
        is_number = isinstance(value, str) and _NUMBER.fullmatch(value.strip()) is not None
        return Decimal(value.strip()) if is_number else value
    if kind == "boolean":
        return _BOOLEANS.get((text or "").strip().lower(), value)
    if kind == "date":
        return _date(value)
    if kind == "binary" and isinstance(value, str):
        plain = "".join(value.split()).translate(str.maketrans("-_", "+/"))
        return plain + "=" * (-len(plain) % 4)
    return value


def _text_of(value: Any) -> str | None:
    """Return the text of a string, number or boolean, as in JSON; None for other values."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if isinstance(value, str | int | float) else None


def _whole(text: str | None, value: Any) -> Any:
    """Return the integer for 1.0, 1e3 or a string of digits; other values unchanged."""
    if text is None or isinstance(value, bool) or not _NUMBER.fullmatch(text.strip()):
        return value
    number = Decimal(text.strip())
    if number.adjusted() > _MAX_DIGITS or number != number.to_integral_value():
        return value
    return int(number)


def _date(value: Any) -> Any:
    """Return the date for a midnight; dates unchanged.

    Raises:
        ValueError: the time is not midnight.
    """
    if isinstance(value, str):
        text = value.strip()
        if len(text) <= len("2026-01-02"):
            return text
        value = datetime.fromisoformat(f"{text[:-1]}Z" if text.endswith("z") else text)
    if isinstance(value, datetime):
        if value.time() != datetime.min.time():
            raise ValueError(value)
        return value.date()
    return value


def _timestamp(value: Any, epoch: str, *, rounds: bool) -> Any:
    """Return the time for a number of units since 1970, and midnight for a date; other values unchanged."""
    text = _text_of(value)
    if epoch and text is not None and not isinstance(value, bool) and _NUMBER.fullmatch(text.strip()):
        exact = _CONTEXT.multiply(Decimal(text.strip()), EPOCHS[epoch])
        if exact.adjusted() > _MAX_DIGITS:
            raise OverflowError(value)
        microseconds = exact.to_integral_value(ROUND_HALF_UP)
        if microseconds != exact and not rounds:
            raise ValueError(value)
        return _EPOCH_START + timedelta(microseconds=int(microseconds))
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value.strip() if isinstance(value, str) else value
