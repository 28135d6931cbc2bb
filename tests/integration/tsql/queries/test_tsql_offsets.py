"""datetimeoffset with its offset, time zones, gzip, the escapes of ODBC, and bigints for what is of a type with MAX."""

from __future__ import annotations

import gzip
import random
from datetime import date, datetime, time, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from tsql_support import error_number, rows, scalar, texts


def local_time(text: str, hours: float = 0) -> datetime:
    """A time on a clock that is so many hours ahead of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone(timedelta(hours=hours)))


NOON = "TODATETIMEOFFSET('2024-02-03 12:00:00', '+05:30')"
ZONE = "'Central European Standard Time'"
OFFSETS: dict[str, Any] = {
    "SWITCHOFFSET('2024-02-03 10:00 -09:30', 120)": local_time("2024-02-03 21:30", 2),
    f"SWITCHOFFSET({NOON}, '-08:00')": local_time("2024-02-02 22:30", -8),
    f"SWITCHOFFSET({NOON}, NULL)": None,
    "TODATETIMEOFFSET(CAST('2024-02-03 10:00' AS smalldatetime), -330)": local_time("2024-02-03 10:00", -5.5),
    "DATETIMEOFFSETFROMPARTS(2024, 2, 3, 10, 0, 0, 5, -9, -30, 1)": local_time("2024-02-03 10:00:00.5", -9.5),
    f"CONVERT(varchar(40), {NOON})": "2024-02-03 12:00:00.0000000 +05:30",
    f"CONVERT(varchar(40), {NOON}, 126)": "2024-02-03T12:00:00.0000000+05:30",
    f"CONVERT(varchar(40), {NOON}, 127)": "2024-02-03T06:30:00.0000000Z",
    f"CAST({NOON} AS datetime)": datetime(2024, 2, 3, 12),
    f"CAST(SWITCHOFFSET({NOON}, '-08:00') AS date)": date(2024, 2, 2),
    "CAST('2024-02-03 10:00 -09:30' AS datetimeoffset)": local_time("2024-02-03 10:00", -9.5),
    f"DATEPART(tz, {NOON})": 330,
    "DATENAME(TZoffset, '2024-02-03 10:00 -09:30')": "-09:30",
    "DATEPART(tzoffset, CAST('2024-02-03' AS datetime2))": 0,
    f"DATEPART(hour, {NOON})": 12,
    f"DATEADD(day, 1, {NOON})": local_time("2024-02-04 12:00", 5.5),
    f"DATETRUNC(day, {NOON})": local_time("2024-02-03", 5.5),
    f"DATEDIFF(minute, {NOON}, '2024-02-03 06:31 +00:00')": 1,
    f"FORMAT({NOON}, 'HH:mm')": "12:00",
    f"FORMAT({NOON}, 'yyyy-MM-ddTHH:mm:sszzz')": "2024-02-03T12:00:00+05:30",
    f"FORMAT(SWITCHOFFSET({NOON}, -60), 'HH zz z ''zK'' K', 'en-US')": "05 -01 -1 zK -01:00",
    f"FORMAT({NOON}, 'o')": "2024-02-03T12:00:00.0000000+05:30",
    f"(SELECT {NOON} AS a FOR XML PATH(''))": "<a>2024-02-03T12:00:00+05:30</a>",
    f"(SELECT SWITCHOFFSET({NOON}, 0) AS a, CAST(NULL AS datetimeoffset) AS b FOR XML RAW)": (
        '<row a="2024-02-03T06:30:00Z"/>'
    ),
    f"(SELECT * FROM (SELECT CAST({NOON} AS datetimeoffset(1)) a) s FOR JSON PATH)": '[{"a":"2024-02-03T06:30:00Z"}]',
    f"(SELECT DATEADD(ms, 500, {NOON}) AS a FOR JSON PATH)": '[{"a":"2024-02-03T12:00:00.5000000+05:30"}]',
    f"DAY(SWITCHOFFSET({NOON}, '-08:00'))": 2,
    f"CAST('2024-07-01 12:00' AS datetime2(0)) AT TIME ZONE {ZONE}": local_time("2024-07-01 12:00", 2),
    f"CAST('2024-01-01 12:00' AS datetime) AT TIME ZONE {ZONE}": local_time("2024-01-01 12:00", 1),
    f"CAST('2022-03-27 02:01' AS datetime2(0)) AT TIME ZONE {ZONE}": local_time("2022-03-27 03:01", 2),  # no such hour
    f"CAST('2022-10-30 02:01' AS datetime2(0)) AT TIME ZONE {ZONE}": local_time(
        "2022-10-30 02:01", 2
    ),  # an hour that comes twice
    f"CAST('2022-10-30 03:01' AS datetime2(0)) AT TIME ZONE {ZONE}": local_time("2022-10-30 03:01", 1),
    f"CASE WHEN 1 = 2 THEN SYSDATETIMEOFFSET() ELSE {NOON} END": local_time("2024-02-03 12:00", 5.5),
    f"IIF(1 = 1, {NOON}, NULL)": local_time("2024-02-03 12:00", 5.5),
    f"ISNULL(SWITCHOFFSET(NULL, 0), {NOON})": local_time("2024-02-03 12:00", 5.5),
    f"COALESCE(NULL, {NOON}, SYSDATETIMEOFFSET())": local_time("2024-02-03 12:00", 5.5),
    "CAST('2024-07-01 12:00' AS datetime2(0)) AT TIME ZONE 'UTC' AT TIME ZONE 'eastern standard time'": local_time(
        "2024-07-01 08:00", -4
    ),
}


def test_expressions_of_offsets_and_time_zones_return_their_values(db: sb.Database) -> None:
    values = {text: scalar(db, f"SELECT {text}") for text in OFFSETS}
    assert {text: repr(value) for text, value in values.items()} == {
        text: repr(value) for text, value in OFFSETS.items()
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("GETDATE() AT TIME ZONE 'nowhere'", 9820),
        ("CAST('2024-01-01' AS date) AT TIME ZONE 'UTC'", 8116),
        ("SWITCHOFFSET(SYSDATETIMEOFFSET(), '+14:01')", 9812),
        ("TODATETIMEOFFSET(GETDATE(), 'x')", 9812),
        ("DATETIMEOFFSETFROMPARTS(2024, 2, 3, 10, 0, 0, 5, 9, -30, 1)", 289),
        ("DATEPART(tz, CAST('2024-01-01' AS date))", 9810),
        ("SWITCHOFFSET(SYSDATETIMEOFFSET())", 174),
        ("DECOMPRESS(0x1F8B)", 9803),
        ("COMPRESS(5)", 8116),
        ("{fn FOO(1)}", 195),
        ("{fn TIMESTAMPADD(day, 1, GETDATE())}", 155),
        ("FORMATMESSAGE()", 174),
        (f"FORMATMESSAGE({', '.join(['1'] * 22)})", 189),
    ],
)
def test_invalid_arguments_of_offsets_and_gzip_are_refused(db: sb.Database, text: str, number: int) -> None:
    assert error_number(db, f"SELECT {text}") == number


def test_a_text_with_a_larger_offset_than_a_clock_has_is_no_date(db: sb.Database) -> None:
    assert error_number(db, "DECLARE @d datetimeoffset = '2026-01-02 10:00 +99:00'") == 241


def test_an_offset_stays_in_variables_and_a_column_has_utc(db: sb.Database) -> None:
    script = f"""
    DECLARE @a datetimeoffset = '2024-02-03 10:00:00 -09:30', @b datetimeoffset(0)
    SET @b = SWITCHOFFSET(@a, '+02:00')
    PRINT @a; PRINT CONVERT(varchar(40), @b); PRINT DATEPART(tz, @b); PRINT CAST(@b AS datetime2(0))
    SELECT @b = {NOON}; PRINT @b
    """
    assert texts(db, script) == [
        "2024-02-03 10:00:00.0000000 -09:30", "2024-02-03 21:30:00 +02:00", "120", "2024-02-03 21:30:00",
        "2024-02-03 12:00:00 +05:30",
    ]  # fmt: skip
    db.execute_tsql(f"CREATE TABLE Moments (at datetimeoffset, wall datetime2); INSERT Moments VALUES ({NOON}, {NOON})")
    ((stored, wall, there),) = rows(
        db, "SELECT at, wall, wall AT TIME ZONE 'Tokyo Standard Time' FROM Moments ORDER BY 3"
    )
    assert (stored, wall) == (local_time("2024-02-03 06:30"), datetime(2024, 2, 3, 12))
    assert repr(there) == repr(local_time("2024-02-03 12:00", 9))
    assert len(rows(db, "SELECT at FROM Moments UNION SELECT SWITCHOFFSET(at, 60) FROM Moments")) == 1


def test_sys_time_zone_info_lists_time_zones(db: sb.Database) -> None:
    assert rows(db, "SELECT * FROM sys.time_zone_info WHERE name IN ('India Standard Time', 'UTC') ORDER BY name") == [
        ("India Standard Time", "+05:30", 0), ("UTC", "+00:00", 0)
    ]  # fmt: skip


def test_login_and_user_tokens_list_the_roles(db: sb.Database) -> None:
    db.execute_tsql("CREATE USER Reader WITHOUT LOGIN; CREATE ROLE Readers; ALTER ROLE Readers ADD MEMBER Reader")
    asked = "SELECT name, type FROM sys.user_token WHERE usage = 'GRANT OR DENY' ORDER BY name"
    assert {*db.execute_tsql(f"EXECUTE AS USER = 'Reader'; {asked}").rows} == {
        ("public", "ROLE"), ("Reader", "SQL USER"), ("Readers", "ROLE")
    }  # fmt: skip
    assert ("db_owner", "ROLE") in rows(db, asked)
    result_rows = rows(
        db, "SELECT name, type FROM sys.login_token WHERE name IN ('sysadmin', SUSER_NAME()) ORDER BY principal_id"
    )
    assert [kind for _, kind in result_rows] == ["SERVER ROLE", "SQL LOGIN"]


@pytest.mark.parametrize("size", [0, 1, 300, 3000])
def test_compress_and_gzip_read_each_others_output(db: sb.Database, size: int) -> None:
    rng = random.Random(size)
    text = b"".join(rng.choice([b"order ", b"\xff", b"stock stock ", bytes([rng.randrange(256)])]) for _ in range(size))
    packed, back = rows(db, f"SELECT COMPRESS(0x{text.hex()}), DECOMPRESS(COMPRESS(0x{text.hex()}))")[0]
    assert (gzip.decompress(packed), back) == (text, text)
    assert size < 300 or len(packed) < len(text)
    for level in (0, 1, 9):
        assert scalar(db, f"SELECT DECOMPRESS(0x{gzip.compress(text, level).hex()})") == text


def test_compress_keeps_strings_and_decompress_refuses_damage(db: sb.Database) -> None:
    assert scalar(db, "SELECT CAST(DECOMPRESS(COMPRESS('Käse')) AS varchar(max))") == "Käse"
    assert scalar(db, "SELECT CAST(DECOMPRESS(COMPRESS(N'店')) AS nvarchar(max))") == "店"
    assert scalar(db, "SELECT COMPRESS(NULL)") is None
    broken = gzip.compress(b"order order order")[:-8] + bytes(8)
    assert error_number(db, f"SELECT DECOMPRESS(0x{broken.hex()})") == 9803


DAY = "{d '2024-02-29'}"
ESCAPES: dict[str, Any] = {
    "{fn UCASE('a')} + {fn LCASE('B')} + {fn INSERT('abc', 1, 1, 'x')}": "Abxbc",
    "{fn LENGTH('abc')} + {fn LOCATE('a', 'bab', 2)}": 5,
    "{fn CONCAT('a', NULL)}": None,
    "{fn IFNULL(NULL, {fn REPEAT('a', 3)})}": "aaa",
    "{fn MOD(7, 3)} + {fn BIT_LENGTH('ab')} + {fn OCTET_LENGTH(N'ab')}": 21,
    "{fn CONVERT('5', SQL_INTEGER)}": 5,
    f"{{fn DAYOFWEEK({DAY})}} + {{fn DAYOFYEAR({DAY})}} + {{fn QUARTER({DAY})}} + {{fn WEEK({DAY})}}": 5 + 60 + 1 + 9,
    f"{{fn EXTRACT(YEAR FROM {DAY})}}": 2024,
    f"{{fn MONTHNAME({DAY})}} + {{fn DAYNAME({DAY})}}": "FebruaryThursday",
    "{fn TIMESTAMPADD(SQL_TSI_DAY, 1, {ts '2024-02-29 10:00:00'})}": datetime(2024, 3, 1, 10),
    f"{{fn TIMESTAMPDIFF(SQL_TSI_HOUR, {DAY}, {{ts '2024-02-29 12:00:00'}})}}": 12,
    "CAST({t '10:00:00'} AS time(0))": time(10),
    "{guid '6F9619FF-8B86-D011-B42D-00C04FC964FF'}": UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    "CASE WHEN {fn CURRENT_DATE()} = CONVERT(varchar(10), {fn NOW()}, 23) THEN {fn DATABASE()} END": "Db",
    "CONCAT(ODBCSCALE(106, 4), ',', ODBCSCALE(61, 0), ',', ODBCSCALE(231, 0), ',', ODBCPREC(231, 100, 0))": "4,3,,50",
    "FORMATMESSAGE('plain') + FORMATMESSAGE(' %s', 'x') + FORMATMESSAGE(' %d')": "plain x (null)",
}


def test_escapes_of_odbc(db: sb.Database) -> None:
    assert {text: scalar(db, f"SELECT {text}") for text in ESCAPES} == ESCAPES
    assert texts(db, "IF {fn LENGTH('a')} = 1 PRINT {fn UCASE('yes')}") == ["YES"]


def test_sizes_of_max_are_used_like_those_of_int(db: sb.Database) -> None:
    script = """DECLARE @m nvarchar(max) = N'abc  '
    SELECT SUBSTRING(@m, LEN(@m), 1), LEFT(@m, LEN(@m) - 1), REPLICATE('x', LEN(@m)), STUFF(@m, LEN(@m), 1, ''),
        CHARINDEX('c', @m, CHARINDEX('b', @m)), DATALENGTH(@m), SQL_VARIANT_PROPERTY(LEN(@m), 'BaseType')"""
    assert db.execute_tsql(script).rows == [("c", "ab", "xxx", "ab  ", 3, 10, "bigint")]
