"""A client of TDS for tests, fuzzers and benchmarks: it sends and reads the bytes that its caller wants."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any, NamedTuple, Self
from uuid import UUID

from servicebroker.tds.byte_reader import ByteReader, encode_utf16
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.login import mask
from servicebroker.tds.packets import END_OF_MESSAGE, PacketType
from servicebroker.tds.type_reader import read_type, read_value
from servicebroker.tds.type_writer import column_type
from servicebroker.tsql.types import SqlType

NO_HEADERS = struct.pack("<I", 4)  # ALL_HEADERS without one
PLAIN_PRELOGIN = b"\1\0\6\0\1\xff\2"  # only the option ENCRYPTION, with the value NOT_SUPPORTED
ENCRYPTED_PRELOGIN = b"\1\0\6\0\1\xff\1"  # the same with the value ON
HEADER_BYTES = 8
_TEXTS_AT = 94
_EXTENSION_PLACE = 5  # among the pairs of offset and length
_RECEIVE_BYTES = 256 * 1024
_ATTENTION_BIT, _MORE_BIT = 0x20, 0x01


def packet(kind: int, content: bytes, status: int = END_OF_MESSAGE) -> bytes:
    """Return one packet."""
    return struct.pack(">BBHHBB", kind, status, HEADER_BYTES + len(content), 0, 1, 0) + content


def packets(kind: int, content: bytes, status: int = END_OF_MESSAGE, *, size: int = 4096) -> bytes:
    """Return a message as packets of at most `size` bytes. The first has all bits of `status` except for the end's."""
    step = size - HEADER_BYTES
    parts = [content[start : start + step] for start in range(0, len(content), step)] or [b""]
    first = status & ~END_OF_MESSAGE
    ends = [0] * (len(parts) - 1) + [status & END_OF_MESSAGE]
    return b"".join(
        packet(kind, part, end | (0 if number else first))
        for number, (part, end) in enumerate(zip(parts, ends, strict=True))
    )


