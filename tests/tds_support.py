"""Bytes of a TDS client, for tests."""

from __future__ import annotations

import struct
from typing import Any

from servicebroker.tds.byte_reader import encode_utf16
from servicebroker.tds.login import TDS_7_4, mask
from servicebroker.tds.packets import END_OF_MESSAGE
from servicebroker.tds.type_writer import column_type
from servicebroker.tsql.types import SqlType

NO_HEADERS = struct.pack("<I", 4)  # ALL_HEADERS without one
_TEXTS_AT = 94
_EXTENSION_PLACE = 5  # among the pairs of offset and length


def packet(kind: int, content: bytes, status: int = END_OF_MESSAGE) -> bytes:
    """Return one packet."""
    return struct.pack(">BBHHBB", kind, status, 8 + len(content), 0, 1, 0) + content


def login_message(
    user: str,
    password: str,
    database: str = "",
    *,
    version: int = TDS_7_4,
    packet_bytes: int = 4096,
    features: bytes = b"",
    second_flags: int = 0,
) -> bytes:
    """Return LOGIN7. `features` are its feature extensions."""
    texts = ["host", user, password, "program", "server", "", "library", "", database]
    contents = [mask(text) if text is password else encode_utf16(text) for text in texts]
    if features:
        contents[_EXTENSION_PLACE] = bytes(4)
    pairs, content = b"", b""
    for place, text in enumerate(contents):
        length = 4 if features and place == _EXTENSION_PLACE else len(text) // 2
        pairs += struct.pack("<HH", _TEXTS_AT + len(content), length)
        content += text
    if features:
        where = _TEXTS_AT + sum(map(len, contents[:_EXTENSION_PLACE])) - _TEXTS_AT
        content = content[:where] + struct.pack("<I", _TEXTS_AT + len(content)) + content[where + 4 :] + features
    flags = bytes([0, second_flags, 0, 0x10 if features else 0])
    head = struct.pack("<IIIII", version, packet_bytes, 7, 1, 0) + flags + bytes(8)
    body = (head + pairs).ljust(_TEXTS_AT - 4, b"\0") + content
    return struct.pack("<I", 4 + len(body)) + body


def parameter(name: str, kind: SqlType, value: Any, status: int = 0) -> bytes:
    """Return a parameter of an RPC."""
    column = column_type(kind)
    cell = column.encode(value)
    content = cell if isinstance(cell, bytes) else b"".join(cell)
    return bytes([len(name)]) + encode_utf16(name) + bytes([status]) + column.info + content


def call(procedure: str | int, *parameters: bytes) -> bytes:
    """Return an RPC message, by name or by number."""
    if isinstance(procedure, int):
        name = struct.pack("<HH", 0xFFFF, procedure)
    else:
        name = struct.pack("<H", len(procedure)) + encode_utf16(procedure)
    return NO_HEADERS + name + struct.pack("<H", 0) + b"".join(parameters)
