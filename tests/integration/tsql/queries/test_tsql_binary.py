"""CAST between binary and the other types, byte for byte as SQL Server has it; how dates are written."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb

TO_BYTES = [
    ("1", "binary(4)", "00000001"),
    ("1", "binary(8)", "0000000000000001"),
    ("123456", "binary(2)", "e240"),
    ("123456", "varbinary(2)", "e240"),
    ("-1", "varbinary(10)", "ffffffff"),
    ("CAST(1 AS bigint)", "varbinary(8)", "0000000000000001"),
    ("CAST(258 AS smallint)", "varbinary(8)", "0102"),
    ("CAST(255 AS tinyint)", "varbinary(8)", "ff"),
    ("CAST(1 AS bit)", "varbinary(8)", "01"),
    ("'abc'", "binary(5)", "6162630000"),
    ("'abc'", "varbinary(2)", "6162"),
    ("N'abc'", "varbinary(10)", "610062006300"),
    ("CAST('2020-01-02T03:04:05' AS datetime)", "varbinary(8)", "0000ab3600328f5c"),
    ("CAST('2020-01-02T03:04:05' AS smalldatetime)", "varbinary(4)", "ab3600b8"),
    ("CAST('2020-01-02' AS date)", "varbinary(3)", "91400b"),
    ("CAST('03:04:05' AS time(0))", "varbinary(8)", "00252b00"),
    ("CAST('2020-01-02 03:04:05.1234567' AS datetime2(3))", "varbinary(9)", "030389a80091400b"),
    ("1.5", "varbinary(20)", "020100010f000000"),
    ("-1.5", "varbinary(20)", "020100000f000000"),
    ("CAST(12345678901234567890 AS decimal(38,0))", "varbinary(20)", "26000001d20a1feb8ca954ab"),
    ("CAST(1.5 AS money)", "varbinary(8)", "0000000000003a98"),
    ("CAST(-1.5 AS smallmoney)", "varbinary(4)", "ffffc568"),
    ("CAST(1.5 AS float)", "varbinary(8)", "3ff8000000000000"),
    ("CAST(1.5 AS real)", "varbinary(8)", "3fc00000"),
    ("CAST('03020100-0504-0706-0809-0A0B0C0D0E0F' AS uniqueidentifier)", "binary(16)", bytes(range(16)).hex()),
    ("CAST('<a/>' AS xml)", "varbinary(max)", "fffe3c0061002f003e00"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "to", "expected"), TO_BYTES, ids=[f"{value} {to}" for value, to, _ in TO_BYTES])
def test_values_convert_to_bytes(db: sb.Database, value: str, to: str, expected: str) -> None:
    script = f"DECLARE @b {to} = CAST({value} AS {to}) SELECT CAST({value} AS {to}), @b, CONVERT({to}, {value})"
    assert [bytes(each).hex() for each in db.execute_tsql(script).rows[0]] == [expected] * 3


FROM_BYTES: list[tuple[str, str, Any]] = [
    ("0x0102030405", "int", 0x02030405),
    ("0x0102", "int", 258),
    ("0xFFFFFFFF", "int", -1),
    ("0x0102030405060708", "bigint", 0x0102030405060708),
    ("0x8000", "smallint", -32768),
    ("0x0180", "tinyint", 128),
    ("0x00", "bit", 0),
    ("0x0000AB3600328F5C", "datetime", datetime.datetime(2020, 1, 2, 3, 4, 5)),
    ("0xAB3600B8", "smalldatetime", datetime.datetime(2020, 1, 2, 3, 4)),
    ("0x91400B", "date", datetime.date(2020, 1, 2)),
    ("0x00252B00", "time(0)", datetime.time(3, 4, 5)),
    ("0x030389A80091400B", "datetime2(3)", datetime.datetime(2020, 1, 2, 3, 4, 5, 123000)),
    ("0x020100000F000000", "decimal(5,1)", Decimal("-1.5")),
    ("0x26000001D20A1FEB8CA954AB", "decimal(38,0)", Decimal("12345678901234567890")),
    ("0x0000000000003A98", "money", Decimal("1.5")),
    ("0xFFFFC568", "smallmoney", Decimal("-1.5")),
    ("0xFF19966F868B11D0B42D00C04FC964FF", "uniqueidentifier", UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")),
    ("0xFFFE3C0061002F003E00", "xml", "<a/>"),
]


@pytest.mark.parametrize(("value", "to", "expected"), FROM_BYTES, ids=[f"{value} {to}" for value, to, _ in FROM_BYTES])
def test_values_convert_from_bytes(db: sb.Database, value: str, to: str, expected: object) -> None:
    script = f"DECLARE @v {to} = CAST({value} AS {to}) SELECT CAST({value} AS {to}), @v, CONVERT({to}, {value})"
    assert db.execute_tsql(script).rows[0] == (expected, expected, expected)


@pytest.mark.parametrize("to", ["float", "real"])
def test_no_float_comes_from_bytes(db: sb.Database, to: str) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(f"SELECT CAST(0x3FF8000000000000 AS {to})")
    assert error.value.number == 529


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("datetime", "Jan  2 2020  3:04AM"),
        ("datetime2", "2020-01-02 03:04:05.6780000"),
        ("datetime2(3)", "2020-01-02 03:04:05.678"),
        ("datetime2(0)", "2020-01-02 03:04:06"),
        ("time(1)", "03:04:05.7"),
        ("date", "2020-01-02"),
        ("datetimeoffset(0)", "2020-01-02 03:04:06 +00:00"),
    ],
)
def test_dates_convert_to_text_in_the_default_style(db: sb.Database, of: str, expected: str) -> None:
    script = (
        f"DECLARE @m {of} = '20200102 03:04:05.678' PRINT @m SELECT CAST(@m AS nvarchar(40)), CONVERT(varchar(40), @m)"
    )
    results = db.execute_tsql(script)
    assert (results.messages[0].text, *results.rows[0]) == (expected, expected, expected)


def test_dates_of_the_catalog_and_of_queues_have_three_digits_and_no_zone(db: sb.Database) -> None:
    db.execute_tsql(
        """
        CREATE QUEUE Dated; CREATE SERVICE DatedService ON QUEUE Dated ([DEFAULT])
        DECLARE @h uniqueidentifier
        BEGIN DIALOG @h FROM SERVICE DatedService TO SERVICE 'DatedService' WITH ENCRYPTION = OFF;
        SEND ON CONVERSATION @h
        """
    )
    for query in (
        "SELECT message_enqueue_time FROM Dated",
        "SELECT * FROM (SELECT message_enqueue_time FROM Dated) q",
        "SELECT create_date FROM sys.service_queues WHERE name = 'Dated'",
        "SELECT lifetime FROM sys.conversation_endpoints",
    ):
        moment = db.execute_tsql(query).rows[0][0]
        assert isinstance(moment, datetime.datetime)
        assert moment.tzinfo is None
        assert moment.microsecond % 1000 == 0
    text = (
        "SELECT COUNT(*) FROM Dated WHERE message_enqueue_time BETWEEN DATEADD(hour, -1, GETUTCDATE()) AND GETUTCDATE()"
    )
    assert db.execute_tsql(text).rows == [(1,)]
