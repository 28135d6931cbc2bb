"""Responses and requests of TDS at their limits: which DONE ends what, and what is the last value that is accepted."""

from __future__ import annotations

import struct
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from servicebroker.tds import tokens
from servicebroker.tds.byte_reader import ByteReader, ProtocolError, encode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.handshake import EncryptionRequired, Handshake
from servicebroker.tds.login import parse_login
from servicebroker.tds.packets import (
    DEFAULT_PACKET_BYTES,
    END_OF_MESSAGE,
    MAX_PACKET_BYTES,
    MIN_PACKET_BYTES,
    RESET_SESSION,
    PacketReader,
    PacketType,
    PacketWriter,
)
from servicebroker.tds.prelogin import Encryption, answer_prelogin
from servicebroker.tds.requests import MAX_PARAMETERS, parse_batch, parse_calls, parse_transaction_request
from servicebroker.tds.response import Response
from servicebroker.tds.tokens import Status
from servicebroker.tds.type_reader import read_type, read_value
from servicebroker.tds.type_writer import column_type
from servicebroker.tsql.results import ResultSet, RowCount
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.types import INT, NVARCHAR, SqlType, parse_type
from tds_support import NO_HEADERS, call, login_message, packet, parameter

# ---------------------------------------------------------------- responses

ERROR = TsqlError(50000, "no", line=3)
ROWS = ResultSet(("a",), [(1,), (None,)], (INT,))


def response_to(*outputs: Any, is_call: bool = False, dialect: Dialect = Dialect.TDS_7_4) -> list[tuple[int, int, int]]:
    """Return the DONE tokens of a response: token, status, rows."""
    sent = bytearray()
    writer = PacketWriter(sent.extend)
    response = Response(writer, "server", is_call=is_call, dialect=dialect)
    written: list[bytes] = []
    write = writer.write
    writer.write = lambda data: (written.append(bytes(data)), write(data))[1]  # type: ignore[method-assign, misc, func-returns-value]
    for output in outputs:
        if isinstance(output, int):
            response.write_result(output, [])
        else:
            response.listen(output)
    response.finish()
    layout = struct.Struct("<BHHQ" if dialect.is_wide else "<BHHI")
    ends = (tokens.DONE_STATEMENT, tokens.DONE_PROC, tokens.DONE_IN_PROC)
    done = [layout.unpack(token) for token in written if len(token) == layout.size and token[0] in ends]
    assert bytes(sent)[1] == END_OF_MESSAGE
    return [(token, status, rows) for token, status, _, rows in done]


DONE, PROC, IN_PROC = tokens.DONE_STATEMENT, tokens.DONE_PROC, tokens.DONE_IN_PROC
MORE, COUNT, FAILED = Status.MORE, Status.COUNT, Status.ERROR


@pytest.mark.parametrize(
    ("outputs", "of_batch", "of_call"),
    [
        ([], [(DONE, 0, 0)], [(PROC, 0, 0)]),
        ([Message("m")], [(DONE, 0, 0)], [(PROC, 0, 0)]),
        ([RowCount(3)], [(DONE, COUNT, 3)], [(IN_PROC, COUNT | MORE, 3), (PROC, 0, 0)]),
        ([ROWS], [(DONE, COUNT, 2)], [(IN_PROC, COUNT | MORE, 2), (PROC, 0, 0)]),
        ([ERROR], [(DONE, FAILED, 0)], [(IN_PROC, FAILED | MORE, 0), (PROC, FAILED, 0)]),
        (
            [ROWS, ERROR, RowCount(1)],
            [(DONE, COUNT | MORE, 2), (DONE, FAILED | MORE, 0), (DONE, COUNT, 1)],
            [(IN_PROC, COUNT | MORE, 2), (IN_PROC, FAILED | MORE, 0), (IN_PROC, COUNT | MORE, 1), (PROC, FAILED, 0)],
        ),
        (
            [RowCount(2**33)],
            [(DONE, COUNT, 2**33)],
            [(IN_PROC, COUNT | MORE, 2**33), (PROC, 0, 0)],
        ),
    ],
)
def test_the_last_done_says_that_nothing_follows(outputs: list[Any], of_batch: Any, of_call: Any) -> None:
    assert response_to(*outputs) == of_batch
    assert response_to(*outputs, is_call=True) == of_call


