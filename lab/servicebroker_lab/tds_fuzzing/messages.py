"""Messages of clients that make sense, and their changes."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.tds.byte_reader import encode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.packets import END_OF_MESSAGE, IGNORE_MESSAGE, PacketType
from servicebroker.tds.requests import TransactionRequestType
from servicebroker.tsql.types import SqlType
from servicebroker_lab.fuzzing.mutations import mutate
from servicebroker_lab.tds_client import (
    ENCRYPTED_PRELOGIN,
    NO_HEADERS,
    PLAIN_PRELOGIN,
    batch_message,
    call,
    login_message,
    packets,
    parameter,
)
from servicebroker_lab.tds_fuzzing.site import CONTRACT, DATABASE, PASSWORD, QUEUE, SERVICE

MAX_MESSAGE_BYTES = 300_000

# probabilities for each message
CONTENT_CHANGE_RATE, PACKET_CHANGE_RATE, STATUS_CHANGE_RATE, RESET_RATE = 0.2, 0.05, 0.05, 0.05

_DIALOG = (
    "DECLARE @h uniqueidentifier; "
    f"BEGIN DIALOG @h FROM SERVICE [{SERVICE}] TO SERVICE '{SERVICE}' ON CONTRACT [{CONTRACT}] "
    "WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h (N'text')"
)
_BATCHES = (
    "SELECT 1", "", ";", "PRINT N'grüß'", "SELECT @@VERSION, @@SPID, @@TRANCOUNT", "RAISERROR('broken', 16, 3)",
    "RAISERROR('now', 1, 1) WITH NOWAIT; SELECT 1", "SELECT 1/0", "SELECT * FROM Nowhere", "SELEC 1", "GO\nGO",
    "BEGIN TRANSACTION", "COMMIT", "ROLLBACK", "IF @@TRANCOUNT > 0 ROLLBACK", "SET XACT_ABORT ON", "SET NOCOUNT ON",
    "SET IMPLICIT_TRANSACTIONS ON", "SET IMPLICIT_TRANSACTIONS OFF", "SET ROWCOUNT 1", "SET NOEXEC OFF",
    "BEGIN TRY SELECT 1/0 END TRY BEGIN CATCH SELECT ERROR_NUMBER(); THROW END CATCH",
    "CREATE TABLE #t (a int, b nvarchar(max)); INSERT INTO #t VALUES (1, N'x'); SELECT * FROM #t",
    "SELECT CAST(NULL AS int), CAST(1 AS bit), CAST(2.5 AS money), CAST(1.25 AS decimal(9,3)), CAST(1 AS float)",
    "SELECT CAST('x' AS char(3)), N'y', CAST(N'<a/>' AS xml), 0x0102, NEWID(), CAST('z' AS sql_variant)",
    "SELECT GETDATE(), SYSDATETIME(), SYSDATETIMEOFFSET(), CAST(GETDATE() AS date), CAST(GETDATE() AS time(3))",
    "SELECT REPLICATE(CAST(N'x' AS nvarchar(max)), 100000)", "SELECT name FROM sys.databases", "USE master",
    f"USE {DATABASE}", "USE Nowhere", "DECLARE c CURSOR FOR SELECT 1; OPEN c; FETCH c", "WAITFOR DELAY '00:00:00.03'",
    f"WAITFOR (RECEIVE * FROM {QUEUE}), TIMEOUT 30", f"RECEIVE TOP (1) * FROM {QUEUE}", _DIALOG,
    f"BEGIN TRANSACTION; RECEIVE * FROM {QUEUE}", f"{_DIALOG}; END CONVERSATION @h", "SELECT * FROM sys.types",
    "EXEC Twice 1, N'y'", "EXEC sp_who", "EXEC sp_executesql N'SELECT @a', N'@a int', 5", "EXECUTE AS USER = 'guest'",
    "REVERT", "INSERT INTO Kept VALUES (1, N'one')", "DELETE Kept", "UPDATE Kept SET text = N'two'",
    "SELECT 1 AS a UNION ALL SELECT 2 UNION ALL SELECT 3", "DECLARE @i int = 0; WHILE @i < 50 SET @i += 1; PRINT @i",
    "EXEC sp_getapplock 'lock', 'Exclusive', 'Session', 0", "SAVE TRANSACTION s", "SELECT N'\ud800'", "SELECT '\0'",
    "SELECT " + ", ".join(f"{number} AS c{number}" for number in range(300)), "(" * 500, "BEGIN " * 500,
)  # fmt: skip
_NAMES = (
    "Twice", "dbo.Twice", "[Twice]", f"{DATABASE}..Twice", "Twice;1", "sp_executesql", "sys.sp_executesql", "sp_who",
    "sp_prepare", "sp_execute", "sp_unprepare", "sp_cursoropen", "sp_reset_connection", "Nowhere", "", "]", "a.b.c.d.e",
    "x" * 128, "x" * 5_000, "\0", "\ud800",
)  # fmt: skip
_STATEMENTS = (
    "SELECT @a", "SELECT @a, @b", "PRINT 'x'", "SELEC", "", "SET @a = 5", "SELECT 1/0", "EXEC Twice @a OUTPUT",
    f"RECEIVE TOP (1) @a = queuing_order FROM {QUEUE}", f"WAITFOR (RECEIVE * FROM {QUEUE}), TIMEOUT 20",
)  # fmt: skip
_DECLARATIONS = (
    "@a int", "@a int OUTPUT", "@a nvarchar(max), @b int", "@a sql_variant", "", "@a", "@a nowhere", "a int", "@@a int",
    "@a int = 5", "@a varchar(10) OUT, @b xml", "@a decimal(38, 10)",
)  # fmt: skip
_TYPED: tuple[tuple[SqlType, tuple[Any, ...]], ...] = (
    (SqlType("int"), (0, 1, -(2**31), None)),
    (SqlType("bigint"), (2**63 - 1, None)),
    (SqlType("tinyint"), (255,)),
    (SqlType("bit"), (0, 1, None)),
    (SqlType("decimal", None, 38, 10), (Decimal("1.25"), None)),
    (SqlType("money"), (Decimal("-1.5"),)),
    (SqlType("float"), (1.5, float("inf"), float("nan"), None)),
    (SqlType("real"), (0.1,)),
    (SqlType("nvarchar", 20), ("text", "", "\0", "\ud800", "grüß", None)),
    (SqlType("nvarchar", -1), ("x" * 9_000, "", None)),
    (SqlType("varchar", 20), ("text", None)),
    (SqlType("varchar", -1), ("é" * 9_000,)),
    (SqlType("varbinary", -1), (bytes(9_000), b"", None)),
    (SqlType("binary", 4), (b"\0\1\2\3",)),
    (SqlType("xml"), ("<a/>", "<a>", "", None)),
    (SqlType("uniqueidentifier"), (UUID(int=5), None)),
    (SqlType("date"), (date(1, 1, 1), date(9999, 12, 31), None)),
    (SqlType("time", None, None, 7), (time(23, 59, 59, 999_999),)),
    (SqlType("datetime"), (datetime(1753, 1, 1), datetime(9999, 12, 31))),
    (SqlType("datetime2", None, None, 7), (datetime(1, 1, 1), None)),
    (SqlType("datetimeoffset", None, None, 7), (datetime(2026, 1, 1, tzinfo=UTC),)),
    (SqlType("sql_variant"), (1, "text", None)),
)
_REFUSED_PARAMETERS = (
    b"\x02@\0t\0\0\xf3" + bytes(20),  # a table
    b"\0\0\xf0" + bytes(8),  # a type of the CLR
    b"\0\x08\x26\x04\x04\1\0\0\0",  # encrypted
    b"\0\0\xe7\xff\xff" + bytes(5) + b"\xfe" + b"\xff" * 7 + b"\xff\xff\xff\x7f",  # a chunk that lies
    b"\0\0\xe7\xff\xff" + bytes(5) + b"\xff" * 4 + bytes(4) + bytes(4),  # another total than that of its chunks
    b"\0\0\x63\xff\xff\xff\x7f" + bytes(5) + b"\xff\xff\xff\x7f",  # ntext that lies
)
_USERS = ("sa", "SA", "nobody", "", "\0", "\ud800", "a\r\nLogin succeeded", "x" * 128, "guest", "public", "dbo", "##x")
_DATABASES = (DATABASE, "", "master", "Nowhere", "\0", "]", "x" * 128)
_FEATURES = (
    b"\xff", b"\x01\x00\x00\x00\x00\xff", b"\x02\x01\x00\x00\x00\x05\xff", b"\x04\x01\x00\x00\x00\x01\xff",
    b"\x01\xff\xff\xff\xff", b"\x0a\x01\x00\x00\x00\x01" * 400 + b"\xff",
)  # fmt: skip
_FIRST_BYTES = (
    b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"", b"\x12", b"\0" * 100,
    b"\x12\x01\xff\xff\0\0\1\0", b"\x12\x01\0\x08\0\0\1\0", b"\x10\x01\0\x08\0\0\1\0", b"\x06\x01\0\x08\0\0\1\0",
    b"\x12\0\0\x08\0\0\1\0" * 1_000, b"\x06\x01\0\x08\0\0\1\0" * 1_000,
)  # fmt: skip


class Draft(NamedTuple):
    """A message as bytes.

    Attributes:
        content: its packets.
        is_valid: it is well-formed, so that the server has to answer it, and the session goes on.
    """

    content: bytes
    is_valid: bool


class MessageMaker:
    """Makes the messages of one case."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._handle_count = 0

    def first_bytes(self) -> bytes:
        """Return bytes that begin no handshake."""
        draw = self._draw
        return mutate(draw.choice(_FIRST_BYTES), draw)[:MAX_MESSAGE_BYTES]

    def prelogin(self, *, encrypts: bool) -> Draft:
        """Return PRELOGIN."""
        return self._packed(PacketType.PRELOGIN, ENCRYPTED_PRELOGIN if encrypts else PLAIN_PRELOGIN)

    def login(self) -> Draft:
        """Return LOGIN7 with odd fields, most of which the server refuses."""
        draw = self._draw
        content = login_message(
            draw.choice(_USERS),
            draw.choice((PASSWORD, "wrong", "", "\0")),
            draw.choice(_DATABASES),
            version=draw.choice((Dialect.TDS_7_4, Dialect.TDS_7_4, Dialect.TDS_7_3_A, Dialect.TDS_7_1, 0, 0xFFFFFFFF)),
            packet_bytes=draw.choice((0, 1, 512, 4096, 32_767, 2**31)),
            features=draw.choice((b"", b"", *_FEATURES)),
            second_flags=draw.choice((0, 0, 0, 0x80)),
        )
        return self._packed(PacketType.LOGIN, content)

    def request(self) -> Draft:
        """Return a request after the login."""
        draw = self._draw
        kind, content, is_valid = draw.choices(
            (self._batch, self._call, self._transaction, self._other), (10, 10, 3, 1)
        )[0]()
        return self._packed(kind, content, is_valid=is_valid)

    def _batch(self) -> tuple[int, bytes, bool]:
        draw = self._draw
        text = draw.choice(_BATCHES)
        if draw.random() < 0.1:
            text = "; ".join(draw.choice(_BATCHES) for _ in range(draw.randint(2, 4)))
        return PacketType.SQL_BATCH, batch_message(text), True

    def _call(self) -> tuple[int, bytes, bool]:
        draw = self._draw
        text, integer = SqlType("nvarchar", -1), SqlType("int")
        statement = (
            parameter("", text, draw.choice(_STATEMENTS)),
            parameter("", text, draw.choice(_DECLARATIONS)),
        )
        handle = parameter("", integer, draw.choice((1, 2, max(1, self._handle_count), 99, None)))
        match draw.randrange(7):
            case 0:
                contents = [call(draw.choice((10, "sp_executesql")), *statement, *self._parameters())]
            case 1:
                self._handle_count += 1
                contents = [call(13, parameter("", integer, None, 1), *reversed(statement), *self._parameters())]
            case 2:
                self._handle_count += 1
                contents = [call(11, parameter("", integer, None, 1), *reversed(statement), parameter("", integer, 1))]
            case 3:
                contents = [call(draw.choice((12, 12, 12, 15)), handle, *self._parameters())]
            case 4:
                contents = [call("Twice", parameter("@n", integer, 21, 1), *self._parameters()[:1])]
            case 5:
                contents = [call(draw.choice(_NAMES), *self._parameters())]
            case _:
                contents = [call(draw.choice((*range(1, 16), 0, 99)), *self._parameters())]
        is_valid = contents[0][4:8] not in (b"\xff\xff\0\0", b"\xff\xff\x63\0")
        if draw.random() < 0.1:
            contents *= draw.choice((2, 3, 50))
        if draw.random() < 0.05:
            contents[-1] += draw.choice(_REFUSED_PARAMETERS)
            is_valid = False
        separator = b"\xff" if draw.random() < 0.9 else b"\xfe"
        body = separator.join(content[len(NO_HEADERS) :] for content in contents)
        return PacketType.RPC, NO_HEADERS + body, is_valid

    def _parameters(self) -> list[bytes]:
        draw = self._draw
        parameters = []
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            kind, values = draw.choice(_TYPED)
            status = draw.choice((0, 0, 1, 2, 3))
            parameters.append(parameter(draw.choice(("", "@a", "@b", "@n", "x")), kind, draw.choice(values), status))
        return parameters

    def _transaction(self) -> tuple[int, bytes, bool]:
        draw = self._draw
        kind = draw.choice((*TransactionRequestType, TransactionRequestType.COMMIT, TransactionRequestType.ROLLBACK))
        content = NO_HEADERS + struct.pack("<H", kind)
        name = draw.choice(("", "named", "x" * 100, "]", "\0"))
        short = bytes([len(name)]) + encode_utf16(name)
        level = bytes([draw.randrange(6)])
        match kind:
            case TransactionRequestType.BEGIN:
                content += level + short
            case TransactionRequestType.SAVE:
                content += short
            case TransactionRequestType.COMMIT | TransactionRequestType.ROLLBACK:
                content += short + draw.choice((b"\0", b"\1" + level + b"\0"))
        return PacketType.TRANSACTION_MANAGER, content, True

    def _other(self) -> tuple[int, bytes, bool]:
        draw = self._draw
        if draw.random() < 0.5:
            return PacketType.BULK_LOAD, draw.randbytes(draw.choice((0, 10, 9_000))), True
        return draw.choice((0, 2, 5, 8, PacketType.LOGIN, PacketType.PRELOGIN, 0x11, 255)), draw.randbytes(20), False

    def _packed(self, kind: int, content: bytes, *, is_valid: bool = True) -> Draft:
        """Return a message in packets, changed with some probability."""
        draw = self._draw
        status = END_OF_MESSAGE
        if draw.random() < CONTENT_CHANGE_RATE:
            content, is_valid = mutate(content, draw)[:MAX_MESSAGE_BYTES], False
        if draw.random() < RESET_RATE:
            status |= draw.choice((0x08, 0x10, 0x18))
        if draw.random() < STATUS_CHANGE_RATE:
            status, is_valid = draw.choice((0, IGNORE_MESSAGE, END_OF_MESSAGE | IGNORE_MESSAGE, 0xFF)), False
        data = packets(
            kind, content, status, size=draw.choice((4096, 4096, 512, 9, 100)) if len(content) < 5_000 else 4096
        )
        if draw.random() < PACKET_CHANGE_RATE:
            data, is_valid = mutate(data, draw)[:MAX_MESSAGE_BYTES], False
        return Draft(data, is_valid)
