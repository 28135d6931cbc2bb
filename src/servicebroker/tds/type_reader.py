"""Types and values of parameters: from the bytes of TDS to types of T-SQL and Python values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.tds.byte_reader import ByteReader, ProtocolError, decode_utf16
from servicebroker.tsql.types import SqlType

CODE_PAGE = "cp1252"  # the code page of the collation SQL_Latin1_General_CP1_CI_AS
MAX_LENGTH = 0xFFFF  # the length of a type of MAX, and NULL in a value with a length of 2 bytes
NULL_PLP, UNKNOWN_PLP = 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFE  # instead of the length of a value in chunks
COLLATION_BYTES = 5
TICKS_PER_SECOND = 10_000_000  # a tick has 100 ns
DAY_TICKS_300 = 300 * 86_400  # a datetime counts in 1/300 s
EPOCH_1900 = date(1900, 1, 1)

Decoder = Callable[[memoryview], Any]


class UnsupportedType(Exception):
    """A parameter has a type that the server refuses. Its message names the type."""


class Layout(Enum):
    """The bytes before a value."""

    FIXED = "no length"
    BYTE = "a length of 1 byte, 0 for NULL"
    SHORT = "a length of 2 bytes, 0xFFFF for NULL"
    LONG = "a length of 4 bytes, 0 or below for NULL"
    CHUNKS = "a length of 8 bytes, then chunks (PLP)"


class WireType(NamedTuple):
    """A type as a client has sent it.

    Attributes:
        sql_type: the type of T-SQL.
        layout: how its values begin.
        decode: returns the value of the bytes behind the length.
        size: the bytes of a value with the layout FIXED.
    """

    sql_type: SqlType
    layout: Layout
    decode: Decoder
    size: int = 0


# ---------------------------------------------------------------- values


def _integer(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=len(data) > 1)  # tinyint has no sign


def _bit(data: memoryview) -> int:
    return int(data[0] != 0)


def _float(data: memoryview) -> float:
    return float(struct.unpack("<f" if len(data) == 4 else "<d", data)[0])


def _money(data: memoryview) -> Decimal:
    if len(data) == 8:
        high, low = struct.unpack("<iI", data)
        return Decimal(high * 2**32 + low).scaleb(-4)
    return Decimal(_integer(data)).scaleb(-4)


def _decimal(scale: int) -> Decoder:
    def decode(data: memoryview) -> Decimal:
        magnitude = int.from_bytes(data[1:], "little")
        return Decimal((int(data[0] == 0), tuple(map(int, str(magnitude))), -scale))

    return decode


def _guid(data: memoryview) -> UUID:
    return UUID(bytes_le=bytes(data))


def _datetime(data: memoryview) -> datetime:
    if len(data) == 4:
        days, minutes = struct.unpack("<HH", data)
        return _moment(EPOCH_1900.toordinal() + days, timedelta(minutes=minutes))
    days, ticks = struct.unpack("<iI", data)
    if ticks >= DAY_TICKS_300:
        raise ProtocolError("The time of a datetime is later than midnight.")
    return _moment(EPOCH_1900.toordinal() + days, timedelta(milliseconds=(ticks * 10 + 1) // 3))


def _moment(ordinal: int, since_midnight: timedelta) -> datetime:
    try:
        return datetime.combine(date.fromordinal(ordinal), time()) + since_midnight
    except (ValueError, OverflowError):
        raise ProtocolError("A date is outside of the years 1 to 9999.") from None


def _date(data: memoryview) -> date:
    return _moment(_integer_of_date(data), timedelta()).date()


def _integer_of_date(data: memoryview) -> int:
    return int.from_bytes(data, "little") + 1


def _since_midnight(data: memoryview, scale: int) -> timedelta:
    ticks = int.from_bytes(data, "little") * 10 ** (7 - scale)
    if ticks >= 86_400 * TICKS_PER_SECOND:
        raise ProtocolError("A time is later than midnight.")
    return timedelta(microseconds=ticks // 10)


def _time(scale: int) -> Decoder:
    return lambda data: (datetime.min + _since_midnight(data, scale)).time()


def _datetime2(scale: int) -> Decoder:
    return lambda data: _moment(_integer_of_date(data[-3:]), _since_midnight(data[:-3], scale))


def _datetimeoffset(scale: int) -> Decoder:
    def decode(data: memoryview) -> datetime:
        (minutes,) = struct.unpack("<h", data[-2:])
        if abs(minutes) > 14 * 60:
            raise ProtocolError(f"A datetimeoffset is {minutes} minutes ahead of UTC.")
        instant = _moment(_integer_of_date(data[-5:-2]), _since_midnight(data[:-5], scale))
        zone = timezone(timedelta(minutes=minutes))
        try:
            return (instant + timedelta(minutes=minutes)).replace(tzinfo=zone)
        except OverflowError:
            raise ProtocolError("A datetimeoffset is outside of the years 1 to 9999.") from None

    return decode


def _binary(data: memoryview) -> bytes:
    return bytes(data)


def _narrow(data: memoryview) -> str:
    return str(data, CODE_PAGE, "replace")


def _wide(data: memoryview) -> str:
    return decode_utf16(data)


def _variant(data: memoryview) -> Any:
    """Return the value inside a sql_variant."""
    reader = ByteReader(data)
    code, property_bytes = reader.uint8(), reader.uint8()
    properties = ByteReader(reader.take(property_bytes))
    content = reader.take(reader.remaining)
    if code in _FIXED:
        return _checked(_FIXED[code], content)
    if code in _VARIANT_DECODERS:
        return _checked(_VARIANT_DECODERS[code](properties), content)
    raise UnsupportedType(f"a sql_variant of type 0x{code:02X}")


# ---------------------------------------------------------------- types

_INT = SqlType("int")
_FIXED: dict[int, WireType] = {
    0x1F: WireType(_INT, Layout.FIXED, lambda data: None, 0),
    0x30: WireType(SqlType("tinyint"), Layout.FIXED, _integer, 1),
    0x32: WireType(SqlType("bit"), Layout.FIXED, _bit, 1),
    0x34: WireType(SqlType("smallint"), Layout.FIXED, _integer, 2),
    0x38: WireType(_INT, Layout.FIXED, _integer, 4),
    0x7F: WireType(SqlType("bigint"), Layout.FIXED, _integer, 8),
    0x3A: WireType(SqlType("smalldatetime"), Layout.FIXED, _datetime, 4),
    0x3D: WireType(SqlType("datetime"), Layout.FIXED, _datetime, 8),
    0x3B: WireType(SqlType("real"), Layout.FIXED, _float, 4),
    0x3E: WireType(SqlType("float"), Layout.FIXED, _float, 8),
    0x3C: WireType(SqlType("money"), Layout.FIXED, _money, 8),
    0x7A: WireType(SqlType("smallmoney"), Layout.FIXED, _money, 4),
}
# types with a length of 1 byte in the type: (name of each length, how to decode)
_SIZED: dict[int, tuple[Mapping[int, str], Decoder]] = {
    0x26: ({1: "tinyint", 2: "smallint", 4: "int", 8: "bigint"}, _integer),
    0x68: ({1: "bit"}, _bit),
    0x6D: ({4: "real", 8: "float"}, _float),
    0x6E: ({4: "smallmoney", 8: "money"}, _money),
    0x6F: ({4: "smalldatetime", 8: "datetime"}, _datetime),
    0x24: ({16: "uniqueidentifier"}, _guid),
}
_TIMES: dict[int, tuple[str, Callable[[int], Decoder]]] = {
    0x29: ("time", _time),
    0x2A: ("datetime2", _datetime2),
    0x2B: ("datetimeoffset", _datetimeoffset),
}
# types with a length of 2 bytes: (name, bytes per character, whether a collation follows, how to decode)
_STRINGS: dict[int, tuple[str, int, bool, Decoder]] = {
    0xA5: ("varbinary", 1, False, _binary),
    0xAD: ("binary", 1, False, _binary),
    0xA7: ("varchar", 1, True, _narrow),
    0xAF: ("char", 1, True, _narrow),
    0xE7: ("nvarchar", 2, True, _wide),
    0xEF: ("nchar", 2, True, _wide),
}
_OLD_LONG: dict[int, tuple[str, bool, Decoder]] = {  # the types before MAX
    0x22: ("varbinary", False, _binary),
    0x23: ("varchar", True, _narrow),
    0x63: ("nvarchar", True, _wide),
}
_DECIMALS = frozenset({0x6A, 0x6C})
_DATE_CODE, _XML_CODE, _VARIANT_CODE, _TABLE_CODE, _USER_DEFINED_CODE, _JSON_CODE = 0x28, 0xF1, 0x62, 0xF3, 0xF0, 0xF4
_UNSUPPORTED_TYPES = {
    _TABLE_CODE: "a table-valued parameter",
    _USER_DEFINED_CODE: "a type of the CLR",
    _JSON_CODE: "json",
    0xF5: "vector",
    0x37: "decimal of TDS 4",
    0x3F: "numeric of TDS 4",
}
_MAX_BYTES = 8_000  # the most bytes of a string or binary that is not MAX


def read_type(reader: ByteReader) -> WireType:
    """Read a type (TYPE_INFO).

    Raises:
        ProtocolError: it is malformed.
        UnsupportedType: it is a type that the server refuses.
    """
    code = reader.uint8()
    if code in _FIXED:
        return _FIXED[code]
    if code in _SIZED:
        return _read_sized(reader, code)
    if code in _STRINGS:
        return _read_string(reader, code)
    if code in _DECIMALS:
        return _read_decimal(reader)
    if code in _TIMES:
        return _read_time(reader, code)
    if code in _OLD_LONG:
        return _read_old_long(reader, code)
    if code == _DATE_CODE:
        return WireType(SqlType("date"), Layout.BYTE, _date)
    if code == _XML_CODE:
        return _read_xml(reader)
    if code == _VARIANT_CODE:
        reader.uint32()
        return WireType(SqlType("sql_variant"), Layout.LONG, _variant)
    if code in _UNSUPPORTED_TYPES:
        raise UnsupportedType(_UNSUPPORTED_TYPES[code])
    raise ProtocolError(f"The type 0x{code:02X} is unknown.")


def _read_sized(reader: ByteReader, code: int) -> WireType:
    names, decode = _SIZED[code]
    size = reader.uint8()
    if size not in names:
        raise ProtocolError(f"The type 0x{code:02X} has no size of {size} bytes.")
    return WireType(SqlType(names[size]), Layout.BYTE, decode)


def _read_string(reader: ByteReader, code: int) -> WireType:
    name, width, has_collation, decode = _STRINGS[code]
    size = reader.uint16()
    if has_collation:
        reader.take(COLLATION_BYTES)
    if size == MAX_LENGTH:
        return WireType(SqlType(name, -1), Layout.CHUNKS, decode)
    if size > _MAX_BYTES:
        raise ProtocolError(f"{name} of {size} bytes; the limit is {_MAX_BYTES}.")
    return WireType(SqlType(name, max(1, size // width)), Layout.SHORT, decode)


def _read_decimal(reader: ByteReader) -> WireType:
    reader.uint8()
    precision, scale = reader.uint8(), reader.uint8()
    if not 1 <= precision <= 38 or scale > precision:
        raise ProtocolError(f"decimal({precision},{scale}) does not exist.")
    return WireType(SqlType("decimal", None, precision, scale), Layout.BYTE, _decimal(scale))


def _read_time(reader: ByteReader, code: int) -> WireType:
    name, decoder = _TIMES[code]
    scale = reader.uint8()
    if scale > 7:
        raise ProtocolError(f"{name}({scale}) does not exist.")
    return WireType(SqlType(name, None, None, scale), Layout.BYTE, decoder(scale))


def _read_old_long(reader: ByteReader, code: int) -> WireType:
    name, has_collation, decode = _OLD_LONG[code]
    reader.uint32()
    if has_collation:
        reader.take(COLLATION_BYTES)
    return WireType(SqlType(name, -1), Layout.LONG, decode)


def _read_xml(reader: ByteReader) -> WireType:
    if reader.uint8():  # the names of a schema collection
        reader.short_text()
        reader.short_text()
        reader.long_text()
    return WireType(SqlType("xml"), Layout.CHUNKS, _xml)


def _xml(data: memoryview) -> str:
    return decode_utf16(data).removeprefix("\ufeff")


def read_value(reader: ByteReader, type_: WireType) -> Any:
    """Read a value of a type. None is NULL.

    Raises:
        ProtocolError: it is malformed.
        UnsupportedType: a sql_variant holds a type that the server refuses.
    """
    match type_.layout:
        case Layout.FIXED:
            return type_.decode(reader.take(type_.size))
        case Layout.BYTE:
            length = reader.uint8()
            return None if not length else _checked(type_, reader.take(length))
        case Layout.SHORT:
            length = reader.uint16()
            return None if length == MAX_LENGTH else _checked(type_, reader.take(length))
        case Layout.LONG:
            length = reader.int32()
            is_null = length < 0 or (length == 0 and type_.sql_type.name == "sql_variant")
            return None if is_null else _checked(type_, reader.take(length))
        case Layout.CHUNKS:
            return _read_chunks(reader, type_)


def _read_chunks(reader: ByteReader, type_: WireType) -> Any:
    total = reader.uint64()
    if total == NULL_PLP:
        return None
    chunks: list[memoryview] = []
    while length := reader.uint32():
        chunks.append(reader.take(length))
    if total not in (UNKNOWN_PLP, sum(map(len, chunks))):
        raise ProtocolError(f"A value of {total} bytes came with {sum(map(len, chunks))} bytes.")
    return _checked(type_, chunks[0] if len(chunks) == 1 else memoryview(b"".join(chunks)))


_TIME_BYTES = (3, 3, 3, 4, 4, 5, 5, 5)  # the bytes of a time, by its scale
_BYTES_OF_VALUE = {
    "bit": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "real": 4, "float": 8, "smallmoney": 4, "money": 8,
    "smalldatetime": 4, "datetime": 8, "uniqueidentifier": 16, "date": 3,
}  # fmt: skip


def time_bytes(scale: int) -> int:
    """Return the bytes of a time of day with that scale."""
    return _TIME_BYTES[scale]


def _checked(type_: WireType, data: memoryview) -> Any:
    """Decode a value whose length fits its type.

    Raises:
        ProtocolError: the length is wrong.
    """
    name, scale = type_.sql_type.name, type_.sql_type.scale or 0
    expected = _BYTES_OF_VALUE.get(name)
    if name in ("time", "datetime2", "datetimeoffset"):
        expected = time_bytes(scale) + {"time": 0, "datetime2": 3, "datetimeoffset": 5}[name]
    if (expected is not None and len(data) != expected) or (name == "decimal" and not 2 <= len(data) <= 17):
        raise ProtocolError(f"A value of {name} has {len(data)} bytes.")
    return type_.decode(data)


def _of_sized(code: int, size: int) -> Callable[[ByteReader], WireType]:
    names, decode = _SIZED[code]
    return lambda properties: WireType(SqlType(names[size]), Layout.BYTE, decode)


def _variant_decimal(properties: ByteReader) -> WireType:
    precision, scale = properties.uint8(), properties.uint8()
    if not 1 <= precision <= 38 or scale > precision:
        raise ProtocolError(f"decimal({precision},{scale}) does not exist.")
    return WireType(SqlType("decimal", None, precision, scale), Layout.BYTE, _decimal(scale))


def _variant_string(code: int) -> Callable[[ByteReader], WireType]:
    name, _, _, decode = _STRINGS[code]
    return lambda properties: WireType(SqlType(name, -1), Layout.SHORT, decode)


def _variant_time(code: int) -> Callable[[ByteReader], WireType]:
    return lambda properties: _read_time(properties, code)


_VARIANT_DECODERS: dict[int, Callable[[ByteReader], WireType]] = {
    0x24: _of_sized(0x24, 16),
    _DATE_CODE: lambda properties: WireType(SqlType("date"), Layout.BYTE, _date),
    **dict.fromkeys(_DECIMALS, _variant_decimal),
    **{code: _variant_string(code) for code in _STRINGS},
    **{code: _variant_time(code) for code in _TIMES},
}