def test_a_return_code_comes_before_the_end_of_the_call() -> None:
    assert response_to(RowCount(1), 7, is_call=True) == [(IN_PROC, COUNT | MORE, 1), (PROC, 0, 0)]
    assert response_to(RowCount(1), dialect=Dialect.TDS_7_1) == [(DONE, COUNT, 1)]


def test_use_changes_the_database_of_the_client() -> None:
    sent = bytearray()
    response = Response(PacketWriter(sent.extend), "server", is_call=False)
    response.database = "Shop"
    response.listen(Message("Changed database context to 'It''s'.", 5701))
    response.finish()
    assert tokens.database_change("It''s", "Shop") in bytes(sent)
    assert response.database == "It''s"


@pytest.mark.parametrize(
    ("declared", "values", "kind"),
    [
        (INT, [1, None], INT),
        (INT, [2**31], SqlType("bigint")),
        (INT, ["x"], NVARCHAR),
        (None, [1, 0.5], SqlType("float")),
        (parse_type("nvarchar(1)"), ["ab"], NVARCHAR),
        (parse_type("decimal(3,1)"), [Decimal("0.25")], parse_type("decimal(2,2)")),
        (None, [1, "x"], NVARCHAR),
        (parse_type("tinyint"), [-1], INT),
    ],
)
def test_a_column_has_a_type_that_holds_its_values(declared: SqlType | None, values: list[Any], kind: SqlType) -> None:
    sent = bytearray()
    response = Response(PacketWriter(sent.extend), "server", is_call=False)
    response.listen(ResultSet(("a",), [(value,) for value in values], (declared,)))
    response.finish()
    column = column_type(kind)
    texts = [str(value) if kind == NVARCHAR and value is not None else value for value in values]
    cells = [column.encode(value) for value in texts]
    rows = b"".join(tokens.ROW + (cell if isinstance(cell, bytes) else b"".join(cell)) for cell in cells)
    assert tokens.column_metadata(["a"], [column]) + rows in bytes(sent)


# ---------------------------------------------------------------- values


def read(data: bytes) -> Any:
    """Return the value of a type and its value, or the class of the error."""
    reader = ByteReader(data)
    try:
        return read_value(reader, read_type(reader))
    except ProtocolError:
        return ProtocolError


LAST_TICK_300, LAST_TICK = 300 * 86_400 - 1, 86_400 * 10_000_000 - 1


