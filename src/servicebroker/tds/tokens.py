"""Tokens: what the server's messages consist of."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntFlag

from servicebroker.tds.byte_reader import encode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.prelogin import SERVER_VERSION
from servicebroker.tds.type_writer import COLLATION, ColumnType

_ERROR_TOKEN, _INFO_TOKEN, _LOGIN_ACK, _FEATURE_EXT_ACK, _ENV_CHANGE = 0xAA, 0xAB, 0xAD, 0xAE, 0xE3
_COL_METADATA, _RETURN_STATUS, _RETURN_VALUE = 0x81, 0x79, 0xAC
ROW = b"\xd1"  # the values follow
DONE_STATEMENT, DONE_PROC, DONE_IN_PROC = 0xFD, 0xFE, 0xFF
(
    _DATABASE_CHANGE,
    _LANGUAGE_CHANGE,
    _PACKET_SIZE,
    _COLLATION_CHANGE,
    _BEGIN_CHANGE,
    _COMMIT_CHANGE,
    _ROLLBACK_CHANGE,
    _RESET_CHANGE,
) = 1, 2, 4, 7, 8, 9, 10, 18
_DONE, _OLD_DONE = struct.Struct("<BHHQ"), struct.Struct("<BHHI")  # token, status, command, rows
_NULLABLE_FLAG = 0x0001  # a flag of a column
_MAX_TEXT_CHARACTERS = 4_000  # the longest text of an error: a token stays below 64 KiB
_MAX_NAME_CHARACTERS = 128
PROGRAM_NAME = "Microsoft SQL Server"  # drivers ask for it


class Status(IntFlag):
    """The bits of a DONE_STATEMENT token."""

    FINAL = 0x00
    MORE = 0x01
    ERROR = 0x02
    COUNT = 0x10
    ATTENTION = 0x20


def _short_text(text: str) -> bytes:
    content = encode_utf16(text[:_MAX_NAME_CHARACTERS])
    return bytes([len(content) // 2]) + content


def _long_text(text: str) -> bytes:
    content = encode_utf16(text)
    return struct.pack("<H", len(content) // 2) + content


def _sized(token: int, content: bytes) -> bytes:
    return struct.pack("<BH", token, len(content)) + content


def done(token: int, status: Status, rows: int = 0, *, dialect: Dialect = Dialect.TDS_7_4) -> bytes:
    """DONE_STATEMENT, DONE_PROC or DONE_IN_PROC: the end of a statement, or of the response."""
    return (_DONE if dialect.is_wide else _OLD_DONE).pack(token, status, 0, rows)


def _report(
    token: int,
    number: int,
    state: int,
    level: int,
    text: str,
    server: str,
    procedure: str,
    line: int,
    dialect: Dialect,
) -> bytes:
    head = struct.pack("<iBB", number, min(255, max(0, state)), level)
    text = text[:_MAX_TEXT_CHARACTERS]
    names = _long_text(text) + _short_text(server) + _short_text(procedure)
    line = max(0, line)
    return _sized(
        token, head + names + (struct.pack("<I", line) if dialect.is_wide else struct.pack("<H", min(line, 0xFFFF)))
    )


def error(
    number: int,
    text: str,
    *,
    level: int = 16,
    state: int = 1,
    server: str = "",
    procedure: str = "",
    line: int = 0,
    dialect: Dialect = Dialect.TDS_7_4,
) -> bytes:
    """ERROR."""
    return _report(_ERROR_TOKEN, number, state, level, text, server, procedure, line, dialect)


def info(
    number: int,
    text: str,
    *,
    level: int = 0,
    state: int = 1,
    server: str = "",
    procedure: str = "",
    line: int = 0,
    dialect: Dialect = Dialect.TDS_7_4,
) -> bytes:
    """INFO: PRINT, RAISERROR up to level 10, and notes of the server."""
    return _report(_INFO_TOKEN, number, state, level, text, server, procedure, line, dialect)


def login_ack(dialect: Dialect) -> bytes:
    """LOGINACK, with the version of TDS."""
    major, minor, build = SERVER_VERSION
    content = b"\x01" + struct.pack(">I", dialect)
    content += _short_text(PROGRAM_NAME) + struct.pack(">BBH", major, minor, build)
    return _sized(_LOGIN_ACK, content)


def feature_ack() -> bytes:
    """FEATUREEXTACK without a feature: none of those that the client asked for is on."""
    return bytes([_FEATURE_EXT_ACK, 0xFF])


def _text_change(kind: int, new: str, old: str) -> bytes:
    return _sized(_ENV_CHANGE, bytes([kind]) + _short_text(new) + _short_text(old))


def database_change(new: str, old: str = "") -> bytes:
    """ENVCHANGE: the session's database."""
    return _text_change(_DATABASE_CHANGE, new, old)


def language_change(new: str, old: str = "") -> bytes:
    """ENVCHANGE: the language of messages."""
    return _text_change(_LANGUAGE_CHANGE, new, old)


def packet_size_change(new: int, old: int) -> bytes:
    """ENVCHANGE: the packet size, which applies from the next message."""
    return _text_change(_PACKET_SIZE, str(new), str(old))


def collation_change() -> bytes:
    """ENVCHANGE: the collation of the server."""
    return _sized(_ENV_CHANGE, bytes([_COLLATION_CHANGE, len(COLLATION)]) + COLLATION + b"\0")


def transaction_began(descriptor: int) -> bytes:
    """ENVCHANGE: a transaction has begun, with the number that the client names it by."""
    return _sized(_ENV_CHANGE, bytes([_BEGIN_CHANGE, 8]) + struct.pack("<Q", descriptor) + b"\0")


def transaction_ended(descriptor: int, *, is_committed: bool) -> bytes:
    """ENVCHANGE: a transaction has ended."""
    kind = _COMMIT_CHANGE if is_committed else _ROLLBACK_CHANGE
    return _sized(_ENV_CHANGE, bytes([kind, 0, 8]) + struct.pack("<Q", descriptor))


def reset_done() -> bytes:
    """ENVCHANGE: the session was reset, as the client's packet asked."""
    return _sized(_ENV_CHANGE, bytes([_RESET_CHANGE, 0, 0]))


def _user_type(dialect: Dialect) -> bytes:
    return bytes(4 if dialect.is_wide else 2)


def column_metadata(names: Sequence[str], types: Sequence[ColumnType], dialect: Dialect = Dialect.TDS_7_4) -> bytes:
    """COLMETADATA: the columns of a result set."""
    parts = [struct.pack("<BH", _COL_METADATA, len(names))]
    head = _user_type(dialect) + struct.pack("<H", _NULLABLE_FLAG)
    for name, kind in zip(names, types, strict=True):
        table = _long_text("") if kind.has_table else b""
        parts.append(head + kind.info + table + _short_text(name))
    return b"".join(parts)


def return_status(code: int) -> bytes:
    """RETURNSTATUS: the return code of a procedure."""
    return struct.pack("<Bi", _RETURN_STATUS, code)


def return_value(position: int, name: str, kind: ColumnType, dialect: Dialect = Dialect.TDS_7_4) -> bytes:
    """RETURNVALUE: an OUTPUT parameter, before its value."""
    head = struct.pack("<BH", _RETURN_VALUE, position) + _short_text(name)
    return head + b"\1" + _user_type(dialect) + struct.pack("<H", _NULLABLE_FLAG) + kind.info
