"""Bytes of a TDS client, for tests."""

from __future__ import annotations

import socket
import struct
from typing import Any

from servicebroker.tds.byte_reader import encode_utf16
from servicebroker.tds.login import TDS_7_4, mask
from servicebroker.tds.packets import END_OF_MESSAGE, PacketType
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


class RawClient:
    """A client of TDS without encryption, which sends and reads bytes as a test wants."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.socket.close()

    def send(self, kind: int, content: bytes, status: int = END_OF_MESSAGE) -> None:
        """Send one packet."""
        self.socket.sendall(packet(kind, content, status))

    def read(self) -> bytes:
        """Return the next message of the server; b"" if it has closed the connection."""
        content = b""
        while head := self._read(8):
            content += self._read(struct.unpack(">H", head[2:4])[0] - 8)
            if head[1] & END_OF_MESSAGE:
                return content
        return b""

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            try:
                part = self.socket.recv(count - len(found))
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            found += part
        return found

    def sign_in(self, user: str, password: str, database: str = "", **options: Any) -> bytes:
        """Sign in, and return the server's answer."""
        self.send(PacketType.PRELOGIN, PLAIN_PRELOGIN)
        assert self.read()
        self.send(PacketType.LOGIN, login_message(user, password, database, **options))
        return self.read()

    def batch(self, text: str) -> bytes:
        """Run a batch, and return its response."""
        self.send(PacketType.SQL_BATCH, NO_HEADERS + encode_utf16(text))
        return self.read()


PLAIN_PRELOGIN = b"\1\0\6\0\1\xff\2"  # only the option ENCRYPTION, with the value NOT_SUPPORTED