@pytest.mark.parametrize(
    ("right", "value", "wrong"),
    [
        (
            b"\x6f\x08\x08" + struct.pack("<iI", 0, LAST_TICK_300),
            datetime(1900, 1, 1, 23, 59, 59, 997000),
            b"\x6f\x08\x08" + struct.pack("<iI", 0, LAST_TICK_300 + 1),
        ),
        (
            b"\x29\x07\x05" + LAST_TICK.to_bytes(5, "little"),
            time(23, 59, 59, 999999),
            b"\x29\x07\x05" + (LAST_TICK + 1).to_bytes(5, "little"),
        ),
        (
            b"\x29\x00\x03" + (86_399).to_bytes(3, "little"),
            time(23, 59, 59),
            b"\x29\x00\x03" + (86_400).to_bytes(3, "little"),
        ),
        (
            b"\x2b\x00\x08" + bytes(3) + (700_000).to_bytes(3, "little") + struct.pack("<h", 840),
            (datetime(1, 1, 1) + timedelta(days=700_000, hours=14)).replace(tzinfo=timezone(timedelta(hours=14))),
            b"\x2b\x00\x08" + bytes(3) + (700_000).to_bytes(3, "little") + struct.pack("<h", 841),
        ),
        (
            b"\x2b\x00\x08" + bytes(3) + (700_000).to_bytes(3, "little") + struct.pack("<h", -840),
            (datetime(1, 1, 1) + timedelta(days=700_000, hours=-14)).replace(tzinfo=timezone(-timedelta(hours=14))),
            b"\x2b\x00\x08" + bytes(3) + (700_000).to_bytes(3, "little") + struct.pack("<h", -841),
        ),
        (b"\x6a\x11\x26\x26\x02\x01\x05", Decimal("5E-38"), b"\x6a\x11\x26\x27\x02\x01\x05"),
        (b"\x6a\x11\x01\x00\x02\x00\x05", Decimal(-5), b"\x6a\x11\x00\x00\x02\x00\x05"),
        (b"\x6a\x11\x26\x00\x02\x01\x05", Decimal(5), b"\x6a\x11\x27\x00\x02\x01\x05"),
        (b"\x6a\x11\x26\x00\x11\x01" + bytes(16), Decimal(0), b"\x6a\x11\x26\x00\x12\x01" + bytes(17)),
        (b"\x6a\x11\x26\x00\x02\x01\x05", Decimal(5), b"\x6a\x11\x26\x00\x01\x01"),
        (
            b"\xa5" + struct.pack("<HH", 8000, 1) + b"x",
            b"x",
            b"\xa5" + struct.pack("<HH", 8001, 1) + b"x",
        ),
        (
            b"\xa5\xff\xff" + struct.pack("<QI", 2, 1) + b"x" + struct.pack("<I", 1) + b"y" + bytes(4),
            b"xy",
            b"\xa5\xff\xff" + struct.pack("<QI", 3, 1) + b"x" + struct.pack("<I", 1) + b"y" + bytes(4),
        ),
        (
            b"\xa5\xff\xff" + struct.pack("<QI", 2**64 - 2, 1) + b"x" + bytes(4),
            b"x",
            b"\xa5\xff\xff" + struct.pack("<QI", 2**64 - 3, 1) + b"x" + bytes(4),
        ),
        (b"\xa5\xff\xff" + b"\xff" * 8, None, b"\xa5\xff\xff" + b"\xfd" + b"\xff" * 7),
        (b"\x23" + bytes(9) + struct.pack("<i", -1), None, b"\x23" + bytes(9) + struct.pack("<i", 1)),
        (b"\x23" + bytes(9) + struct.pack("<i", 0), "", b"\x23" + bytes(9) + struct.pack("<i", 2) + b"a"),
        (b"\x62" + bytes(4) + struct.pack("<i", 0), None, b"\x62" + bytes(4) + struct.pack("<i", 1)),
        (b"\x26\x01\x01\xff", 255, b"\x26\x01\x02\xff\xff"),
        (b"\x26\x02\x02\xff\xff", -1, b"\x26\x02\x01\xff"),
        (b"\x68\x01\x01\x02", 1, b"\x68\x01\x02\x02\x02"),
    ],
)  # fmt: skip
def test_the_last_value_is_read_and_the_next_one_refused(right: bytes, value: Any, wrong: bytes) -> None:
    assert read(right) == value
    assert read(wrong) is ProtocolError


@pytest.mark.parametrize(
    ("moment", "days", "ticks"),
    [
        (datetime(1900, 1, 1, 0, 0, 0, 3_333), 0, 1),
        (datetime(1899, 12, 31, 23, 59, 59, 997_000), -1, LAST_TICK_300),
        (datetime(1899, 12, 31, 23, 59, 59, 999_000), 0, 0),
    ],
)
def test_a_datetime_is_written_to_the_nearest_tick(moment: datetime, days: int, ticks: int) -> None:
    assert column_type(SqlType("datetime")).encode(moment) == b"\x08" + struct.pack("<iI", days, ticks)


# ---------------------------------------------------------------- requests


def calls(data: bytes, dialect: Dialect = Dialect.TDS_7_4) -> Any:
    try:
        return list(parse_calls(data, dialect))
    except ProtocolError:
        return ProtocolError


def test_a_call_has_2100_parameters() -> None:
    one = parameter("", INT, 1)
    assert len(calls(call("p", *[one] * MAX_PARAMETERS))[0].parameters) == MAX_PARAMETERS
    assert calls(call("p", *[one] * (MAX_PARAMETERS + 1))) is ProtocolError


@pytest.mark.parametrize(("status", "is_output", "is_default"), [(0, False, False), (1, True, False), (2, False, True)])
def test_the_bits_of_a_parameter(status: int, is_output: bool, is_default: bool) -> None:
    ((found,),) = (one.parameters for one in calls(call("p", parameter("@a", INT, 5, status))))
    assert (found.is_output, found.is_default, found.value) == (is_output, is_default, 5)
    assert calls(call("p", parameter("@a", INT, 5, status | 8))) is ProtocolError


def test_the_last_call_of_a_message_is_told() -> None:
    first, second = call("a", parameter("", INT, 1)), call("b", parameter("", INT, 2))[4:]
    assert [(one.procedure, one.is_last) for one in calls(first + b"\xff" + second)] == [("a", False), ("b", True)]
    assert [(one.procedure, one.is_last) for one in calls(first + b"\xff" + second + b"\xff")] == [
        ("a", False),
        ("b", True),
    ]
    old = calls(first[4:] + b"\x80" + second, Dialect.TDS_7_1)
    assert [one.procedure for one in old] == ["a", "b"]
    assert calls(NO_HEADERS) is ProtocolError


