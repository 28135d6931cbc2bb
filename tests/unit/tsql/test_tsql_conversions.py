"""Conversions in Python, as assignments and parameters make them: each type to each type, at its limits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from servicebroker.tsql.conversion import convert, from_variant, offset_minutes, read_offset
from servicebroker.tsql.date_texts import DATE_ORDER, ORDERS, parse_date_text, settings_of_language
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import column_type, identity_clause, no_room, parse_type, postgres_type

IDENTIFIER = UUID("00112233-4455-6677-8899-AABBCCDDEEFF")
MOMENT = datetime(2026, 2, 3, 15, 4, 5, 678900)
EAST = timezone(timedelta(hours=5, minutes=30))
WEST = timezone(-timedelta(hours=3, minutes=30))


def converted(value: Any, source: str, target: str) -> Any:
    """Return the converted value, or the number of the error."""
    try:
        return convert(value, parse_type(source) if source else None, parse_type(target, 30))
    except TsqlError as refused:
        return refused.number


# value, its type, the type to convert to, and the result or the number of the error
INTEGERS: list[tuple[Any, str, str, Any]] = [
    (255, "int", "tinyint", 255),
    (256, "int", "tinyint", 220),
    (-1, "int", "tinyint", 220),
    (32767, "int", "smallint", 32767),
    (32768, "int", "smallint", 220),
    (-32768, "int", "smallint", -32768),
    (2**31 - 1, "bigint", "int", 2**31 - 1),
    (2**31, "bigint", "int", 8115),
    (-(2**31), "bigint", "int", -(2**31)),
    (2**63 - 1, "bigint", "bigint", 2**63 - 1),
    (Decimal(2**63), "decimal(38,0)", "bigint", 8115),
    ("255", "varchar(9)", "tinyint", 255),
    ("256", "varchar(9)", "tinyint", 244),
    ("-1", "varchar(9)", "tinyint", 244),
    ("32768", "varchar(9)", "smallint", 244),
    ("2147483648", "varchar(20)", "int", 248),
    (f"{2**63}", "varchar(20)", "bigint", 8115),
    (" \t-12\r\n", "varchar(9)", "int", -12),
    ("+5", "varchar(9)", "int", 5),
    ("", "varchar(9)", "int", 0),
    ("-", "varchar(9)", "int", 0),
    ("1.5", "varchar(9)", "int", 245),
    ("1e1", "varchar(9)", "int", 245),
    ("\u0663", "nvarchar(9)", "int", 245),
    ("\u00a05", "nvarchar(9)", "int", 245),
    (2.9, "float", "int", 2),
    (-2.9, "float", "int", -2),
    (Decimal("2.9"), "decimal(9,1)", "int", 2),
    (3e9, "float", "int", 232),
    (b"\x01\x02", "varbinary(2)", "int", 258),
    (b"\xff", "varbinary(1)", "tinyint", 255),
    (b"\xff\xff\xff\xff", "varbinary(4)", "int", -1),
    (b"\x09\x00\x00\x00\x01", "varbinary(5)", "int", 1),
    (b"\xff", "varbinary(1)", "smallint", 255),
    (datetime(1900, 1, 3, 11), "datetime", "int", 2),
    (datetime(1900, 1, 3, 13), "datetime", "int", 3),
    (IDENTIFIER, "uniqueidentifier", "int", 206),
    ("true", "varchar(9)", "bit", 1),
    (" FALSE ", "varchar(9)", "bit", 0),
    ("-7", "varchar(9)", "bit", 1),
    ("0", "varchar(9)", "bit", 0),
    ("yes", "varchar(9)", "bit", 245),
    ("\u0661", "nvarchar(9)", "bit", 245),
    (0.1, "float", "bit", 1),
    (0, "int", "bit", 0),
    (Decimal(0), "decimal(9,2)", "bit", 0),
]
NUMBERS: list[tuple[Any, str, str, Any]] = [
    ("1.005", "varchar(9)", "decimal(5,2)", Decimal("1.01")),
    ("-1.005", "varchar(9)", "decimal(5,2)", Decimal("-1.01")),
    ("-0.001", "varchar(9)", "decimal(5,2)", Decimal("0.00")),
    ("999.994", "varchar(9)", "decimal(5,2)", Decimal("999.99")),
    ("999.995", "varchar(9)", "decimal(5,2)", 8115),
    (1000, "int", "decimal(5,2)", 8115),
    (-1000, "int", "decimal(5,2)", 8115),
    ("", "varchar(9)", "decimal(5,2)", 8114),
    ("1e2", "varchar(9)", "decimal(5,2)", 8114),
    (" 5 ", "varchar(9)", "decimal(5,2)", Decimal("5.00")),
    (".5", "varchar(9)", "decimal(5,2)", Decimal("0.50")),
    (".", "varchar(9)", "decimal(5,2)", 8114),
    (99, "int", "decimal", Decimal(99)),
    ("$1,234.56785", "varchar(20)", "money", Decimal("1234.5679")),
    ("-\u20ac5", "nvarchar(9)", "money", Decimal("-5.0000")),
    ("", "varchar(9)", "money", Decimal("0.0000")),
    ("5-", "varchar(9)", "money", 235),
    ("5-", "varchar(9)", "smallmoney", 293),
    (Decimal("922337203685477.5807"), "decimal(19,4)", "money", Decimal("922337203685477.5807")),
    (Decimal("922337203685477.5808"), "decimal(19,4)", "money", 8115),
    (Decimal("-922337203685477.5808"), "decimal(19,4)", "money", Decimal("-922337203685477.5808")),
    (Decimal("214748.3647"), "decimal(19,4)", "smallmoney", Decimal("214748.3647")),
    (Decimal("214748.3648"), "decimal(19,4)", "smallmoney", 8115),
    ("1e3", "varchar(9)", "float", 1000.0),
    ("", "varchar(9)", "float", 0.0),
    ("x", "varchar(9)", "float", 8114),
    ("1e400", "varchar(9)", "float", 8115),
]
TEXTS: list[tuple[Any, str, str, Any]] = [
    ("abc", "varchar(9)", "varchar(2)", "ab"),
    ("a", "varchar(9)", "char(3)", "a  "),
    ("abc", "varchar(9)", "nchar(2)", "ab"),
    ("a", "varchar(9)", "varchar(3)", "a"),
    (123, "int", "varchar(3)", "123"),
    (123, "int", "varchar(2)", "*"),
    (123, "int", "nvarchar(2)", 8115),
    (123, "bigint", "varchar(2)", 8115),
    (True, "bit", "varchar(9)", "1"),
    (1.5, "float", "varchar(2)", 232),
    (Decimal("1.5"), "money", "varchar(2)", 234),
    (Decimal("1.5"), "smallmoney", "varchar(2)", 292),
    (Decimal("1.50"), "decimal(9,2)", "varchar(3)", 8115),
    (IDENTIFIER, "uniqueidentifier", "char(35)", 8170),
    (IDENTIFIER, "uniqueidentifier", "char(36)", str(IDENTIFIER).upper()),
    (Decimal("1.2355"), "money", "varchar(9)", "1.24"),
    (Decimal("1.2355"), "decimal(9,4)", "varchar(9)", "1.2355"),
    (1234567.0, "float", "varchar(20)", "1.23457e+006"),
    (-0.0, "float", "varchar(9)", "0"),
    (0.1, "float", "varchar(9)", "0.1"),
    (MOMENT, "datetime", "varchar(30)", "Feb  3 2026  3:04PM"),
    (MOMENT, "datetime2(3)", "varchar(30)", "2026-02-03 15:04:05.678"),
    (MOMENT, "datetime2(0)", "varchar(30)", "2026-02-03 15:04:05"),
    (datetime(2026, 11, 13), "datetime", "varchar(30)", "Nov 13 2026 12:00AM"),
    (MOMENT.replace(tzinfo=WEST), "datetimeoffset(0)", "varchar(40)", "2026-02-03 15:04:05 -03:30"),
    (date(2026, 2, 3), "date", "varchar(30)", "2026-02-03"),
    (time(1, 2, 3), "time(0)", "varchar(30)", "01:02:03"),
    (b"ab", "varbinary(2)", "varchar(9)", "ab"),
    (b"a\0b\0", "varbinary(4)", "nvarchar(9)", "ab"),
    (b"a", "varbinary(1)", "nvarchar(9)", "a"),
    (b"\x81\x80", "varbinary(2)", "varchar(9)", "\x81\u20ac"),
]
BINARIES: list[tuple[Any, str, str, Any]] = [
    (258, "int", "binary(2)", b"\x01\x02"),
    (258, "int", "binary(6)", b"\0\0\0\0\x01\x02"),
    (258, "int", "varbinary(8)", b"\0\0\x01\x02"),
    (258, "int", "varbinary(1)", b"\x02"),
    (-1, "smallint", "varbinary(8)", b"\xff\xff"),
    (255, "tinyint", "varbinary(8)", b"\xff"),
    (1, "bigint", "binary(8)", bytes(7) + b"\x01"),
    (True, "bit", "binary(1)", b"\x01"),
    ("ab", "varchar(9)", "binary(1)", b"a"),
    ("ab", "varchar(9)", "binary(4)", b"ab\0\0"),
    ("ab", "nvarchar(9)", "varbinary(9)", b"a\0b\0"),
    ("\u20ac", "varchar(9)", "varbinary(9)", b"\x80"),
    ("\x81", "varchar(9)", "varbinary(9)", b"\x81"),
    ("\u0416", "varchar(9)", "varbinary(9)", b"?"),
    (b"abc", "varbinary(9)", "binary(2)", b"ab"),
    (b"a", "varbinary(9)", "binary(2)", b"a\0"),
    (b"abc", "varbinary(9)", "varbinary(max)", b"abc"),
    (Decimal("1.0000"), "money", "binary(8)", (10_000).to_bytes(8, "big")),
    (Decimal("-0.0001"), "smallmoney", "binary(4)", b"\xff" * 4),
    (Decimal("-2.5"), "decimal(5,1)", "varbinary(9)", b"\x05\x01\0\0\x19\0\0\0"),
    (Decimal("2.5"), "decimal(5,1)", "varbinary(9)", b"\x05\x01\0\x01\x19\0\0\0"),
    (IDENTIFIER, "uniqueidentifier", "varbinary(16)", IDENTIFIER.bytes_le),
    (Decimal("1.0000"), "money", "varbinary(20)", (10_000).to_bytes(8, "big")),
    (Decimal("-0.0001"), "smallmoney", "varbinary(20)", b"\xff" * 4),
    (2.0, "float", "varbinary(20)", b"\x40" + bytes(7)),
    (2.0, "real", "varbinary(20)", b"\x40" + bytes(3)),
    (1.0, "float", "binary(8)", b"\x3f\xf0" + bytes(6)),
    (1.0, "real", "binary(4)", b"\x3f\x80\0\0"),
    ("<a/>", "xml", "varbinary(max)", b"\xff\xfe" + "<a/>".encode("utf-16-le")),
    (IDENTIFIER.bytes_le, "varbinary(16)", "uniqueidentifier", IDENTIFIER),
    (b"\x01", "varbinary(1)", "uniqueidentifier", UUID(bytes_le=b"\x01" + bytes(15))),
    (bytes(17), "varbinary(17)", "uniqueidentifier", 8169),
    (f"{{{IDENTIFIER}}}", "varchar(50)", "uniqueidentifier", IDENTIFIER),
    (f"{IDENTIFIER} more", "varchar(50)", "uniqueidentifier", IDENTIFIER),
    ("x", "varchar(50)", "uniqueidentifier", 8169),
]
TIMES: list[tuple[Any, str, str, Any]] = [
    (MOMENT, "datetime2(7)", "datetime", MOMENT.replace(microsecond=679000)),
    (MOMENT, "datetime2(7)", "datetime2(0)", MOMENT.replace(second=6, microsecond=0)),
    (MOMENT, "datetime2(7)", "datetime2(1)", MOMENT.replace(microsecond=700000)),
    (MOMENT, "datetime2(7)", "date", MOMENT.date()),
    (MOMENT, "datetime2(7)", "time(2)", time(15, 4, 5, 680000)),
    (datetime(2026, 1, 1, 0, 0, 29, 998000), "datetime", "smalldatetime", datetime(2026, 1, 1)),
    (datetime(2026, 1, 1, 0, 0, 29, 999000), "datetime", "smalldatetime", datetime(2026, 1, 1, 0, 1)),
    (datetime(2079, 6, 6, 23, 59, 29), "datetime", "smalldatetime", datetime(2079, 6, 6, 23, 59)),
    (datetime(2079, 6, 6, 23, 59, 30), "datetime", "smalldatetime", 242),
    (datetime(1899, 12, 31), "datetime", "smalldatetime", 242),
    (datetime(1753, 1, 1), "datetime2(7)", "datetime", datetime(1753, 1, 1)),
    (datetime(1752, 12, 31), "datetime2(7)", "datetime", 242),
    ("17521231", "varchar(9)", "datetime", 242),
    ("17521231", "varchar(9)", "date", date(1752, 12, 31)),
    (date(2026, 1, 2), "date", "datetime", datetime(2026, 1, 2)),
    (1.5, "float", "datetime", datetime(1900, 1, 2, 12)),
    (-53690, "int", "datetime", datetime(1753, 1, 1)),
    (-53691, "int", "datetime", 8115),
    (2958463, "int", "datetime", datetime(9999, 12, 31)),
    (2958464, "int", "datetime", 8115),
    (1, "int", "date", 206),
    ("2026-02-30", "varchar(20)", "datetime", 242),
    ("2026-02-30", "varchar(20)", "date", 241),
    ("soon", "varchar(20)", "datetime", 241),
    ("2026-01-02 03:04+02:00", "varchar(30)", "datetime2(0)", datetime(2026, 1, 2, 3, 4)),
    ("2026-01-02T03:04:05Z", "varchar(30)", "datetime2(0)", datetime(2026, 1, 2, 3, 4, 5)),
    ("2026-01-02 03:04 +02:00", "varchar(30)", "datetime", 241),
    (datetime.max, "datetime2(7)", "datetime2(3)", datetime.max.replace(microsecond=999000)),
    ("2026-01-02 03:04 -03:30", "varchar(30)", "datetimeoffset(0)", datetime(2026, 1, 2, 3, 4, tzinfo=WEST)),
    (
        "2026-01-02 03:04 +14:00",
        "varchar(30)",
        "datetimeoffset(0)",
        datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=14))),
    ),
    ("2026-01-02 03:04 +14:01", "varchar(30)", "datetimeoffset(0)", 241),
    ("2026-01-02 03:04Z", "varchar(30)", "datetimeoffset(0)", datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
    (
        MOMENT.replace(tzinfo=EAST),
        "datetimeoffset(7)",
        "datetimeoffset(0)",
        MOMENT.replace(second=6, microsecond=0, tzinfo=EAST),
    ),
    (MOMENT.replace(tzinfo=EAST), "datetimeoffset(7)", "datetime2(6)", MOMENT),
    (MOMENT, "datetime2(7)", "datetimeoffset(6)", MOMENT.replace(tzinfo=UTC)),
]
ALL = [*INTEGERS, *NUMBERS, *TEXTS, *BINARIES, *TIMES]


@pytest.mark.parametrize(("value", "source", "target", "result"), ALL, ids=lambda value: str(value)[:24])
def test_each_conversion_has_this_result(value: Any, source: str, target: str, result: Any) -> None:
    found = converted(value, source, target)
    assert found == result
    assert type(found) is type(result)
    if isinstance(result, Decimal):
        assert str(found) == str(result)
    if isinstance(result, datetime):
        assert found.tzinfo == result.tzinfo
    assert converted(None, source, target) is None


@pytest.mark.parametrize(
    ("value", "kind", "encoded"),
    [
        (5, "int", "int:5"),
        ("a:b", "nvarchar(9)", "nvarchar(9):a:b"),
        ("a", "sysname", "nvarchar(128):a"),
        (b"\x01", "varbinary(1)", "varbinary(1):01"),
        ("a", "nvarchar(max)", "nvarchar(4000):a"),
        ("a", "varchar(max)", "varchar(8000):a"),
        (Decimal("1.50"), "decimal(9,2)", "decimal(9,2):1.50"),
        (0.1, "float", "float:0.1"),
        (IDENTIFIER, "uniqueidentifier", f"uniqueidentifier:{str(IDENTIFIER).upper()}"),
        (MOMENT, "datetime2(6)", "datetime2(6):2026-02-03 15:04:05.678900"),
        (date(2026, 1, 2), "date", "date:2026-01-02"),
        (MOMENT.replace(tzinfo=EAST), "datetimeoffset(6)", "datetimeoffset(6):2026-02-03 09:34:05.678900+00:00"),
    ],
)
def test_a_variant_keeps_value_and_type(value: Any, kind: str, encoded: str) -> None:
    assert converted(value, kind, "sql_variant") == encoded
    assert converted(encoded, "sql_variant", "sql_variant") == encoded
    found, found_type = from_variant(encoded)
    assert (found, str(found_type)) == (value, encoded.partition(":")[0])


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("2026-01-02 03:04:05 330", 330), ("2026-01-02 03:04:05 -210", -210), ("2026-01-02 03:04:05 0", 0)],
)
def test_an_offset_is_read_with_its_clock(text: str, minutes: int) -> None:
    found = read_offset(text)
    assert (found.astimezone(UTC), offset_minutes(found)) == (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), minutes)
    assert read_offset("0001-01-01 00:00:00 -60") == datetime(1, 1, 1, tzinfo=UTC)
    assert offset_minutes(None) is None


# ---------------------------------------------------------------- dates in texts


def parsed(text: str, *, is_legacy: bool = False) -> datetime | None:
    try:
        return parse_date_text(text, is_legacy=is_legacy)
    except ValueError:
        return None


@pytest.fixture
def order(request: pytest.FixtureRequest) -> Iterator[str]:
    token = DATE_ORDER.set(request.param)
    yield request.param
    DATE_ORDER.reset(token)


@pytest.mark.parametrize("order", ORDERS, indirect=True)
def test_the_order_of_the_session_decides(order: str) -> None:
    values = {"y": "49", "m": "2", "d": "3"}
    for separator in "-/.":
        assert parsed(separator.join(values[part] for part in order)) == datetime(2049, 2, 3)
    is_day_first = order.index("d") < order.index("m")
    assert parsed("2/3/2024") == (datetime(2024, 3, 2) if is_day_first else datetime(2024, 2, 3))
    assert (
        parsed("2024-02-03")
        == parsed("20240203")
        == parsed("2024-02-03T00:00:00", is_legacy=True)
        == datetime(2024, 2, 3)
    )
    assert parsed("2024-02-03", is_legacy=True) == (datetime(2024, 3, 2) if is_day_first else datetime(2024, 2, 3))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("", datetime(1900, 1, 1)),
        ("491231", datetime(2049, 12, 31)),
        ("500101", datetime(1950, 1, 1)),
        ("2024", datetime(2024, 1, 1)),
        ("Feb 3, 2024", datetime(2024, 2, 3)),
        ("3 February 49", datetime(2049, 2, 3)),
        ("03-feb-2024", datetime(2024, 2, 3)),
        ("2024 Feb", datetime(2024, 2, 1)),
        ("Feb 3", None),
        ("Febr 3 2024", None),
        ("3-2-24-1", None),
        ("1-2/24", None),
        ("10:30", datetime(1900, 1, 1, 10, 30)),
        ("12:00 AM", datetime(1900, 1, 1)),
        ("12:00PM", datetime(1900, 1, 1, 12)),
        ("1 pm", datetime(1900, 1, 1, 13)),
        ("13:00 PM", None),
        ("24:00", None),
        ("23:60", None),
        ("10", None),
        ("10:30:15.5", datetime(1900, 1, 1, 10, 30, 15, 500_000)),
        ("10:30:15:5", datetime(1900, 1, 1, 10, 30, 15, 5_000)),
        ("10:30:15.1234567", datetime(1900, 1, 1, 10, 30, 15, 123_456)),
        ("2024-02-03 1:02:03.004 PM", datetime(2024, 2, 3, 13, 2, 3, 4_000)),
        ("2024-02-03T10:30", datetime(2024, 2, 3, 10, 30)),
        ("2024-02-29", datetime(2024, 2, 29)),
        ("2023-02-29", None),
    ],
)
def test_texts_of_dates_and_times(text: str, moment: datetime | None) -> None:
    assert parsed(text) == moment


@pytest.mark.parametrize(
    ("language", "settings"),
    [
        ("us_english", ("mdy", 7)),
        ("British", ("dmy", 1)),
        ("GERMAN", ("dmy", 1)),
        ("Svenska", ("ymd", 1)),
        ("Japanese", ("ymd", 7)),
        ("Brazilian", ("dmy", 7)),
        ("Klingon", None),
    ],
)
def test_a_language_sets_order_and_first_day(language: str, settings: tuple[str, int] | None) -> None:
    found = settings_of_language(language)
    assert (found and (found.order, found.first)) == settings


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("text", "kind", "variable", "column"),
    [
        ("nvarchar", "nvarchar(1)", "text", "varchar(1)"),
        ("[varchar] ( MAX )", "varchar(max)", "text", "text"),
        ("varchar(8000)", "varchar(8000)", "text", "varchar(8000)"),
        ("nchar(4000)", "nchar(4000)", "text", "char(4000)"),
        ("sys.decimal", "decimal(18,0)", "numeric(18,0)", "numeric(18,0)"),
        ("numeric(38, 38)", "decimal(38,38)", "numeric(38,38)", "numeric(38,38)"),
        ("float(24)", "real", "real", "real"),
        ("float(25)", "float", "double precision", "double precision"),
        ("datetime2", "datetime2(7)", "timestamp(6)", "timestamp(6)"),
        ("time(0)", "time(0)", "time(0)", "time(0)"),
        ("datetimeoffset(3)", "datetimeoffset(3)", "timestamptz(3)", "timestamptz(3)"),
        ("rowversion", "binary(8)", "bytea", "bytea"),
        ("national  character varying(5)", "nvarchar(5)", "text", "varchar(5)"),
        ("sysname", "sysname", "text", "varchar(128)"),
        ("xml(dbo.c)", "xml", "text", "text"),
        ("datetime", "datetime", "timestamp(3)", "timestamp(3)"),
        ("bit", "bit", "smallint", "smallint"),
    ],
)
def test_each_type_is_stored_as(text: str, kind: str, variable: str, column: str) -> None:
    sql_type = parse_type(text)
    assert (str(sql_type), postgres_type(sql_type), column_type(sql_type)) == (kind, variable, column)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("varchar(8001)", 131),
        ("nvarchar(4001)", 131),
        ("varchar(0)", 1001),
        ("char(max)", 102),
        ("int(4)", 2716),
        ("varchar(1,2)", 102),
        ("decimal(39)", 2750),
        ("decimal(0)", 2750),
        ("decimal(5,6)", 183),
        ("time(8)", 1002),
        ("decimal(max)", 102),
        ("nothing", 2715),
        ("geography", 40515),
        ("a b.c", 2715),
    ],
)
def test_an_impossible_type_is_refused(text: str, number: int) -> None:
    with pytest.raises(TsqlError) as refused:
        parse_type(text)
    assert refused.value.number == number


@pytest.mark.parametrize("source", ["bit", "tinyint", "smallint", "int"])
def test_small_whole_numbers_without_room_are_a_star_in_a_code_page_only(source: str) -> None:
    assert no_room(parse_type(source), parse_type("varchar(1)")) is None
    refusal = no_room(parse_type(source), parse_type("nvarchar(1)"))
    assert refusal is not None
    assert refusal.number == 8115


def test_an_identity_has_the_bounds_of_its_type() -> None:
    assert "START WITH 5 INCREMENT BY -2 MINVALUE 0 MAXVALUE 255" in identity_clause(parse_type("tinyint"), 5, -2)
    assert f"MAXVALUE {2**63 - 1}" in identity_clause(parse_type("decimal(38,0)"))
