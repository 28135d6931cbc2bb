"""TDS without sockets: packets, handshake, login, requests, types and tokens, by tables and by random values."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.tds import tokens
from servicebroker.tds.byte_reader import ByteReader, ProtocolError, encode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.login import mask, parse_login, unmask
from servicebroker.tds.packets import (
    DEFAULT_PACKET_BYTES,
    END_OF_MESSAGE,
    IGNORE_MESSAGE,
    Message,
    PacketReader,
    PacketType,
    PacketWriter,
)
from servicebroker.tds.prelogin import Encryption, answer_prelogin, choose_encryption, parse_prelogin
from servicebroker.tds.requests import (
    RpcCall,
    TransactionRequest,
    TransactionRequestType,
    parse_batch,
    parse_calls,
    parse_transaction_request,
)
from servicebroker.tds.type_reader import UnsupportedType, read_type, read_value
from servicebroker.tds.type_writer import column_type, type_of_values
from servicebroker.tsql.types import INT, NVARCHAR, SqlType, parse_type
from tds_support import NO_HEADERS, call, login_message, packet, parameter


def all_calls(data: bytes) -> list[RpcCall]:
    return list(parse_calls(data))


BEGINNINGS = (parse_prelogin, parse_login, parse_batch, all_calls, parse_transaction_request)


def messages(data: bytes, step: int = 1 << 20, limit: int = 1 << 20) -> list[Message]:
    reader, packets = PacketReader(DEFAULT_PACKET_BYTES, limit), []
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while (message := reader.next_message()) is not None:
            packets.append(message)
    return packets


# ---------------------------------------------------------------- packets


@pytest.mark.parametrize("step", [1, 7, 4096])
@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 200_000])
def test_a_message_survives_its_packets(step: int, size: int) -> None:
    content, sent = bytes(range(256)) * (size // 256) + bytes(size % 256), bytearray()
    writer = PacketWriter(sent.extend)
    writer.write(content[: size // 2])
    writer.write(content[size // 2 :])
    writer.finish()
    step = max(step, size // 2000)
    assert messages(bytes(sent), step) == [Message(PacketType.RESPONSE, sent[1], content)]


def test_a_message_grows_while_packets_leave() -> None:
    sent: list[bytes] = []
    writer = PacketWriter(sent.append, packet_bytes=512)
    writer.write(bytes(600))
    assert sent == []  # short answers leave together
    writer.flush()
    assert [len(part) for part in sent] == [512, 104]
    writer.finish()
    assert [part[1] for part in sent] == [0, 0, END_OF_MESSAGE]


def test_an_ignored_message_is_dropped() -> None:
    data = packet(1, b"half", 0) + packet(1, b"", END_OF_MESSAGE | IGNORE_MESSAGE) + packet(PacketType.ATTENTION, b"")
    assert [message.type for message in messages(data)] == [PacketType.ATTENTION]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">BBHHBB", 1, 1, 7, 0, 0, 0),  # shorter than its header
        struct.pack(">BBHHBB", 1, 1, 4097, 0, 0, 0),  # larger than agreed; refused before it has arrived
        packet(1, b"a", 0) + packet(3, b"b"),
        packet(1, bytes(600), 0) + packet(1, bytes(600)),
    ],
)
def test_packets_are_refused_before_they_take_memory(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        messages(data, limit=1000)


# ---------------------------------------------------------------- handshake


@pytest.mark.parametrize(
    ("wish", "is_required", "answer"),
    [
        (Encryption.ON, False, Encryption.ON),
        (Encryption.REQUIRED, True, Encryption.ON),
        (Encryption.OFF, True, Encryption.REQUIRED),
        (Encryption.NOT_SUPPORTED, True, Encryption.REQUIRED),
        (Encryption.OFF, False, Encryption.NOT_SUPPORTED),
    ],
)
def test_prelogin(wish: Encryption, is_required: bool, answer: Encryption) -> None:
    assert choose_encryption(wish, is_required=is_required) == answer
    assert parse_prelogin(answer_prelogin(answer)).encryption == answer


@pytest.mark.parametrize("features", [b"", b"\x0a\1\0\0\0\1\x01\0\0\0\0\xff"])
def test_login(features: bytes) -> None:
    login = parse_login(login_message("app", "Geheim!1€", "Shop", packet_bytes=8000, features=features))
    assert (login.user, login.password, login.database, login.program) == ("app", "Geheim!1€", "Shop", "program")
    assert (login.version, login.packet_bytes, login.is_integrated) == (Dialect.TDS_7_4, 8000, False)
    assert login.features == ((10, 1) if features else ())
    assert parse_login(login_message("", "", second_flags=0x80)).is_integrated
    assert parse_login(login_message("a", "b", features=b"\x02\0\0\0\0\xff")).has_access_token


@given(st.text(max_size=40, alphabet=st.characters(codec="utf-16-le")))
def test_passwords_are_unmasked(password: str) -> None:
    assert unmask(mask(password)).decode("utf-16-le") == password


# ---------------------------------------------------------------- requests


def test_batch() -> None:
    assert parse_batch(NO_HEADERS + encode_utf16("SELECT 1")) == "SELECT 1"
    headers = struct.pack("<IIHQI", 22, 18, 2, 0, 1)
    assert parse_batch(headers + encode_utf16("PRINT N'é'")) == "PRINT N'é'"


def test_calls() -> None:
    by_name = call("dbo.Work", parameter("@a", INT, 7), parameter("@b", NVARCHAR, None, 1))
    by_number = call(10, parameter("", NVARCHAR, "SELECT 1"))
    first, second = parse_calls(by_name + b"\xff" + by_number[4:])
    assert (first.procedure, second.procedure) == ("dbo.Work", "sp_executesql")
    assert [(one.name, one.type, one.value, one.is_output) for one in first.parameters] == [
        ("@a", INT, 7, False),
        ("@b", NVARCHAR, None, True),
    ]
    assert [one.procedure for one in parse_calls(by_name + b"\xfe" + by_number[4:])] == ["sp_executesql"]


@pytest.mark.parametrize(
    ("content", "request_"),
    [
        (b"\x05\0\x02\0", TransactionRequest(TransactionRequestType.BEGIN, "", "READ COMMITTED")),
        (b"\x05\0\0\x01a\0", TransactionRequest(TransactionRequestType.BEGIN, "a")),
        (b"\x07\0\0\0", TransactionRequest(TransactionRequestType.COMMIT)),
        (b"\x08\0\x01a\0\x01\x05\0", TransactionRequest(TransactionRequestType.ROLLBACK, "a", "SNAPSHOT", True)),
        (b"\x09\0\x01a\0", TransactionRequest(TransactionRequestType.SAVE, "a")),
        (b"\0\0\0\0", TransactionRequest(TransactionRequestType.DTC_ADDRESS)),
    ],
)
def test_transaction_requests(content: bytes, request_: TransactionRequest) -> None:
    assert parse_transaction_request(NO_HEADERS + content) == request_


# ---------------------------------------------------------------- types and values

MOMENT = datetime(2026, 11, 30, 23, 59, 58, 123456)
EAST = timezone(timedelta(hours=5, minutes=30))
VALUES: list[tuple[str, Any]] = [
    ("bit", 1), ("tinyint", 255), ("smallint", -32768), ("int", -(2**31)), ("bigint", 2**63 - 1),
    ("real", 0.5), ("float", -1.25e300), ("smallmoney", Decimal("-214748.3648")),
    ("money", Decimal("922337203685477.5807")),
    ("money", Decimal("-0.0001")), ("decimal(5,2)", Decimal("-999.99")), ("decimal(38,0)", Decimal(10**38 - 1)),
    ("decimal(19,4)", Decimal("1.5000")), ("date", date(1, 1, 1)), ("date", date(9999, 12, 31)),
    ("time(0)", time(23, 59, 59)), ("time(7)", MOMENT.time()), ("datetime2(3)", MOMENT.replace(microsecond=123000)),
    ("datetime2(7)", datetime(1, 1, 1)), ("datetimeoffset(7)", MOMENT.replace(tzinfo=EAST)),
    ("datetime", datetime(1753, 1, 1, 0, 0, 0, 997000)), ("datetime", MOMENT.replace(microsecond=3000)),
    ("smalldatetime", datetime(2079, 6, 6, 23, 59)), ("uniqueidentifier", UUID(int=0x0102030405060708090A0B0C0D0E0F10)),
    ("nvarchar(10)", "é€😀"), ("nvarchar(max)", "x" * 70_000), ("nvarchar(max)", ""), ("nchar(3)", "ab "),
    ("varchar(10)", "é€"), ("varchar(max)", "ü" * 9000), ("char(2)", "ab"), ("varbinary(4)", b"\0\1"),
    ("varbinary(max)", bytes(100_000)), ("binary(2)", b"\xff\0"), ("xml", "<a>é</a>"), ("nvarchar(5)", ""),
]  # fmt: skip
VARIANTS: list[Any] = [
    1, 2**40, True, 0.5, Decimal("-1.50"), "é", b"\1", UUID(int=5), date(2026, 1, 2), time(1, 2, 3), MOMENT,
    MOMENT.replace(tzinfo=UTC),
]  # fmt: skip


def round_trip(kind: SqlType, value: Any) -> Any:
    column = column_type(kind)
    cell = column.encode(value)
    reader = ByteReader(column.info + (cell if isinstance(cell, bytes) else b"".join(cell)))
    wire = read_type(reader)
    assert wire.sql_type == column.sql_type
    found = read_value(reader, wire)
    assert not reader.remaining
    return found


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_values_survive(kind: str, value: Any) -> None:
    assert round_trip(parse_type(kind), value) == value
    assert round_trip(parse_type(kind), None) is None


@pytest.mark.parametrize("value", VARIANTS, ids=repr)
def test_variants_survive(value: Any) -> None:
    assert round_trip(SqlType("sql_variant"), value) == value


@given(
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.text(st.characters(codec="utf-16-le")),
        st.binary(),
        st.decimals(-(10**20), 10**20, places=6),
        st.datetimes(),
        st.dates(),
        st.times(),
        st.uuids(),
        st.floats(allow_nan=False),
    )
)
def test_any_value_survives_in_the_type_that_is_found_for_it(value: Any) -> None:
    assert round_trip(type_of_values([None, value]), value) == value


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2**40], "bigint"),
        ([1, Decimal("0.25")], "decimal(12,2)"),
        ([1.5, 2], "float"),
        ([1, "a"], "nvarchar(max)"),
        ([None], "nvarchar(max)"),
        ([True, 5], "int"),
    ],
)
def test_the_type_of_values(values: list[Any], kind: str) -> None:
    assert type_of_values(values) == parse_type(kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", 2**31), ("int", "1"), ("tinyint", -1), ("decimal(3,1)", Decimal("0.25")), ("nvarchar(2)", "abc"),
     ("uniqueidentifier", "x"), ("datetime2(7)", MOMENT.replace(tzinfo=UTC)), ("varbinary(max)", "x")],
)  # fmt: skip
def test_a_value_that_its_type_cannot_hold_is_refused(kind: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, struct.error)):
        column_type(parse_type(kind)).encode(value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("date", date(26, 1, 2), "0026-01-02"),
        ("time(0)", time(3, 4, 5, 900_000), "03:04:05"),
        ("datetime2(3)", datetime(2026, 1, 2, 3, 4, 5, 678_000), "2026-01-02 03:04:05.678"),
        (
            "datetimeoffset(0)",
            datetime(2026, 1, 2, tzinfo=timezone(-timedelta(minutes=90))),
            "2026-01-02 00:00:00 -01:30",
        ),
        ("nvarchar(max)", "a", "a"),
    ],
)
def test_old_clients_get_types_that_they_know(kind: str, value: Any, text: str) -> None:
    encoded = column_type(parse_type(kind), Dialect.TDS_7_1).encode(value)
    content = encode_utf16(text)
    is_long = isinstance(encoded, tuple)
    head = b"\x10" + bytes(24) + struct.pack("<i", len(content)) if is_long else struct.pack("<H", len(content))
    assert b"".join(encoded if isinstance(encoded, tuple) else (encoded,)) == head + content


def test_a_decimal_may_have_fewer_bytes_than_its_precision_needs() -> None:
    reader = ByteReader(b"\x6a\x11\x26\x02\x02\x01\x7d")  # as jTDS sends 1.25
    assert read_value(reader, read_type(reader)) == Decimal("1.25")


@pytest.mark.parametrize("code", [0xF3, 0xF0, 0xF4, 0x37])
def test_types_are_refused_by_name(code: int) -> None:
    with pytest.raises(UnsupportedType):
        read_type(ByteReader(bytes([code]) + bytes(20)))


@pytest.mark.parametrize(
    "data",
    [
        b"\x99", b"\x26\x03", b"\xe7\xff\x7f" + bytes(5), b"\x6a\x11\x27\x00", b"\x2a\x08",
        b"\x26\x04\x03\0\0\0", b"\x28\x03\xff\xff\xff", b"\x29\x00\x03\xff\xff\xff",
        b"\x6f\x08\x08" + struct.pack("<iI", 0, 30_000_000), b"\xe7\xff\xff" + bytes(5) + struct.pack("<QII", 9, 1, 0),
        b"\xe7\x04\0" + bytes(5) + b"\1\0a",
    ],
)  # fmt: skip
def test_malformed_values_are_one_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        reader = ByteReader(data)
        read_value(reader, read_type(reader))


# ---------------------------------------------------------------- garbage

COMPLETE_MESSAGES = [
    answer_prelogin(Encryption.ON),
    login_message("app", "secret", "Shop", features=b"\x0a\1\0\0\0\1\xff"),
    NO_HEADERS + encode_utf16("SELECT 1"),
    call("p", *(parameter("@a", parse_type(kind), value) for kind, value in VALUES if kind.find("max") < 0)),
    NO_HEADERS + b"\x08\0\x01a\0\x01\x05\0",
]


@given(st.sampled_from(BEGINNINGS), st.sampled_from(COMPLETE_MESSAGES), st.data())
def test_garbage_ends_in_one_error(parse: Any, whole: bytes, data: st.DataObject) -> None:
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError, UnsupportedType):
        parse(bytes(damaged))


@given(st.binary(max_size=60))
def test_random_packets_end_in_one_error(data: bytes) -> None:
    with suppress(ProtocolError):
        messages(data)


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("token", "content"),
    [
        (tokens.done(tokens.DONE_STATEMENT, tokens.Status.COUNT, 3, dialect=Dialect.TDS_7_1), "fd10000000 03000000"),
        (tokens.error(5, "no", line=3, dialect=Dialect.TDS_7_1), "aa1000 05000000 01 10 0200 6e006f00 00 00 0300"),
        (
            tokens.column_metadata(["a"], [column_type(SqlType("xml"), Dialect.TDS_7_1)], Dialect.TDS_7_1),
            "81 0100 0000 0100 63 ffffff7f 0904d00034 0000 01 6100",
        ),
        (tokens.done(tokens.DONE_STATEMENT, tokens.Status.COUNT, 3), "fd1000000003000000000000 00"),
        (tokens.return_status(-6), "79faffffff"),
        (tokens.database_change("a", "b"), "e30700 01 01 6100 01 6200 "),
        (tokens.transaction_began(1), "e30b00 08 08 0100000000000000 00"),
        (tokens.transaction_ended(1, is_committed=True), "e30b00 09 00 08 0100000000000000"),
        (tokens.error(208, "x", level=16, state=1, line=2), "aa1000 d0000000 01 10 0100 7800 00 00 02000000"),
        (tokens.column_metadata(["a"], [column_type(INT)]), "81 0100 00000000 0100 2604 01 6100"),
        (tokens.feature_ack(), "aeff"),
    ],
    ids=[
        "old done",
        "old error",
        "old columns",
        "done",
        "status",
        "database",
        "began",
        "committed",
        "error",
        "columns",
        "features",
    ],
)
def test_tokens(token: bytes, content: str) -> None:
    assert token == bytes.fromhex(content)


def test_long_errors_stay_in_their_token() -> None:
    token = tokens.error(50000, "é" * 100_000, procedure="p" * 500)
    assert len(token) == 3 + struct.unpack("<H", token[1:3])[0]