@pytest.mark.parametrize(("total", "is_right"), [(4, True), (3, False), (0, False), (5, True)])
def test_headers_have_at_least_their_length(total: int, is_right: bool) -> None:
    data = struct.pack("<I", total) + bytes(max(0, total - 4)) + encode_utf16("PRINT 1")
    if is_right:
        assert parse_batch(data) == "PRINT 1"
    else:
        with pytest.raises(ProtocolError):
            parse_batch(data)


@pytest.mark.parametrize(("level", "isolation"), [(0, ""), (1, "READ UNCOMMITTED"), (5, "SNAPSHOT"), (6, None)])
def test_isolation_levels(level: int, isolation: str | None) -> None:
    for head in (b"\x05\0", b"\x07\0\0\x01"):
        data = NO_HEADERS + head + bytes([level]) + b"\0"
        if isolation is None:
            with pytest.raises(ProtocolError):
                parse_transaction_request(data)
        else:
            assert parse_transaction_request(data).isolation == isolation


@pytest.mark.parametrize(("characters", "is_right"), [(128, True), (129, False)])
def test_a_name_of_a_login_has_128_characters(characters: int, is_right: bool) -> None:
    for data in (login_message("u" * characters, "p"), login_message("u", "p" * characters)):
        if is_right:
            assert len(parse_login(data).user + parse_login(data).password) == characters + 1
        else:
            with pytest.raises(ProtocolError):
                parse_login(data)


# ---------------------------------------------------------------- packets and the handshake


def messages_of(reader: PacketReader, data: bytes) -> Any:
    reader.feed(data)
    try:
        message = reader.next_message()
    except ProtocolError:
        return ProtocolError
    return None if message is None else (message.status, len(message.data), reader.buffered_bytes)


@pytest.mark.parametrize(("size", "found"), [(56, (1, 56, 0)), (57, ProtocolError)])
def test_a_packet_has_its_agreed_size(size: int, found: Any) -> None:
    assert messages_of(PacketReader(64, 1_000), packet(1, bytes(size))) == found


@pytest.mark.parametrize(("limit", "found"), [(80, (9, 80, 3)), (79, ProtocolError)])
def test_a_message_has_its_largest_size_and_the_status_of_its_first_packet(limit: int, found: Any) -> None:
    data = packet(1, bytes(40), RESET_SESSION) + packet(1, bytes(40)) + b"abc"
    expected = found if found is ProtocolError else (RESET_SESSION, 80, 3)
    assert messages_of(PacketReader(64, limit), data) == expected


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [(0, DEFAULT_PACKET_BYTES), (1, MIN_PACKET_BYTES), (8_000, 8_000), (2**20, MAX_PACKET_BYTES)],
)
def test_the_size_of_packets_is_within_its_limits(asked: int, agreed: int) -> None:
    handshake = Handshake(None, requires_encryption=False)  # type: ignore[arg-type]
    handshake.allow_requests(asked)
    assert handshake.packet_bytes == agreed
    assert handshake._packets.max_packet_bytes == max(agreed, DEFAULT_PACKET_BYTES)


def test_a_login_without_encryption_is_refused_where_it_is_required() -> None:
    old_login = packet(PacketType.LOGIN, login_message("sa", "secret", version=Dialect.TDS_7_1))
    assert [message.type for message in Handshake(None, requires_encryption=False).receive(old_login)] == [16]  # type: ignore[arg-type]
    with pytest.raises(EncryptionRequired):
        list(Handshake(None, requires_encryption=True).receive(old_login))  # type: ignore[arg-type]


def test_requests_come_after_the_prelogin_only() -> None:
    plain = packet(PacketType.PRELOGIN, answer_prelogin(Encryption.NOT_SUPPORTED))
    handshake = Handshake(None, requires_encryption=False)  # type: ignore[arg-type]
    assert list(handshake.receive(plain)) == []
    assert len(handshake.take()) > 8
    assert handshake.take() == b""
    assert [message.type for message in handshake.receive(packet(PacketType.SQL_BATCH, b""))] == [1]
    with pytest.raises(ProtocolError):
        list(Handshake(None, requires_encryption=False).receive(packet(PacketType.SQL_BATCH, b"")))  # type: ignore[arg-type]
