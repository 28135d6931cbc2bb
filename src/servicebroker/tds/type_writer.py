"""Types and values of results: from types of T-SQL and Python values to the bytes of TDS."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.tds.byte_reader import encode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.type_reader import (
    CODE_PAGE,
    DAY_TICKS_300,
    EPOCH_1900,
    MAX_LENGTH,
    NULL_PLP,
    time_bytes,
)
from servicebroker.tsql.types import BIGINT, BINARIES, FLOAT, INT, NVARCHAR, STRINGS, VARBINARY, SqlType

COLLATION = bytes.fromhex("0904D00034")  # SQL_Latin1_General_CP1_CI_AS

Encoded = bytes | tuple[bytes, ...]  # the parts of a long value, which are not joined
Encoder = Callable[[Any], Encoded]

_NULL_CHUNKS = struct.pack("<Q", NULL_PLP)
_NULL_BYTE, _NULL_SHORT, _NULL_LONG = b"\0", b"\xff\xff", struct.pack("<I", 0)
_END_OF_CHUNKS = struct.pack("<I", 0)
_EMPTY_CHUNKS = struct.pack("<Q", 0) + _END_OF_CHUNKS
_MAX_CHUNK = 0x7FFFFFFF
_MAX_JOINED_BYTES = 8 * 1024  # a longer value is written in parts, without a copy
_SHORT_LENGTH, _CHUNK_HEAD = struct.Struct("<H").pack, struct.Struct("<QI").pack
_ANY_DECIMAL = SqlType("decimal", None, 38, 10)
_OLD_LONG_TYPES = {"text": SqlType("varchar", -1), "ntext": NVARCHAR, "image": VARBINARY}


class ColumnType(NamedTuple):
    """A type to write.

    Attributes:
        sql_type: the type of T-SQL.
        info: its TYPE_INFO.
        encode: returns a value with its length. Raises TypeError, ValueError, OverflowError or struct.error for a
            value that the type cannot hold.
        has_table: True if the name of a table follows the type in COLMETADATA.
    """

    sql_type: SqlType
    info: bytes
    encode: Encoder
    has_table: bool = False


def _nullable(null: bytes, encode: Callable[[Any], Encoded]) -> Encoder:
    return lambda value: null if value is None else encode(value)


# ---------------------------------------------------------------- values


def _packed(layout: str, convert: Callable[[Any], Any]) -> Encoder:
    packer = struct.Struct(layout)
    length = bytes([packer.size])
    return _nullable(_NULL_BYTE, lambda value: length + packer.pack(convert(value)))


def _whole(value: Any) -> int:
    if isinstance(value, str) or value != int(value):
        raise ValueError(value)
    return int(value)


def _ten_thousandths(value: Any) -> int:
    scaled = Decimal(value).scaleb(4)
    return _whole(scaled)


def _money(value: Any) -> bytes:
    amount = _ten_thousandths(value)
    return b"\x08" + struct.pack("<iI", amount >> 32, amount & 0xFFFFFFFF)


def _decimal(precision: int, scale: int) -> Encoder:
    size = 4 if precision <= 9 else 8 if precision <= 19 else 12 if precision <= 28 else 16
    length = bytes([size + 1])

    def encode(value: Any) -> bytes:
        sign, digits, exponent = Decimal(value).as_tuple()
        if not isinstance(exponent, int):
            raise ValueError(value)
        number = int("".join(map(str, digits)) or "0")
        shift = exponent + scale
        if shift < 0 and number % int(10**-shift):
            raise ValueError(value)
        number = number * int(10**shift) if shift >= 0 else number // int(10**-shift)
        return length + (b"\0" if sign else b"\1") + number.to_bytes(size, "little")

    return _nullable(_NULL_BYTE, encode)


def _datetime(value: datetime) -> bytes:
    if value.tzinfo is not None:
        raise ValueError(value)
    days = value.toordinal() - EPOCH_1900.toordinal()
    since_midnight = value - datetime.combine(value.date(), time())
    ticks = round(since_midnight / timedelta(microseconds=1) * 3 / 10_000)
    if ticks == DAY_TICKS_300:
        days, ticks = days + 1, 0
    return b"\x08" + struct.pack("<iI", days, ticks)


def _smalldatetime(value: datetime) -> bytes:
    days = value.toordinal() - EPOCH_1900.toordinal()
    return b"\x04" + struct.pack("<HH", days, value.hour * 60 + value.minute)


def _date(value: date) -> bytes:
    return b"\x03" + _date_bytes(value)


def _date_bytes(value: date) -> bytes:
    return (value.toordinal() - 1).to_bytes(3, "little")


def _time_of_day(value: time | datetime, scale: int) -> bytes:
    microseconds = (value.hour * 3600 + value.minute * 60 + value.second) * 1_000_000 + value.microsecond
    ticks = microseconds * 10 // int(10 ** (7 - scale))
    return ticks.to_bytes(time_bytes(scale), "little")


def _time(scale: int) -> Encoder:
    length = bytes([time_bytes(scale)])
    return _nullable(_NULL_BYTE, lambda value: length + _time_of_day(value, scale))


def _datetime2(scale: int) -> Encoder:
    length = bytes([time_bytes(scale) + 3])

    def encode(value: datetime) -> bytes:
        if value.tzinfo is not None:
            raise ValueError(value)
        return length + _time_of_day(value, scale) + _date_bytes(value)

    return _nullable(_NULL_BYTE, encode)


def _datetimeoffset(scale: int) -> Encoder:
    length = bytes([time_bytes(scale) + 5])

    def encode(value: datetime) -> bytes:
        offset = value.utcoffset()
        if offset is None:
            raise ValueError(value)
        instant = value.astimezone(UTC)
        minutes = struct.pack("<h", round(offset.total_seconds() / 60))
        return length + _time_of_day(instant, scale) + _date_bytes(instant) + minutes

    return _nullable(_NULL_BYTE, encode)


def _guid(value: Any) -> bytes:
    if not isinstance(value, UUID):
        raise TypeError(value)
    content = value.bytes  # bytes_le takes four times as long
    return b"\x10" + content[3::-1] + content[5:3:-1] + content[7:5:-1] + content[8:]


def _wide(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(value)
    return encode_utf16(value)


def _narrow(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(value)
    return value.encode(CODE_PAGE, "replace")


def _raw(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(value)
    return value if isinstance(value, bytes) else bytes(value)


def _short(encode: Callable[[Any], bytes], most_bytes: int) -> Encoder:
    def encode_short(value: Any) -> bytes:
        if value is None:
            return _NULL_SHORT
        content = encode(value)
        if len(content) > most_bytes:
            raise ValueError("too long")
        return _SHORT_LENGTH(len(content)) + content

    return encode_short


def _chunks(encode: Callable[[Any], bytes]) -> Encoder:
    def encode_chunks(value: Any) -> Encoded:
        if value is None:
            return _NULL_CHUNKS
        content = encode(value)
        size = len(content)
        if not size:
            return _EMPTY_CHUNKS
        if size <= _MAX_JOINED_BYTES:
            return _CHUNK_HEAD(size, size) + content + _END_OF_CHUNKS
        if size > _MAX_CHUNK:
            raise ValueError("too long")
        return _CHUNK_HEAD(size, size), content, _END_OF_CHUNKS

    return encode_chunks


# ---------------------------------------------------------------- types

_SIMPLE: dict[str, tuple[bytes, Encoder]] = {
    "bit": (b"\x68\x01", _packed("<B", lambda value: int(bool(_whole(value))))),
    "tinyint": (b"\x26\x01", _packed("<B", _whole)),
    "smallint": (b"\x26\x02", _packed("<h", _whole)),
    "int": (b"\x26\x04", _packed("<i", _whole)),
    "bigint": (b"\x26\x08", _packed("<q", _whole)),
    "real": (b"\x6d\x04", _packed("<f", float)),
    "float": (b"\x6d\x08", _packed("<d", float)),
    "smallmoney": (b"\x6e\x04", _packed("<i", _ten_thousandths)),
    "money": (b"\x6e\x08", _nullable(_NULL_BYTE, _money)),
    "datetime": (b"\x6f\x08", _nullable(_NULL_BYTE, _datetime)),
    "smalldatetime": (b"\x6f\x04", _nullable(_NULL_BYTE, _smalldatetime)),
    "date": (b"\x28", _nullable(_NULL_BYTE, _date)),
    "uniqueidentifier": (b"\x24\x10", _nullable(_NULL_BYTE, _guid)),
    "xml": (b"\xf1\x00", _chunks(_wide)),
}
_TIMES: dict[str, tuple[int, Callable[[int], Encoder]]] = {
    "time": (0x29, _time),
    "datetime2": (0x2A, _datetime2),
    "datetimeoffset": (0x2B, _datetimeoffset),
}
# (code, bytes per character, how to encode)
MAX_SHORT_BYTES = 8_000  # the most bytes of a string or binary; a longer one is written as MAX
_STRINGS: dict[str, tuple[int, int, Callable[[Any], bytes]]] = {
    "varbinary": (0xA5, 1, _raw),
    "binary": (0xAD, 1, _raw),
    "varchar": (0xA7, 1, _narrow),
    "char": (0xAF, 1, _narrow),
    "nvarchar": (0xE7, 2, _wide),
    "nchar": (0xEF, 2, _wide),
    "sysname": (0xE7, 2, _wide),
}


def column_type(sql_type: SqlType, dialect: Dialect = Dialect.TDS_7_4) -> ColumnType:
    """Return how a type of T-SQL is written. text, ntext and image are written as their successors of MAX."""
    sql_type = _OLD_LONG_TYPES.get(sql_type.name, sql_type)
    name = sql_type.name
    if not dialect.has_dates and name in _TEXTS_OF_DATES:
        return _date_as_text(sql_type)
    if not dialect.is_wide and (name == "xml" or (name in _STRINGS and _is_long(sql_type))):
        return _old_long_type(sql_type)
    if name in _SIMPLE:
        return ColumnType(sql_type, *_SIMPLE[name])
    if name == "decimal":
        precision, scale = sql_type.precision or 18, sql_type.scale or 0
        return ColumnType(sql_type, bytes([0x6A, 17, precision, scale]), _decimal(precision, scale))
    if name in _TIMES:
        code, encoder = _TIMES[name]
        scale = 7 if sql_type.scale is None else sql_type.scale
        return ColumnType(sql_type, bytes([code, scale]), encoder(scale))
    if name == "sql_variant":
        return ColumnType(sql_type, struct.pack("<BI", 0x62, 8009), _nullable(_NULL_LONG, _variant))
    return _string_type(sql_type)


def _string_type(sql_type: SqlType) -> ColumnType:
    code, width, encode = _STRINGS[sql_type.name]
    collation = b"" if sql_type.name in BINARIES else COLLATION
    if _is_long(sql_type):
        return ColumnType(sql_type, struct.pack("<BH", code, MAX_LENGTH) + collation, _chunks(encode))
    size = (sql_type.length or 0) * width
    return ColumnType(sql_type, struct.pack("<BH", code, size) + collation, _short(encode, size))


def _is_long(sql_type: SqlType) -> bool:
    length = sql_type.length
    return length is None or length < 0 or length * _STRINGS[sql_type.name][1] > MAX_SHORT_BYTES


# ---------------------------------------------------------------- older dialects

_TEXT_POINTER = b"\x10" + bytes(16) + bytes(8)  # a text pointer and a timestamp, which clients ignore
_IMAGE_CODE, _TEXT_CODE, _NTEXT_CODE = 0x22, 0x23, 0x63


def _old_long_type(sql_type: SqlType) -> ColumnType:
    """Return how a type of MAX is written for clients that know none."""
    encode = _wide if sql_type.name == "xml" else _STRINGS[sql_type.name][2]
    collation = b"" if sql_type.name in BINARIES else COLLATION
    code = _IMAGE_CODE if sql_type.name in BINARIES else _TEXT_CODE if encode is _narrow else _NTEXT_CODE
    info = struct.pack("<BI", code, _MAX_CHUNK) + collation

    def encode_long(value: Any) -> Encoded:
        content = encode(value)
        return _TEXT_POINTER, struct.pack("<i", len(content)), content

    return ColumnType(sql_type, info, _nullable(_NULL_BYTE, encode_long), has_table=True)


def _date_as_text(sql_type: SqlType) -> ColumnType:
    """Return how a date or time is written for clients without its type: as nvarchar."""
    to_text, length = _TEXTS_OF_DATES[sql_type.name]
    digits = 7 if sql_type.scale is None else sql_type.scale
    text_type = _string_type(SqlType("nvarchar", length))
    return text_type._replace(encode=lambda value: text_type.encode(None if value is None else to_text(value, digits)))


def _time_text(value: time | datetime, digits: int) -> str:
    return f"{value:%H:%M:%S}" + (f".{value.microsecond * 10:07}"[: digits + 1] if digits else "")


def _moment_text(value: datetime, digits: int) -> str:
    return f"{value.date().isoformat()} {_time_text(value, digits)}"


def _offset_text(value: datetime, digits: int) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise ValueError(value)
    minutes = round(offset.total_seconds() / 60)
    return f"{_moment_text(value, digits)} {'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


_TEXTS_OF_DATES: dict[str, tuple[Callable[[Any, int], str], int]] = {
    "date": (lambda value, _: str(value.isoformat())[:10], 10),
    "time": (_time_text, 16),
    "datetime2": (_moment_text, 27),
    "datetimeoffset": (_offset_text, 34),
}


def _variant(value: Any) -> bytes:
    """Return a value as sql_variant, with the type that Python's value has."""
    kind = type_of_value(value)
    if kind.name in STRINGS | BINARIES:
        content, is_text = (_wide(value), True) if isinstance(value, str) else (_raw(value), False)
        if len(content) > MAX_SHORT_BYTES:
            raise ValueError("too long")
        head = (
            b"\xe7\x07" + COLLATION + struct.pack("<H", MAX_SHORT_BYTES)
            if is_text
            else b"\xa5\x02" + struct.pack("<H", MAX_SHORT_BYTES)
        )
        return struct.pack("<I", len(head) + len(content)) + head + content
    plain = column_type(kind).encode(value)
    assert isinstance(plain, bytes)
    content = plain[1:]  # without the length of 1 byte
    head = _VARIANT_HEADS[kind.name]
    if kind.name == "decimal":
        head += bytes([kind.precision or 38, kind.scale or 0])
    elif kind.name in _TIMES:
        head += bytes([7])
    return struct.pack("<I", len(head) + len(content)) + head + content


