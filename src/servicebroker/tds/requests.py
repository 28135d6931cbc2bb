"""Requests of a client that has signed in: SQL batches, remote procedure calls, and transaction manager requests."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from servicebroker.tds.byte_reader import ByteReader, ProtocolError, decode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.type_reader import read_type, read_value
from servicebroker.tsql.types import SqlType

MAX_PARAMETERS = 2_100  # the most parameters of a call, as in SQL Server
_BY_NUMBER = 0xFFFF  # instead of a name's length
_NEXT_CALL, _NEXT_CALL_WITHOUT_EXECUTION, _OLD_NEXT_CALL = 0xFF, 0xFE, 0x80  # the old one is that of TDS 7.1
_OUTPUT_BIT, _DEFAULT_BIT, _ENCRYPTED_BIT = 0x01, 0x02, 0x08

PROCEDURES = {
    1: "sp_cursor", 2: "sp_cursoropen", 3: "sp_cursorprepare", 4: "sp_cursorexecute", 5: "sp_cursorprepexec",
    6: "sp_cursorunprepare", 7: "sp_cursorfetch", 8: "sp_cursoroption", 9: "sp_cursorclose", 10: "sp_executesql",
    11: "sp_prepare", 12: "sp_execute", 13: "sp_prepexec", 14: "sp_prepexecrpc", 15: "sp_unprepare",
}  # fmt: skip


class RpcParameter(NamedTuple):
    """A parameter of a call.

    Attributes:
        name: with @, or "" for the parameter of this position.
        type: its type.
        value: its value, None for NULL.
        is_output: True if the client asks for the value after the call.
        is_default: True if the procedure's default applies.
    """

    name: str
    type: SqlType
    value: Any
    is_output: bool = False
    is_default: bool = False


class RpcCall(NamedTuple):
    """A call of a procedure, whose name may have several parts. `is_last` is True for the last one of a message."""

    procedure: str
    parameters: tuple[RpcParameter, ...]
    is_last: bool = True


class TransactionRequestType(IntEnum):
    """The number of a transaction manager request."""

    DTC_ADDRESS = 0
    DTC_PROPAGATE = 1
    BEGIN = 5
    DTC_PROMOTE = 6
    COMMIT = 7
    ROLLBACK = 8
    SAVE = 9


ISOLATION_LEVELS = {1: "READ UNCOMMITTED", 2: "READ COMMITTED", 3: "REPEATABLE READ", 4: "SERIALIZABLE", 5: "SNAPSHOT"}


class TransactionRequest(NamedTuple):
    """A transaction manager request.

    Attributes:
        type: what to do.
        name: of the transaction or savepoint, "" without one.
        isolation: the level of the transaction that begins, "" to keep the session's.
        begins: True if COMMIT or ROLLBACK begins the next transaction.
    """

    type: TransactionRequestType
    name: str = ""
    isolation: str = ""
    begins: bool = False


def parse_batch(data: bytes | bytearray, dialect: Dialect = Dialect.TDS_7_4) -> str:
    """Return the text of a SQL batch.

    Raises:
        ProtocolError: it is malformed.
    """
    reader = ByteReader(data)
    if dialect.is_wide:
        _skip_headers(reader)
    return decode_utf16(reader.take(reader.remaining))


def parse_calls(data: bytes | bytearray, dialect: Dialect = Dialect.TDS_7_4) -> Iterator[RpcCall]:
    """Yield the calls of an RPC message, each read when its turn comes: a batch of a driver may have 100,000.

    The last call comes when nothing refers to the bytes of the message any more, so that its memory can be freed.

    Raises:
        ProtocolError: it is malformed.
        UnsupportedType: a parameter has a type that is not supported.
    """
    reader = ByteReader(data)
    ends = {_NEXT_CALL, _NEXT_CALL_WITHOUT_EXECUTION} if dialect.is_wide else {_OLD_NEXT_CALL}
    if dialect.is_wide:
        _skip_headers(reader)
    is_empty = True
    while reader.remaining:
        procedure = _read_procedure(reader)
        reader.uint16()  # options, about recompilation and metadata
        parameters: list[RpcParameter] = []
        while reader.remaining and reader.peek() not in ends:
            parameters.append(_read_parameter(reader))
            if len(parameters) > MAX_PARAMETERS:
                raise ProtocolError(f"A call has more than {MAX_PARAMETERS} parameters.")
        is_empty = False
        if not reader.remaining or reader.uint8() != _NEXT_CALL_WITHOUT_EXECUTION:
            call = RpcCall(procedure, tuple(parameters), is_last=not reader.remaining)
            if call.is_last:
                reader.release()
                yield call
                return
            yield call
    if is_empty:
        raise ProtocolError("An RPC without a call.")


def _read_procedure(reader: ByteReader) -> str:
    characters = reader.uint16()
    if characters != _BY_NUMBER:
        return reader.text(characters)
    number = reader.uint16()
    if number not in PROCEDURES:
        raise ProtocolError(f"No procedure has the number {number}.")
    return PROCEDURES[number]


def _read_parameter(reader: ByteReader) -> RpcParameter:
    name, status = reader.short_text(), reader.uint8()
    if status & _ENCRYPTED_BIT:
        raise ProtocolError("An encrypted parameter, which this server has not announced.")
    type_ = read_type(reader)
    value = read_value(reader, type_)
    return RpcParameter(name, type_.sql_type, value, bool(status & _OUTPUT_BIT), bool(status & _DEFAULT_BIT))


def parse_transaction_request(data: bytes | bytearray) -> TransactionRequest:
    """Return a transaction manager request.

    Raises:
        ProtocolError: it is malformed or unknown.
    """
    reader = ByteReader(data)
    _skip_headers(reader)
    try:
        kind = TransactionRequestType(reader.uint16())
    except ValueError:
        raise ProtocolError("An unknown transaction manager request.") from None
    if kind is TransactionRequestType.BEGIN:
        isolation = _read_isolation(reader)
        return TransactionRequest(kind, reader.short_text(), isolation)
    if kind is TransactionRequestType.SAVE:
        return TransactionRequest(kind, reader.short_text())
    if kind in (TransactionRequestType.COMMIT, TransactionRequestType.ROLLBACK):
        name, begins = reader.short_text(), bool(reader.uint8() & 1)
        return TransactionRequest(kind, name, _read_isolation(reader) if begins else "", begins)
    return TransactionRequest(kind)


def _read_isolation(reader: ByteReader) -> str:
    level = reader.uint8()
    if level and level not in ISOLATION_LEVELS:
        raise ProtocolError(f"The isolation level {level} is unknown.")
    return ISOLATION_LEVELS.get(level, "")


def _skip_headers(reader: ByteReader) -> None:
    """Skip ALL_HEADERS: notifications of queries, the transaction's number, and the activity."""
    total = reader.uint32()
    if total < 4:
        raise ProtocolError(f"ALL_HEADERS of {total} bytes.")
    reader.take(total - 4)