def login_message(
    user: str,
    password: str,
    database: str = "",
    *,
    version: int = Dialect.TDS_7_4,
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
    for index, text in enumerate(contents):
        length = 4 if features and index == _EXTENSION_PLACE else len(text) // 2
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


def batch_message(text: str) -> bytes:
    """Return the content of a SQL batch."""
    return NO_HEADERS + encode_utf16(text)


class Response(NamedTuple):
    """A response, read token by token.

    Attributes:
        rows: the rows of all result sets.
        errors: the numbers of its errors.
        messages: the texts of its errors and messages.
        outputs: the values of OUTPUT parameters.
        is_attention: True if it acknowledges an attention.
    """

    rows: list[tuple[Any, ...]]
    errors: list[int]
    messages: list[str]
    outputs: list[Any]
    is_attention: bool


def parse_response(data: bytes) -> Response:
    """Read a response.

    Raises:
        ValueError: it does not follow the protocol.
        ProtocolError: a length or a value of it is wrong.
    """
    response = Response([], [], [], [], False)
    reader, columns = ByteReader(data), None
    is_more = True
    while reader.remaining:
        if not is_more:
            raise ValueError("A token follows the last DONE.")
        match token := reader.uint8():
            case 0xAA | 0xAB:
                _read_report(ByteReader(reader.take(reader.uint16())), response, is_error=token == 0xAA)
            case 0xE3 | 0xAD:
                reader.take(reader.uint16())
            case 0xAE:
                while reader.uint8() != 0xFF:
                    reader.take(reader.uint32())
            case 0x79:
                reader.int32()
            case 0xAC:
                reader.uint16()
                reader.short_text()
                reader.take(7)
                response.outputs.append(read_value(reader, read_type(reader)))
            case 0x81:
                columns = [_read_column(reader) for _ in range(reader.uint16())]
            case 0xD1 if columns is not None:
                response.rows.append(tuple(read_value(reader, column) for column in columns))
            case 0xFD | 0xFE | 0xFF:
                status, _, _ = reader.uint16(), reader.uint16(), reader.uint64()
                is_more = bool(status & _MORE_BIT)
                response = response._replace(is_attention=response.is_attention or bool(status & _ATTENTION_BIT))
            case _:
                raise ValueError(f"The token 0x{token:02X} is unknown, or comes too early.")
    if is_more:
        raise ValueError("The response ends without its last DONE.")
    return response


def _read_report(reader: ByteReader, response: Response, *, is_error: bool) -> None:
    number = reader.int32()
    reader.take(2)
    response.messages.append(reader.long_text())
    if is_error:
        response.errors.append(number)
    reader.short_text()
    reader.short_text()
    reader.uint32()
    if reader.remaining:
        raise ValueError("A report is longer than its content.")


def _read_column(reader: ByteReader) -> Any:
    reader.take(6)
    type_ = read_type(reader)
    reader.short_text()
    return type_


class RawClient:
    """A client of TDS, without encryption until `start_tls`."""

    def __init__(self, port: int, *, source: str = "127.0.0.1", timeout_s: float = 20.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._tls: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO] | None = None
        self._is_wrapped = False  # the TLS handshake travels in packets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.socket.close()

    # ------------------------------------------------------------ bytes

    def write(self, data: bytes) -> None:
        """Send bytes, encrypted after `start_tls`."""
        if self._tls is not None:
            self._tls[0].write(data)
            data = self._tls[2].read()
        self.socket.sendall(data)

    def send(self, kind: int, content: bytes, status: int = END_OF_MESSAGE) -> None:
        """Send one packet."""
        self.write(packet(kind, content, status))

    def read(self) -> bytes:
        """Return the next message of the server; b"" if it has closed the connection."""
        content = bytearray()
        while head := self._read(HEADER_BYTES):
            content += self._read(struct.unpack(">H", head[2:4])[0] - HEADER_BYTES)
            if head[1] & END_OF_MESSAGE:
                return bytes(content)
        return b""

    def _read(self, count: int) -> bytes:
        while len(self._received) < count:
            if not (part := self._receive()):
                return b""
            self._received += part
        content = bytes(self._received[:count])
        del self._received[:count]
        return content

    def _receive(self) -> bytes:
        """Return the next decrypted bytes, b"" at the end."""
        while True:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except ConnectionResetError:
                return b""
            if self._tls is None or self._is_wrapped or not data:
                return data
            if plain := self._decrypt(data):
                return plain

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        pipe, incoming, _ = self._tls
        incoming.write(data)
        plain = bytearray()
        try:
            while part := pipe.read(_RECEIVE_BYTES):
                plain += part
        except ssl.SSLWantReadError:
            pass
        return bytes(plain)

    def start_tls(self, *, is_strict: bool = False) -> None:
        """Encrypt from now on: by a handshake in packets after PRELOGIN, or by TLS alone at the start.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if is_strict:
            context.set_alpn_protocols(["tds/8.0"])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        pipe = context.wrap_bio(incoming, outgoing)
        self._tls, self._is_wrapped = (pipe, incoming, outgoing), not is_strict
        while True:
            try:
                pipe.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            if data := outgoing.read():
                self.socket.sendall(data if is_strict else packet(PacketType.PRELOGIN, data))
            if done:
                break
            answer = self.socket.recv(_RECEIVE_BYTES) if is_strict else self.read()
            if not answer:
                raise ConnectionError("The server has closed the connection.")
            incoming.write(answer)
        self._is_wrapped = False

    # ------------------------------------------------------------ messages

    def sign_in(self, user: str, password: str, database: str = "", *, encrypts: bool = False, **options: Any) -> bytes:
        """Sign in, and return the server's answer."""
        self.send(PacketType.PRELOGIN, ENCRYPTED_PRELOGIN if encrypts else PLAIN_PRELOGIN)
        assert self.read()
        if encrypts:
            self.start_tls()
        self.send(PacketType.LOGIN, login_message(user, password, database, **options))
        return self.read()

    def batch(self, text: str) -> bytes:
        """Run a batch, and return its response."""
        self.write(packets(PacketType.SQL_BATCH, batch_message(text)))
        return self.read()

    def call(self, procedure: str | int, *parameters: bytes) -> bytes:
        """Call a procedure, and return its response."""
        self.write(packets(PacketType.RPC, call(procedure, *parameters)))
        return self.read()


def begin_dialog(client: RawClient, from_service: str, to_service: str, contract: str) -> UUID:
    """Begin a dialog, and return its handle."""
    response = parse_response(
        client.batch(
            f"DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE [{from_service}] TO SERVICE '{to_service}' "
            f"ON CONTRACT [{contract}] WITH ENCRYPTION = OFF; SELECT @h"
        )
    )
    ((handle,),) = response.rows
    assert isinstance(handle, UUID)
    return handle