_VARIANT_HEADS = {
    "bit": b"\x32\x00", "int": b"\x38\x00", "bigint": b"\x7f\x00", "float": b"\x3e\x00", "decimal": b"\x6c\x02",
    "date": b"\x28\x00", "time": b"\x29\x01", "datetime2": b"\x2a\x01", "datetimeoffset": b"\x2b\x01",
    "uniqueidentifier": b"\x24\x00",
}  # fmt: skip


# ---------------------------------------------------------------- types of values


def type_of_value(value: Any) -> SqlType:
    """Return the type of T-SQL that holds a Python value."""
    match value:
        case bool():
            return SqlType("bit")
        case int():
            if -(2**31) <= value < 2**31:
                return INT
            return BIGINT if -(2**63) <= value < 2**63 else SqlType("decimal", None, 38, 0)
        case Decimal():
            return _type_of_decimal(value)
        case float():
            return FLOAT
        case bytes() | bytearray() | memoryview():
            return VARBINARY
        case UUID():
            return SqlType("uniqueidentifier")
        case datetime():
            return SqlType("datetime2" if value.tzinfo is None else "datetimeoffset", None, None, 7)
        case date():
            return SqlType("date")
        case time():
            return SqlType("time", None, None, 7)
        case _:
            return NVARCHAR


