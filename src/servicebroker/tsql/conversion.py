"""Conversions of values that are in Python: assignments, parameters, message bodies."""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from math import isfinite, isinf
from typing import Any
from uuid import UUID

from servicebroker.model import number_bounds
from servicebroker.model.xml import NotXml, declares_encoding
from servicebroker.tsql.date_texts import parse_date_text
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import (
    BINARIES,
    MONEY,
    NATIONAL,
    NO_ROOM,
    NVARCHAR,
    PADDED,
    STRINGS,
    VARIANT,
    XML,
    SqlType,
    no_room,
    parse_type,
)
from servicebroker.tsql.xml_text import write_xml

_INTEGER_SIZES_BYTES = {"bit": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
_UNDEFINED_CP1252_BYTES = frozenset(
    (129, 141, 143, 144, 157)
)  # bytes without a character in code page 1252; SQL Server keeps them
_ROUNDING_CONTEXT = Context(prec=100, rounding=ROUND_HALF_UP)  # precision above that of any type
_CODE_PAGE_STRINGS = ("varchar", "char", "text")
_BYTE_ORDER_MARK = "\ufeff"
_WHOLE_TEXT = re.compile(r"[-+]?[0-9]*")  # digits of other alphabets are no number
_BLANKS = " \t\r\n"  # around a whole number, as in tsql.whole_of_text
_DATETIME_ZERO = datetime(1900, 1, 1)  # the datetime of number 0


def _keep_undefined_byte(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Codec error handler: keep a byte that code page 1252 does not define, and write "?" for other characters."""
    if isinstance(problem, UnicodeDecodeError):
        return chr(problem.object[problem.start]), problem.start + 1
    assert isinstance(problem, UnicodeEncodeError)
    point = ord(problem.object[problem.start])
    return bytes((point,)) if point in _UNDEFINED_CP1252_BYTES else b"?", problem.start + 1


_UNDEFINED_BYTES_HANDLER = "servicebroker_open_bytes"
codecs.register_error(_UNDEFINED_BYTES_HANDLER, _keep_undefined_byte)


def convert(value: object, source: SqlType | None, target: SqlType) -> Any:
    """Convert a value to another type, cut or rounded to its size. NULL stays NULL.

    Raises:
        TsqlError: 245, 8114, 8115, 8169, 241, 242, 9420 the value cannot be converted; 206 the type cannot.
    """
    if value is None:
        return None
    if source == VARIANT and target != VARIANT:
        value, source = from_variant(str(value))
    name = target.name
    if name in STRINGS:
        text = _to_text(value, source, name in NATIONAL)
        if (
            isinstance(value, int | float | Decimal | UUID)
            and target.length is not None
            and 0 <= target.length < len(text)
        ):
            text = _without_room(value, source, target)
        return _fit_text(text, target)
    if name in BINARIES:
        is_string = isinstance(value, str | bytes | bytearray | memoryview)
        return (_fit_bytes if is_string else _fit_bytes_right)(_to_bytes(value, source), target)
    return _CONVERTERS[name](value, source, target)


def read_offset(value: str | datetime) -> datetime:
    """Return a datetimeoffset that came as text with its instant and its offset in minutes, or as an instant."""
    if isinstance(value, datetime):
        return value
    text, _, minutes = value.rpartition(" ")
    instant = datetime.fromisoformat(text).replace(tzinfo=UTC)
    try:
        return instant.astimezone(timezone(timedelta(minutes=int(minutes))))
    except OverflowError:  # beyond year 1 or 9999 on that clock
        return instant


def offset_minutes(value: object) -> int | None:
    """Return the minutes that the clock of a datetimeoffset is ahead of UTC; None for NULL."""
    offset = value.utcoffset() if isinstance(value, datetime) else None
    return None if offset is None else round(offset.total_seconds() / 60)


def from_variant(encoded: str) -> tuple[Any, SqlType]:
    """Decode a sql_variant, stored as `int:5`, into its value and type."""
    kind, _, text = encoded.partition(":")
    sql_type = parse_type(kind)
    if sql_type.name in STRINGS:
        return text, sql_type
    if sql_type.name in BINARIES:
        return bytes.fromhex(text), sql_type
    if sql_type.name == "datetimeoffset":
        return datetime.fromisoformat(text), sql_type
    return convert(text, _ANY_TEXT, sql_type), sql_type


_ANY_TEXT = SqlType("nvarchar", -1)


def _without_room(value: float | Decimal | UUID, source: SqlType | None, target: SqlType) -> str:
    """Return the mark of an int for a string type that is too short for it. No digits are cut off.

    Raises:
        TsqlError: 232, 234, 292, 8115, 8170 all other values.
    """
    if source is None:
        source = next(sql_type for kind, sql_type in _PLAIN_TYPES if isinstance(value, kind))
    refusal = no_room(source, target)
    if refusal is None:
        return NO_ROOM
    raise TsqlError(refusal.number, refusal.text.format(value=f"{value:.6f}" if isinstance(value, float) else value))


def _to_variant(value: object, source: SqlType | None, target: SqlType) -> str:
    """Encode a value and its type as a sql_variant."""
    if source == VARIANT:
        return str(value)
    sql_type = source or next(sql_type for kind, sql_type in _PLAIN_TYPES if isinstance(value, kind))
    if sql_type.length == -1:
        sql_type = sql_type._replace(length=4000 if sql_type.name in NATIONAL else 8000)
    if isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value).hex()
    elif isinstance(value, datetime):
        text = (
            f"{value.astimezone(UTC) if value.tzinfo else value:%Y-%m-%d %H:%M:%S.%f}{'+00:00' if value.tzinfo else ''}"
        )
    elif isinstance(value, float):
        text = repr(value)
    elif isinstance(value, Decimal):
        text = format(value, "f")
    else:
        text = _to_text(value, sql_type, True)
    return f"{'nvarchar(128)' if sql_type.name == 'sysname' else sql_type}:{text}"


_PLAIN_TYPES: tuple[tuple[type, SqlType], ...] = (
    (str, SqlType("nvarchar", 4000)),
    (bytes, SqlType("varbinary", 8000)),
    (UUID, SqlType("uniqueidentifier")),
    (int, SqlType("int")),
    (float, SqlType("float")),
    (Decimal, SqlType("decimal", None, 38, 10)),
    (datetime, SqlType("datetime")),
    (date, SqlType("date")),
    (time, SqlType("time", None, None, 7)),
)


def _to_text(value: object, source: SqlType | None, national: bool) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if national:
            return (data + b"\0" * (len(data) % 2)).decode("utf-16-le", "replace")
        return data.decode("cp1252", _UNDEFINED_BYTES_HANDLER)
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, UUID):
        return str(value).upper()
    if isinstance(value, datetime):
        if source is not None and source.name in ("datetime", "smalldatetime"):
            hour = value.strftime("%I").lstrip("0").rjust(2)
            return f"{value:%b} {value.day:2d} {value.year} {hour}:{value:%M%p}"
        return f"{value:%Y-%m-%d %H:%M:%S}{_fraction(value, source)}{_offset_text(value)}"
    if isinstance(value, time):
        return f"{value:%H:%M:%S}{_fraction(value, source)}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Decimal):
        return format(_money_at_display_scale(value, source), "f")
    return str(value)


def _float_text(value: float) -> str:
    """Format a float with six digits and a three-digit exponent, as tsql.float_text does in PostgreSQL."""
    mantissa, _, exponent = format(value or 0.0, ".6g").partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:]:0>3}" if exponent else mantissa


def _money_at_display_scale(value: Decimal, source: SqlType | None) -> Decimal:
    """Round money to two digits, as tsql.money_text does in PostgreSQL. A decimal keeps its scale."""
    is_money = source is not None and source.name in MONEY
    return _round_decimal(value, 2) if is_money else value


def _round_decimal(value: Decimal, scale: int) -> Decimal:
    """Round to `scale` digits as PostgreSQL rounds a numeric: halves away from zero, no negative zero."""
    rounded = value.quantize(Decimal(1).scaleb(-scale), context=_ROUNDING_CONTEXT)
    return rounded or abs(rounded)


def _fraction(value: datetime | time, source: SqlType | None) -> str:
    """Return the fraction of a second with as many digits as the type has."""
    digits = 7 if source is None or source.scale is None else source.scale
    return f".{value.microsecond:06}0"[: digits + 1] if digits else ""


def _fit_text(text: str, target: SqlType) -> str:
    """Cut or pad a string to the length of its type."""
    length = target.length
    if target.name == "xml" or length is None or length < 0:
        return text
    return text[:length].ljust(length) if target.name in PADDED else text[:length]


def _to_bytes(value: object, source: SqlType | None) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        if source is not None and source.name in _CODE_PAGE_STRINGS:
            return value.encode("cp1252", _UNDEFINED_BYTES_HANDLER)
        mark = b"\xff\xfe" if source is not None and source.name == "xml" else b""  # byte order mark of UTF-16
        return mark + value.encode("utf-16-le", "surrogatepass")
    if isinstance(value, UUID):
        return value.bytes_le
    if isinstance(value, int):
        size = _INTEGER_SIZES_BYTES.get(source.name if source else "int", 4)
        try:
            return int(value).to_bytes(size, "big", signed=size > 1)
        except OverflowError:
            raise _arithmetic_overflow("varbinary") from None
    if isinstance(value, Decimal) and source is not None and source.name in MONEY:
        return int(value.scaleb(4)).to_bytes(8 if source.name == "money" else 4, "big", signed=True)
    if isinstance(value, Decimal) and source is not None and source.name == "decimal":
        return _decimal_bytes(value, source.precision or 18, source.scale or 0)
    if isinstance(value, float) and source is not None:
        return struct.pack(">f" if source.name == "real" else ">d", value)
    raise _type_clash(source, "varbinary")


def _decimal_bytes(value: Decimal, precision: int, scale: int) -> bytes:
    """Return precision, scale, zero, sign, and the digits in groups of four bytes, as tsql.bytes_of_decimal does."""
    digits = int(abs(value).scaleb(scale, context=_ROUNDING_CONTEXT))
    groups = max(1, -(-digits.bit_length() // 32))
    return bytes((precision, scale, 0, value >= 0)) + digits.to_bytes(4 * groups, "little")


def _fit_bytes(data: bytes, target: SqlType) -> bytes:
    """Cut or pad bytes on the right to the length of their type."""
    length = target.length
    if length is None or length < 0:
        return data
    return data[:length].ljust(length, b"\0") if target.name == "binary" else data[:length]


def _fit_bytes_right(data: bytes, target: SqlType) -> bytes:
    """Cut or pad bytes on the left, as conversions from numbers do."""
    length = target.length
    if length is None or length < 0:
        return data
    return data[-length:].rjust(length, b"\0") if target.name == "binary" else data[-length:]


def _to_integer(value: object, source: SqlType | None, target: SqlType) -> int:
    low, high = number_bounds.WHOLE[target.name]
    if isinstance(value, str):
        text = value.strip(_BLANKS)
        if not _WHOLE_TEXT.fullmatch(text):
            raise _conversion_failed(value, source, target)
        number = 0 if text in ("", "-", "+") else int(text[:60])
    elif isinstance(value, bytes | bytearray | memoryview):
        size = _INTEGER_SIZES_BYTES[target.name]
        number = int.from_bytes(bytes(value)[-size:].rjust(size, b"\0"), "big", signed=size > 1)
    elif isinstance(value, int | float | Decimal):
        if isinstance(value, float) and not isfinite(value):
            raise _overflow_error(value, source, target)
        number = int(value)
    elif isinstance(value, datetime) and value.tzinfo is None:
        number = round((value - _DATETIME_ZERO) / timedelta(days=1))
    else:
        raise _type_clash(source, target.name)
    if not low <= number <= high:
        raise _overflow_error(value, source, target)
    return number


def _overflow_error(value: object, source: SqlType | None, target: SqlType) -> TsqlError:
    """Build error 220, 232, 244, 248 or 8115, by the type of the value, as tsql.whole does in PostgreSQL."""
    name = target.name
    if isinstance(value, str) and name != "bigint":
        kind = {"tinyint": "INT1", "smallint": "INT2"}.get(name, name)
        more = "" if name == "int" else " Use a larger integer column."
        sql_type = source.name if source else "varchar"
        return TsqlError(
            248 if name == "int" else 244,
            f"The conversion of the {sql_type} value '{value[:60]}' overflowed an {kind} column.{more}",
        )
    if isinstance(value, float) and isfinite(value):
        return TsqlError(232, f"Arithmetic overflow error for type {name}, value = {value:.6f}.")
    if isinstance(value, int) and name in ("tinyint", "smallint"):
        return TsqlError(220, f"Arithmetic overflow error for data type {name}, value = {value}.", state=2)
    return _arithmetic_overflow(name)


def _arithmetic_overflow(name: str) -> TsqlError:
    return TsqlError(8115, f"Arithmetic overflow error converting expression to data type {name}.", state=2)


def _to_bit(value: object, source: SqlType | None, target: SqlType) -> int:
    if isinstance(value, str):
        text = value.strip(_BLANKS).upper()
        if text in ("TRUE", "FALSE"):
            return int(text == "TRUE")
        if not _WHOLE_TEXT.fullmatch(text):
            raise _conversion_failed(value, source, target)
        return int(_to_integer(value, source, SqlType("int")) != 0)
    if isinstance(value, int | float | Decimal):
        return int(value != 0)
    raise _type_clash(source, "bit")


def _to_decimal(value: object, source: SqlType | None, target: SqlType) -> Decimal:
    if isinstance(value, str) and not _DECIMAL_TEXT.fullmatch(value.strip(" ")):
        raise _conversion_error(source, "numeric")
    number = _parse_decimal(value, source, target)
    precision, scale = target.precision or 18, target.scale or 0
    limit = Decimal(10) ** (precision - scale)
    if not number.is_finite() or abs(number) >= limit or abs(rounded := _round_decimal(number, scale)) >= limit:
        sql_type = source.name if source else "expression"
        raise TsqlError(8115, f"Arithmetic overflow error converting {sql_type} to data type numeric.", state=8)
    return rounded


_DECIMAL_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_FLOAT_TEXT = re.compile(rf"{_DECIMAL_TEXT.pattern}([eE][+-]?\d+)?", re.ASCII)
_MONEY_TEXT = re.compile(r"([+-]?)[$\u20ac\u00a3]?([\d,]*\.?\d*)", re.ASCII)


def _parse_decimal(value: object, source: SqlType | None, target: SqlType) -> Decimal:
    try:
        return Decimal(value)  # type: ignore[arg-type]
    except (InvalidOperation, TypeError, ValueError):
        raise _conversion_error(source, target.name) from None


def _to_money(value: object, source: SqlType | None, target: SqlType) -> Decimal:
    if isinstance(value, str):
        written = _MONEY_TEXT.fullmatch(value.strip(" "))
        if written is None:
            raise TsqlError(
                235 if target.name == "money" else 293,
                f"Cannot convert a char value to {target.name}. The char value has incorrect syntax.",
            )
        digits = written[2].replace(",", "")
        value = written[1] + digits if digits.strip(".") else "0"
    number = _parse_decimal(value, source, target)
    low, high = number_bounds.MONEY[target.name]
    is_near = (
        number.is_finite() and low - 1 <= number <= high + 1
    )  # a number far out of range has too many digits to be rounded
    if not is_near or not low <= (rounded := _round_decimal(number, 4)) <= high:
        raise _arithmetic_overflow(target.name)
    return rounded


def _to_float(value: object, source: SqlType | None, target: SqlType) -> float:
    if isinstance(value, str):
        value = value.strip(" ") or "0"
        if not _FLOAT_TEXT.fullmatch(value):
            raise _conversion_error(source, target.name)
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise _arithmetic_overflow(target.name) from None
    except (TypeError, ValueError):
        raise _conversion_error(source, target.name) from None
    if isinf(number) and not (isinstance(value, float) and isinf(value)):
        raise _arithmetic_overflow(target.name)
    return number


def _to_identifier(value: object, source: SqlType | None, target: SqlType) -> UUID:
    if isinstance(value, UUID):
        return value
    if isinstance(value, bytes) and len(value) <= 16:
        return UUID(bytes_le=value.ljust(16, b"\0"))
    text = str(value).strip()
    if isinstance(value, str) and re.match(r"\{?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", text):
        return UUID(text.lstrip("{")[:36])
    raise TsqlError(8169, "Conversion failed when converting from a character string to uniqueidentifier.", state=2)


def _offset_text(value: datetime) -> str:
    """Return the offset of a datetimeoffset as text after a blank, '' for a value without one."""
    minutes = offset_minutes(value)
    if minutes is None:
        return ""
    return f" {'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def _to_datetimeoffset(value: object, source: SqlType | None, target: SqlType) -> datetime:
    """Return a datetimeoffset, which keeps the offset of another one and that of a text."""
    zone, clock = timezone(timedelta(minutes=offset_minutes(value) or 0)), value
    if isinstance(value, str) and (match := _OFFSET.search(value)):
        ahead = _ahead(match)
        if ahead > _LARGEST_OFFSET:
            raise _no_date_in_text()
        zone = timezone(-ahead if match[1] == "-" else ahead)
        clock = value[: match.start()]
    elif isinstance(value, str) and ":" in value and value.rstrip().endswith(("Z", "z")):
        clock = value.rstrip()[:-1]
    elif isinstance(value, datetime):
        clock = value.replace(tzinfo=None)
    moment = _to_datetime(clock, source, target._replace(name="datetime2"))
    assert isinstance(moment, datetime)
    return moment.replace(tzinfo=zone)


_OFFSET = re.compile(r"(?<=\d)\s*([+-])(\d{1,2}):(\d\d)\s*$")
_LARGEST_OFFSET = timedelta(hours=14)


def _to_datetime(value: object, source: SqlType | None, target: SqlType) -> object:
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=None)  # the time on its own clock
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)
    elif isinstance(value, str):
        moment = _parse_datetime(_without_offset(value, target).strip(), target)
    elif isinstance(value, int | float | Decimal) and target.name in _LEGACY_DATETIMES:
        if not -53690 <= value < 2958464:
            raise _arithmetic_overflow(target.name)
        moment = _DATETIME_ZERO + timedelta(days=float(value))
    else:
        raise _type_clash(source, target.name)
    if target.name == "date":
        return moment.date()
    if target.name in _LEGACY_DATETIMES and moment < datetime(1753, 1, 1):
        raise _date_out_of_range(source or value, target)
    if target.name == "smalldatetime":  # SQL Server rounds up from 29.999 seconds
        if not _DATETIME_ZERO <= (moment + timedelta(seconds=30.001)) < datetime(2079, 6, 7):
            raise _date_out_of_range(source or value, target)
        return (moment + timedelta(seconds=30.001)).replace(second=0, microsecond=0)
    moment = _round_to_scale(moment, 3 if target.name == "datetime" else target.scale)
    if target.name == "time":
        return moment.time()
    return moment


def _without_offset(text: str, target: SqlType) -> str:
    """Leave out Z, and the offset where the type has its own clock, as tsql.moment_of does."""
    if ":" in text and text.rstrip().endswith(("Z", "z")):
        return text.rstrip()[:-1]
    match = None if target.name in _LEGACY_DATETIMES else _OFFSET.search(text)
    return text if match is None or _ahead(match) > _LARGEST_OFFSET else text[: match.start()]


def _ahead(match: re.Match[str]) -> timedelta:
    return timedelta(hours=int(match[2]), minutes=int(match[3]))


def _round_to_scale(moment: datetime, digits: int | None) -> datetime:
    """Round to a number of fractional digits, as PostgreSQL does. See tsql.no_later for the maximum."""
    step = 10 ** (6 - min(6, 7 if digits is None else digits))
    try:
        return moment.replace(microsecond=0) + timedelta(microseconds=(moment.microsecond + step // 2) // step * step)
    except OverflowError:
        return moment.replace(microsecond=moment.microsecond // step * step)


_LEGACY_DATETIMES = ("datetime", "smalldatetime")
# the shape of a date or time, also of an impossible one; tsql.datetime_of has the same pattern
_DATETIME_SHAPE = re.compile(
    r"(\d{8}|\d{1,4}([-/.])\d{1,2}\2\d{1,4})?(^|[ T]|$)(\d{1,2}:\d{1,2}(:\d{1,2}([.:]\d+)?)?( ?[AP]M)?)?", re.IGNORECASE
)


def _date_out_of_range(source: object, target: SqlType) -> TsqlError:
    """Build error 242: the date is outside the range of datetime. The newer types raise 241."""
    sql_type = source.name if isinstance(source, SqlType) else "varchar" if isinstance(source, str) else "datetime2"
    return TsqlError(
        242,
        f"The conversion of a {sql_type} data type to a {target.name} data type resulted in an out-of-range value.",
        state=3,
    )


def _parse_datetime(text: str, target: SqlType) -> datetime:
    try:
        return parse_date_text(text, is_legacy=target.name in _LEGACY_DATETIMES)
    except ValueError:
        if target.name in _LEGACY_DATETIMES and _DATETIME_SHAPE.fullmatch(text):
            raise _date_out_of_range(text, target) from None
        raise _no_date_in_text() from None


def _no_date_in_text() -> TsqlError:
    return TsqlError(241, "Conversion failed when converting date and/or time from character string.")


def _to_xml(value: object, source: SqlType | None, target: SqlType) -> str:
    """Return XML content as SQL Server writes it: without its XML declaration and without text of white space alone.

    A declared encoding must fit the type: UTF-16 for nvarchar, any other for varchar.
    """
    if not isinstance(value, str | bytes | bytearray | memoryview):
        raise _type_clash(source, "xml")
    if source == XML and isinstance(value, str):
        return value
    if not isinstance(value, str):
        data = bytes(value)
    elif declares_encoding(text := value.removeprefix(_BYTE_ORDER_MARK)):
        is_code_page = source is not None and source.name in _CODE_PAGE_STRINGS
        data = _to_bytes(text if is_code_page else _BYTE_ORDER_MARK + text, source if is_code_page else NVARCHAR)
    else:
        data = text.encode("utf-8", "surrogatepass")
    try:
        return write_xml(data)
    except NotXml as problem:
        raise TsqlError(problem.number, str(problem)) from None


def _conversion_error(source: SqlType | None, target: str) -> TsqlError:
    return TsqlError(8114, f"Error converting data type {source.name if source else 'varchar'} to {target}.", state=5)


def _conversion_failed(value: str, source: SqlType | None, target: SqlType) -> TsqlError:
    kind = source.name if source else "varchar"
    return TsqlError(
        245, f"Conversion failed when converting the {kind} value '{value[:60]}' to data type {target.name}."
    )


def _type_clash(source: SqlType | None, target: str) -> TsqlError:
    kind = source.name if source else "the value"
    return TsqlError(206, f"Operand type clash: {kind} is incompatible with {target}", state=2)


_CONVERTERS: dict[str, Callable[[object, SqlType | None, SqlType], object]] = {
    **dict.fromkeys(number_bounds.WHOLE, _to_integer),
    "bit": _to_bit,
    "decimal": _to_decimal,
    **dict.fromkeys(number_bounds.MONEY, _to_money),
    **dict.fromkeys(("float", "real"), _to_float),
    "uniqueidentifier": _to_identifier,
    **dict.fromkeys(("date", "time", "datetime", "smalldatetime", "datetime2"), _to_datetime),
    "datetimeoffset": _to_datetimeoffset,
    "xml": _to_xml,
    "sql_variant": _to_variant,
}
