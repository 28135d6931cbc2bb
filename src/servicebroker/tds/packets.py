"""Packets: the frames of TDS. A message is one or more packets of a type; the last one has the bit END_OF_MESSAGE."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from servicebroker.tds.byte_reader import ProtocolError

_HEADER = struct.Struct(">BBHHBB")  # type, status, length with the header, session, number of the packet, window
HEADER_BYTES = _HEADER.size
MIN_PACKET_BYTES, MAX_PACKET_BYTES, DEFAULT_PACKET_BYTES = 512, 32_767, 4096

END_OF_MESSAGE, IGNORE_MESSAGE, RESET_SESSION, RESET_KEEPING_TRANSACTION = 0x01, 0x02, 0x08, 0x10  # bits of the status
_WRITE_BYTES = 64 * 1024  # packets that are handed over together


class PacketType(IntEnum):
    """The type of a message."""

    SQL_BATCH = 0x01
    RPC = 0x03
    RESPONSE = 0x04
    ATTENTION = 0x06
    BULK_LOAD = 0x07
    TRANSACTION_MANAGER = 0x0E
    LOGIN = 0x10
    SSPI = 0x11
    PRELOGIN = 0x12


class Message(NamedTuple):
    """A whole message of a client.

    Attributes:
        type: a `PacketType`, or another number.
        status: the status bits of its first packet, with those of RESET_SESSION.
        data: the content of its packets.
    """

    type: int
    status: int
    data: bytes | bytearray

    def free(self) -> None:
        """Free the memory of the content, unless something refers to it."""
        if isinstance(self.data, bytearray):
            with suppress(BufferError):
                self.data.clear()


class PacketReader:
    """Joins packets to messages.

    Attributes:
        max_packet_bytes: the largest packet that is accepted, with its header.
        max_message_bytes: the largest message that is accepted.
    """

    def __init__(self, max_packet_bytes: int, max_message_bytes: int) -> None:
        self.max_packet_bytes, self.max_message_bytes = max_packet_bytes, max_message_bytes
        self._received = bytearray()
        self._content = bytearray()
        self._type: int | None = None  # the type of the message whose packets arrive
        self._status = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes."""
        self._received += data

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that are not part of a returned message."""
        return len(self._received) + len(self._content)

    def take_rest(self) -> bytes:
        """Return and remove the bytes that belong to no packet yet."""
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def next_message(self) -> Message | None:
        """Return the next whole message, or None if its end has not arrived.

        Raises:
            ProtocolError: a packet or the message is too large, or packets of two messages are mixed.
        """
        position = 0
        try:
            while len(self._received) - position >= HEADER_BYTES:
                kind, status, length, _, _, _ = _HEADER.unpack_from(self._received, position)
                if not HEADER_BYTES <= length <= self.max_packet_bytes:
                    raise ProtocolError(f"A packet of {length} bytes; the limit is {self.max_packet_bytes}.")
                if len(self._received) - position < length:
                    return None
                self._add(kind, status, memoryview(self._received)[position + HEADER_BYTES : position + length])
                position += length
                if status & END_OF_MESSAGE and (message := self._finish(kind, status)) is not None:
                    return message
            return None
        finally:
            del self._received[:position]

    def _add(self, kind: int, status: int, content: memoryview) -> None:
        with content:  # released even after an error, since the buffer below it shrinks
            if self._type is None:
                self._type, self._status = kind, status
            elif self._type != kind:
                raise ProtocolError(f"A packet of type {kind} inside a message of type {self._type}.")
            if len(self._content) + len(content) > self.max_message_bytes:
                raise ProtocolError(f"A message of more than {self.max_message_bytes} bytes.")
            self._content += content

    def _finish(self, kind: int, status: int) -> Message | None:
        """Return the finished message, or None if its client has cancelled it with IGNORE_MESSAGE."""
        content, self._content, self._type = self._content, bytearray(), None
        return None if status & IGNORE_MESSAGE else Message(kind, self._status, content)


class PacketWriter:
    """Cuts a message of the server into packets, and hands them over while the message grows.

    `send_last` takes the last packet, if not `send`.

    Attributes:
        packet_bytes: the size of a packet with its header.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        *,
        packet_bytes: int = DEFAULT_PACKET_BYTES,
        kind: PacketType = PacketType.RESPONSE,
        send_last: Callable[[bytes], None] | None = None,
    ) -> None:
        self._send, self._kind, self._send_last = send, kind, send_last or send
        self.packet_bytes = packet_bytes
        self._pending = bytearray()
        self._number = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes to the message."""
        if len(data) <= _WRITE_BYTES:
            self._pending += data
            self._flush(_WRITE_BYTES)
            return
        view = memoryview(data)
        for start in range(0, len(view), _WRITE_BYTES):
            self._pending += view[start : start + _WRITE_BYTES]
            self._flush(_WRITE_BYTES)

    def flush(self) -> None:
        """Send all that was written. More follows."""
        self._flush(0)
        if self._pending:
            self._send(self._packet(self._pending, 0))
            self._pending = bytearray()

    def finish(self) -> None:
        """End the message: send the rest, with END_OF_MESSAGE in the last packet."""
        self._flush(0)
        self._send_last(self._packet(self._pending, END_OF_MESSAGE))
        self._pending = bytearray()
        self._number = 0

    def _flush(self, at_least: int) -> None:
        """Send full packets if more than `at_least` bytes wait. The last packet waits for the end of the message."""
        size = self.packet_bytes - HEADER_BYTES
        if len(self._pending) <= max(at_least, size):
            return
        whole = (len(self._pending) - 1) // size * size
        content = memoryview(self._pending)
        packets = b"".join([self._packet(content[start : start + size], 0) for start in range(0, whole, size)])
        content.release()
        del self._pending[:whole]
        self._send(packets)

    def _packet(self, content: bytes | bytearray | memoryview, status: int) -> bytes:
        self._number = self._number % 255 + 1
        length = HEADER_BYTES + len(content)
        return b"".join((_HEADER.pack(self._kind, status, length, 0, self._number, 0), content))


def message_of(content: bytes, kind: PacketType = PacketType.RESPONSE) -> bytes:
    """Return a whole message, as in a handshake."""
    packets: list[bytes] = []
    writer = PacketWriter(packets.append, kind=kind)
    writer.write(content)
    writer.finish()
    return b"".join(packets)
