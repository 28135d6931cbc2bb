"""U+0000 in strings of T-SQL is stored and returned like any other character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import servicebroker as sb
from servicebroker.model.zero_character import ZERO, from_postgres, to_postgres
from servicebroker.tsql.statement_errors import TsqlError
from support import ORDER, STOCK_QUEUE, begin, query


@pytest.fixture(scope="module")
def zeros(instance: sb.Instance) -> sb.Database:
    return instance.database("Zeros", create=True)


# The answers of SQL Server in a database with Latin1_General_BIN2.
VALUES: dict[str, Any] = {
    "CHAR(0)": "\0",
    "NCHAR(0)": "\0",
    "CHAR(256)": None,
    "CHAR(-1)": None,
    "NCHAR(65536)": None,
    "UNICODE(NCHAR(65535))": 65535,
    "REPLACE(N'abc', NCHAR(0), N'')": "abc",
    "REPLACE('abc', CHAR(0), '')": "abc",
    "REPLACE(N'a' + NCHAR(0) + N'b', NCHAR(0), N'')": "ab",
    "REPLACE((N'a' + NCHAR(0) + N'b') COLLATE Latin1_General_BIN2, NCHAR(0), N'-')": "a-b",
    "REPLACE(('a' + CHAR(0)) COLLATE SQL_Latin1_General_CP1_CI_AS, CHAR(0), '-')": "a-",
    "REPLACE(N'a-b', N'-', NCHAR(0))": "a\0b",
    "LEN(CHAR(0))": 1,
    "LEN(N'ab' + NCHAR(0) + N'c')": 4,
    "LEN(CHAR(0) + '  ')": 1,
    "DATALENGTH(CHAR(0))": 1,
    "DATALENGTH(NCHAR(0))": 2,
    "DATALENGTH(N'a' + NCHAR(0) + N'b')": 6,
    "DATALENGTH(CAST('ab' + CHAR(0) + 'c' AS varbinary(10)))": 4,
    "ASCII(CHAR(0))": 0,
    "ASCII(NCHAR(0) + N'a')": 0,
    "ASCII('')": None,
    "ASCII('€')": 128,
    "ASCII(N'ж')": 63,
    "UNICODE(NCHAR(0))": 0,
    "UNICODE(N'')": None,
    "CHARINDEX(CHAR(0), 'abc')": 0,
    "CHARINDEX(NCHAR(0), N'ab' + NCHAR(0) + N'c')": 3,
    "CHARINDEX(N'c', N'ab' + NCHAR(0) + N'c')": 4,
    "SUBSTRING(N'ab' + NCHAR(0) + N'c', 3, 2)": "\0c",
    "LEFT('a' + CHAR(0) + 'b', 2)": "a\0",
    "RIGHT('a' + CHAR(0) + 'b', 2)": "\0b",
    "REVERSE('a' + CHAR(0) + 'b' + CHAR(0))": "\0b\0a",
    "REPLICATE(CHAR(0), 3)": "\0\0\0",
    "STUFF('abc', 2, 1, CHAR(0))": "a\0c",
    "UPPER('a' + CHAR(0) + 'b')": "A\0B",
    "TRANSLATE('a' + CHAR(0), CHAR(0), 'x')": "ax",
    "TRIM(CHAR(0) FROM CHAR(0) + 'a' + CHAR(0))": "a",
    "QUOTENAME('a' + CHAR(0))": "[a\0]",
    "CONCAT('a', CHAR(0), NULL, 1)": "a\x001",
    "CONCAT_WS(CHAR(0), 'a', 'b')": "a\0b",
    "ISNULL(NULLIF(N'abc', NCHAR(0)), N'?')": "abc",
    "NULLIF(NCHAR(0), NCHAR(0))": None,
    "FORMATMESSAGE('%s|', 'a' + CHAR(0))": "a\0|",
    "STRING_ESCAPE(N'a' + NCHAR(0), 'json')": "a\\u0000",
    "SOUNDEX('Robert' + CHAR(0))": "R163",
    # patterns: U+0000 is the first character of every range
    "PATINDEX('%' + CHAR(0) + '%', 'ab' + CHAR(0))": 3,
    "PATINDEX('%[^' + CHAR(0) + '-' + CHAR(127) + ']%', 'ab' + CHAR(0) + 'é')": 4,
    "PATINDEX('%[' + CHAR(0) + '-' + CHAR(31) + ']%', 'ab' + CHAR(9))": 3,
    "PATINDEX('%[' + CHAR(0) + '-' + CHAR(31) + ']%', 'ab~é')": 0,
    "PATINDEX(N'%[\0-\x1f]%', N'ab' + NCHAR(0))": 3,
    "PATINDEX(N'%[a-\0]%', N'ab' + NCHAR(0))": 0,
    "IIF('a' + CHAR(0) LIKE '_[' + CHAR(0) + ']', 1, 0)": 1,
    "IIF(N'a' + NCHAR(0) LIKE N'%\0', 1, 0)": 1,
    "IIF('ab' LIKE '%' + CHAR(0) + '%', 1, 0)": 0,
    "IIF('ab' LIKE '[a-' + CHAR(0) + ']b', 1, 0)": 0,
    "IIF('ab' LIKE '[' + ']b', 1, 0)": 0,
    "IIF('ab' LIKE '_[^a-' + CHAR(0) + ']', 1, 0)": 1,
    "IIF('a' + CHAR(0) LIKE '%x' + CHAR(0) ESCAPE 'x', 1, 0)": 1,
    # comparison
    "IIF(CHAR(0) = '', 1, 0)": 0,
    "IIF(NCHAR(0) = NCHAR(0), 1, 0)": 1,
    "IIF('a' + CHAR(0) = 'a' + CHAR(0) + ' ', 1, 0)": 1,
    "IIF(CHAR(0) < CHAR(1), 1, 0)": 1,
    "IIF(NCHAR(0) < N'a', 1, 0)": 1,
    "IIF('a' + CHAR(0) BETWEEN 'a' + CHAR(0) AND 'a' + CHAR(1), 1, 0)": 1,
    "IIF(CAST(CHAR(0) AS sql_variant) < CAST('a' AS sql_variant), 1, 0)": 1,
    "IIF(CHAR(0) IN ('a', CHAR(0)), 1, 0)": 1,
    # bytes
    "CAST(0x61006200 AS nvarchar(10))": "ab",
    "CAST(0x610000006200 AS nvarchar(10))": "a\0b",
    "CAST(0x610062 AS varchar(10))": "a\0b",
    "CAST(0x00004100 AS nvarchar(10)) + CAST(0x4200 AS varchar(10))": "\0AB\0",
    "IIF(CAST(0x0000 AS nvarchar(1)) = NCHAR(0) AND CAST(0x00 AS varchar(1)) = CHAR(0), 1, 0)": 1,
    "CAST(N'a' + NCHAR(0) + N'é' AS varbinary(20))": b"a\0\0\0\xe9\0",
    "CAST('a' + CHAR(0) + 'é' AS varbinary(20))": b"a\0\xe9",
    "CAST('a' + CHAR(0) AS binary(4))": b"a\0\0\0",
    "CAST(CAST(0x00410081FF00 AS varchar(9)) AS varbinary(9))": b"\0A\0\x81\xff\0",
    "CAST(CAST(CAST(0x0041 AS varchar(9)) AS sql_variant) AS varbinary(9))": b"\0A",
    "CONVERT(varchar(20), CAST('a' + CHAR(0) AS varbinary(9)), 1)": "0x6100",
    "HASHBYTES('MD5', CHAR(0))": bytes.fromhex("93b885adfe0da089cdf634904fd59f71"),
    "CAST(0x2400 AS nvarchar(1))": "$",
    "CAST(0x0024 AS nvarchar(1))": "␀",  # the sign for the character is a character of its own
    "UNICODE(N'␀')": 9216,
    "CAST(N'␀' AS varbinary(2))": b"\0\x24",
    "CAST(0xFFDBFFDF AS nvarchar(2))": "\ufffd",  # PostgreSQL's stand-in for U+0000 is not a character of ours
    # JSON
    "JSON_VALUE(N'{\"a\":\"x\\u0000y\"}', '$.a')": "x\0y",
    "JSON_VALUE(N'{\"a\":\"x\\\\u0000\"}', '$.a')": "x\\u0000",
    "JSON_QUERY(N'{\"a\":[\"\\u0000\"]}', '$.a')": '["\\u0000"]',
    "JSON_MODIFY(N'{\"a\":\"\\u0000\"}', '$.b', N'x' + NCHAR(0))": '{"a":"\\u0000","b":"x\\u0000"}',
    'ISJSON(N\'{"a":"\\u0000"}\')': 1,
    "ISJSON(N'{\"a\":\"' + NCHAR(0) + N'\"}')": 0,
    "ISJSON(N'{\"a\":\"\\u0000' + NCHAR(0) + N'\"}')": 0,
    "JSON_OBJECT('a':NCHAR(0))": '{"a":"\\u0000"}',
    "JSON_ARRAY(CHAR(0))": '["\\u0000"]',
    "(SELECT NCHAR(0) AS a FOR JSON PATH)": '[{"a":"\\u0000"}]',
    "(SELECT value FROM OPENJSON(N'[\"a\\u0000\"]'))": "a\0",
    '(SELECT a FROM OPENJSON(N\'{"a":"\\u0000b"}\') WITH (a nvarchar(9)))': "\0b",
    # rows
    "(SELECT STRING_AGG(value, CHAR(0)) FROM STRING_SPLIT('a,b', ','))": "a\0b",
    "(SELECT COUNT(*) FROM STRING_SPLIT('a' + CHAR(0) + 'b', CHAR(0)))": 2,
    "(SELECT MAX(v) FROM (VALUES ('a' + CHAR(0))) x(v))": "a\0",
}


@pytest.mark.parametrize("expression", VALUES)
def test_values_are_those_of_sql_server(zeros: sb.Database, expression: str) -> None:
    expected = VALUES[expression]
    assert zeros.execute_tsql(f"SELECT {expression}").rows == [(expected,)]
    assigned = zeros.execute_tsql(f"DECLARE @v sql_variant, @n nvarchar(max); SET @n = N'x'; SELECT {expression}, @n")
    assert assigned.rows == [(expected, "x")]


def test_null_is_not_a_character(zeros: sb.Database) -> None:
    script = "SELECT CASE WHEN CHAR(0) IS NULL THEN 1 ELSE 0 END, CASE WHEN NCHAR(0) IS NULL THEN 1 ELSE 0 END"
    assert zeros.execute_tsql(script).rows == [(0, 0)]


def test_variables_are_compared_here_as_in_postgresql(zeros: sb.Database) -> None:
    """An expression is evaluated in two ways: a simple IF in Python, and a SELECT in PostgreSQL."""
    script = """
        DECLARE @z char(1) = CHAR(0), @o char(1) = CHAR(1), @e varchar(1) = '', @n int = 0
        IF @z < @o SET @n += 1
        IF @z > @e SET @n += 10
        IF @z = @e SET @n += 100
        IF @z + 'a' = CHAR(0) + 'a' SET @n += 1000
        SELECT @n, IIF(@z < @o, 1, 0) + IIF(@z > @e, 10, 0) + IIF(@z = @e, 100, 0)
    """
    assert zeros.execute_tsql(script).rows == [(1011, 11)]


def test_u0000_is_accepted_wherever_a_string_is(zeros: sb.Database) -> None:
    """Parameters, columns, OUTPUT, cursors, procedures, functions, PRINT, RAISERROR, session context."""
    zeros.execute_tsql("""
        CREATE TABLE dbo.Kept (id int IDENTITY PRIMARY KEY, v varchar(3) UNIQUE, n nvarchar(max), c nchar(2),
                               s sql_variant, d AS REPLACE(v, CHAR(0), '-'), CHECK (CHARINDEX(CHAR(1), v) = 0))
        GO
        CREATE PROCEDURE dbo.Echo @v nvarchar(max), @o nvarchar(max) OUTPUT AS SET @o = @v + N'\0' RETURN LEN(@v)
        GO
        CREATE FUNCTION dbo.Twice(@v nvarchar(max)) RETURNS nvarchar(max) AS BEGIN RETURN @v + NCHAR(0) + @v END
        GO
        CREATE TRIGGER dbo.Copies ON dbo.Kept AFTER UPDATE AS
            UPDATE k SET n = i.v FROM dbo.Kept k JOIN inserted i ON k.id = i.id
    """)
    insert = "INSERT dbo.Kept (v, n, c, s) OUTPUT inserted.v, inserted.d VALUES (@v, @v, @v, @v)"
    assert zeros.execute_tsql(insert, {"v": "a\0b"[:2]}).rows == [("a\0", "a-")]
    stored = zeros.execute_tsql("SELECT v, n, c, s FROM dbo.Kept WHERE v = @v AND c = @v", {"v": "a\0"}).rows
    assert stored == [("a\0",) * 4]
    assert query(zeros, "select v from zeros_dbo.kept") == [("a" + ZERO,)]
    with pytest.raises(TsqlError, match="a\0") as error:
        zeros.execute_tsql(insert, {"v": "a\0"})
    assert error.value.number == 2627
    zeros.execute_tsql("UPDATE dbo.Kept SET v = '\0'")
    script = """
        DECLARE @f nvarchar(max), @o nvarchar(max), @r int, @t TABLE (v nvarchar(9))
        DECLARE c CURSOR FOR SELECT n FROM dbo.Kept
        OPEN c FETCH NEXT FROM c INTO @f CLOSE c DEALLOCATE c
        EXEC @r = dbo.Echo @f, @o OUTPUT
        EXEC sp_set_session_context N'k', @o
        INSERT @t VALUES (@o)
        BEGIN TRAN ROLLBACK
        SELECT @f, @o, @r, dbo.Twice(@f), CAST(SESSION_CONTEXT(N'k') AS nvarchar(9)), (SELECT v FROM @t)
        PRINT @o
        RAISERROR('%s', 10, 1, @o)
    """
    results = zeros.execute_tsql(script)
    assert results.rows == [("\0", "\0\0", 1, "\0\0\0", "\0\0", "\0\0")]
    assert [message.text for message in results.messages] == ["\0\0", "\0\0"]
    assert "\0" in zeros.execute_tsql("SELECT OBJECT_DEFINITION(OBJECT_ID('dbo.Echo'))").rows[0][0]
    assert any("\0" in line for (line,) in zeros.execute_tsql("EXEC sp_helptext 'dbo.Echo'").rows)
    with pytest.raises(TsqlError, match="value 'a\0'") as failed:
        zeros.execute_tsql("SELECT CAST(v AS int) FROM (VALUES ('a' + CHAR(0))) x(v)")
    assert failed.value.number == 245


def test_a_definition_with_it_is_shown_and_told(database: sb.Database) -> None:
    """XML cannot carry the character: an event notification goes on, and says U+FFFD."""
    told = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"
    database.execute_tsql(f"""
        CREATE QUEUE dbo.Told; CREATE SERVICE Tells ON QUEUE dbo.Told ([{told}])
        CREATE EVENT NOTIFICATION news ON DATABASE FOR CREATE_TABLE TO SERVICE 'Tells', 'current database'
        CREATE TABLE dbo.Spoken (a nvarchar(9) DEFAULT N'x\0y', b int)
        INSERT dbo.Spoken (b) VALUES (1)
    """)
    assert database.execute_tsql("SELECT a FROM dbo.Spoken").rows == [("x\0y",)]
    assert "x\0y" in database.execute_tsql("SELECT definition FROM sys.default_constraints").rows[0][0]
    helped = database.execute_tsql("EXEC sp_helpconstraint 'dbo.Spoken'")
    assert any("x\0y" in row[6] for row in helped.sets[1].rows)
    (message,) = database.receive("Told")
    assert "x\ufffdy" in sb.read_event(message.message_body).command


def test_locks_whose_names_differ_in_it_are_two(zeros: sb.Database) -> None:
    script = "EXEC sp_getapplock @Resource = @r, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0"
    with zeros.tsql_session() as first, zeros.tsql_session() as second:
        said = f"DECLARE @g int {script.replace('EXEC ', 'EXEC @g = ')} SELECT @g"
        assert first.execute(said, {"r": "a\0"}).rows == [(0,)]
        assert second.execute(said, {"r": "a"}).rows == [(0,)]
        assert second.execute(said, {"r": "a\0"}).rows == [(-1,)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SELECT CAST(N'<a>' + NCHAR(0) + N'</a>' AS xml)", 9420),
        ("DECLARE @x xml = N'<a>' + NCHAR(0) + N'</a>'", 9420),
        ("DECLARE @s nvarchar(9) = N'<a>\0</a>', @x xml SET @x = @s", 9420),
        ("SELECT CAST(0x3C613E003C2F613E AS xml)", 9420),
        ("SELECT CAST('<a>&#x0;</a>' AS xml)", 9420),
        (
            "DECLARE @x xml = N'<r/>', @s nvarchar(9) = NCHAR(0) "
            "SET @x.modify('insert text{sql:variable(\"@s\")} into (/r)[1]')",
            9420,
        ),
        ("SELECT NCHAR(0) AS a FOR XML PATH", 6841),
        ("SELECT CHAR(0) AS '@a' FOR XML PATH", 6841),
        ("SELECT CHAR(0) AS [data()] FOR XML PATH('')", 6841),
        ("SELECT JSON_VALUE(N'{\"a\":\"' + NCHAR(0) + N'\"}', '$.a')", 13609),
    ],
)  # fmt: skip
def test_u0000_is_refused_in_xml_and_names(zeros: sb.Database, text: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        zeros.execute_tsql(text)
    assert error.value.number == number


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE [a\0b] (x int)",
        "SELECT 1 AS x INTO dbo.[a\0b]",
        "DECLARE @t TABLE ([a\0b] int)",
        "SELECT [a\0] FROM (SELECT 1 AS b) AS s",
        "SELECT x.b FROM (SELECT 1 AS b) AS [x\0]",
        "CREATE VIEW dbo.[v\0w] AS SELECT 1 AS x",
        "CREATE SEQUENCE dbo.[s\0t]",
        "CREATE SCHEMA [s\0t]",
        "EXEC sp_rename 'dbo.Named', 'Na\0med'",
    ],
)
def test_a_name_that_has_it_is_refused_whole(zeros: sb.Database, text: str) -> None:
    """The part before the character has no effect."""
    zeros.execute_tsql("IF OBJECT_ID('dbo.Named') IS NULL CREATE TABLE dbo.Named (x int)")
    before = query(zeros, "select count(*) from pg_class")
    with pytest.raises(TsqlError) as error:
        zeros.execute_tsql(text)
    assert error.value.number in (40515, 15151)
    assert query(zeros, "select count(*) from pg_class") == before


def test_a_body_that_is_sent_comes_back(database: sb.Database) -> None:
    handle = begin(database)
    pattern = f"""
        DECLARE @n nvarchar(9) = N'a' + NCHAR(0) + N'b', @v varchar(9) = 'a' + CHAR(0) + 'b'
        SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (@n)
        SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (@v)
        SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (CAST(@n + N'!' AS varbinary(max)))
    """
    database.execute_tsql(pattern, {"h": handle})
    rows = database.execute_tsql(f"""
        DECLARE @m TABLE (id bigint, body varbinary(max))
        RECEIVE queuing_order, message_body FROM {STOCK_QUEUE} INTO @m
        SELECT body, CASE DATALENGTH(body) WHEN 3 THEN CAST(body AS varchar(9)) ELSE CAST(body AS nvarchar(9)) END
          FROM @m ORDER BY id
    """).rows
    assert rows == [
        ("a\0b".encode("utf-16-le"), "a\0b"),
        (b"a\0b", "a\0b"),
        ("a\0b!".encode("utf-16-le"), "a\0b!"),
    ]
    database.send(handle, ORDER, "c\0d".encode("utf-16-le"))
    received = f"DECLARE @b nvarchar(9); RECEIVE TOP (1) @b = message_body FROM {STOCK_QUEUE}; SELECT @b, LEN(@b)"
    assert database.execute_tsql(received).rows == [("c\0d", 3)]
    database.send(handle, ORDER, "e\0".encode("utf-16-le"))
    listed = f"RECEIVE CAST(message_body AS nvarchar(9)) AS b FROM {STOCK_QUEUE}"
    assert database.execute_tsql(listed).rows == [("e\0",)]


def test_the_representation_is_one() -> None:
    assert to_postgres("a\0") == "a" + ZERO
    assert from_postgres(to_postgres("a\0␀")) == "a\0␀"
    assert to_postgres(ZERO) == "\ufffd"


def test_the_representation_of_postgresql_is_pythons(zeros: sb.Database) -> None:
    assert query(zeros, "select tsql.zero()") == [(ZERO,)]


_CHARACTERS = st.sampled_from("\0\0\1ab €é\x81␀\uffff🙂%_[]^-'\\\n\"") | st.characters(
    exclude_categories=["Cs"], exclude_characters=ZERO
)
_SINGLES = st.binary(max_size=12)


@settings(max_examples=60, deadline=None)
@given(text=st.text(_CHARACTERS, max_size=12), sign=_CHARACTERS, place=st.integers(1, 13))
def test_strings_with_zero_characters_keep_them(zeros: sb.Database, text: str, sign: str, place: int) -> None:
    """As a parameter, as a literal, in bytes, cut, joined, sought, replaced, as a column and as JSON."""
    written = "N'" + text.replace("'", "''") + "'"
    script = f"""
        DECLARE @rows TABLE (v nvarchar(50)); INSERT @rows VALUES (@t)
        SELECT @t, {written}, CAST(@t AS varbinary(max)), CAST(CAST(@t AS varbinary(max)) AS nvarchar(max)),
               LEN(@t + N'.') - 1, DATALENGTH(@t), CHARINDEX(@s, @t), REPLACE(@t, @s, N''),
               SUBSTRING(@t, @p, 3) + STUFF(@t + N'..............', @p, 1, @s), REVERSE(@t), CONCAT(@s, @t),
               (SELECT v FROM @rows), JSON_VALUE((SELECT @t AS v FOR JSON PATH, WITHOUT_ARRAY_WRAPPER), '$.v'),
               IIF(@t = {written}, 1, 0), IIF(@t < @t + @s, 1, 0)
    """
    ((*found,),) = zeros.execute_tsql(script, {"t": text, "s": sign, "p": place}).rows
    data = text.encode("utf-16-le")
    padded = text + ".............."
    assert found == [
        text, text, data, text,
        len(text), len(data), text.find(sign) + 1, text.replace(sign, ""),
        text[place - 1 : place + 2] + padded[: place - 1] + sign + padded[place:], text[::-1], sign + text,
        text, text or None if text else "",
        1, int(sign != " "),
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(data=_SINGLES)
def test_casts_between_strings_and_bytes_keep_zero_bytes(zeros: sb.Database, data: bytes) -> None:
    """CAST makes a string of bytes and the same bytes again, in PostgreSQL and in a variable."""
    even = data + b"a" * (len(data) % 2)
    script = """
        DECLARE @v varchar(50) = @b, @a varbinary(50); SET @a = CAST(@v AS varbinary(50))
        SELECT CAST(CAST(@b AS varchar(50)) AS varbinary(50)), @a, IIF(@v = CAST(@b AS varchar(50)), 1, 0),
               LEN(@v + '.') - 1
    """
    assert zeros.execute_tsql(script, {"b": data}).rows == [(data, data, 1, len(data))]
    national = (
        "DECLARE @n nvarchar(50) = @b SELECT @n, CAST(@b AS nvarchar(50)), IIF(@n = CAST(@b AS nvarchar(50)), 1, 0)"
    )
    expected = even.decode("utf-16-le", "replace").replace(ZERO, "\ufffd")
    assert zeros.execute_tsql(national, {"b": even}).rows == [(expected, expected, 1)]