def _type_of_decimal(value: Decimal) -> SqlType:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return FLOAT
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    return SqlType("decimal", None, precision, scale) if precision <= 38 else _ANY_DECIMAL


def type_of_values(values: Iterable[Any]) -> SqlType:
    """Return a type that holds all these values; nvarchar(MAX), written as text, if they have nothing in common."""
    common_type: SqlType | None = None
    for value in values:
        if value is not None:
            common_type = type_of_value(value) if common_type is None else _wider(common_type, type_of_value(value))
    return NVARCHAR if common_type is None else common_type


_WHOLE_RANKS = {"bit": 1, "int": 10, "bigint": 19}


def _wider(one: SqlType, other: SqlType) -> SqlType:
    if one == other:
        return one
    if {one.name, other.name} <= _WHOLE_RANKS.keys():
        return max(one, other, key=lambda kind: _WHOLE_RANKS[kind.name])
    if {one.name, other.name} <= {*_WHOLE_RANKS, "decimal"}:
        scale = max(one.scale or 0, other.scale or 0)
        whole = max((kind.precision or _WHOLE_RANKS[kind.name]) - (kind.scale or 0) for kind in (one, other))
        return SqlType("decimal", None, min(38, whole + scale), scale)
    if {one.name, other.name} <= {*_WHOLE_RANKS, "decimal", "float"}:
        return FLOAT
    return NVARCHAR
