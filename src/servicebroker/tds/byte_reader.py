"""A reader of bytes that a client sent. Every length is checked against the bytes that are there."""

from __future__ import annotations

import struct

_UINT16, _UINT32, _UINT64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_INT16, _INT32, _INT64 = struct.Struct("<h"), struct.Struct("<i"), struct.Struct("<q")


class ProtocolError(Exception):
    """The client sent bytes that are not valid TDS. The server ends the connection."""


class ByteReader:
    """Reads numbers and texts in order. Numbers are little-endian, texts are UTF-16.

    Each method raises ProtocolError if the bytes end too early.
    """

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self._view = memoryview(data)
        self.position = position

    def release(self) -> None:
        """Let go of the bytes, so that their owner may drop them."""
        self._view.release()

    @property
    def remaining(self) -> int:
        """The number of bytes that are left."""
        return len(self._view) - self.position

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes."""
        end = self.position + count
        if count < 0 or end > len(self._view):
            raise ProtocolError(f"{count} bytes are announced, {self.remaining} bytes are left.")
        taken = self._view[self.position : end]
        self.position = end
        return taken

    def peek(self) -> int:
        """Return the next byte, which stays."""
        byte = self.uint8()
        self.position -= 1
        return byte

    def at(self, offset: int, count: int) -> memoryview:
        """Return bytes at an offset from the start. The position stays."""
        if offset + count > len(self._view):
            raise ProtocolError(f"{count} bytes are announced at offset {offset}, beyond the end.")
        return self._view[offset : offset + count]

    def uint8(self) -> int:
        """Return the next byte as a number."""
        return self.take(1)[0]

    def int16(self) -> int:
        """Return a signed number of 2 bytes."""
        return int(_INT16.unpack(self.take(2))[0])

    def uint16(self) -> int:
        """Return an unsigned number of 2 bytes."""
        return int(_UINT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        """Return a signed number of 4 bytes."""
        return int(_INT32.unpack(self.take(4))[0])

    def uint32(self) -> int:
        """Return an unsigned number of 4 bytes."""
        return int(_UINT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        """Return a signed number of 8 bytes."""
        return int(_INT64.unpack(self.take(8))[0])

    def uint64(self) -> int:
        """Return an unsigned number of 8 bytes."""
        return int(_UINT64.unpack(self.take(8))[0])

    def text(self, characters: int) -> str:
        """Return a text of so many UTF-16 code units."""
        return decode_utf16(self.take(2 * characters))

    def short_text(self) -> str:
        """Return a text behind its length of 1 byte (B_VARCHAR)."""
        return self.text(self.uint8())

    def long_text(self) -> str:
        """Return a text behind its length of 2 bytes (US_VARCHAR)."""
        return self.text(self.uint16())


def decode_utf16(data: bytes | memoryview) -> str:
    """Decode UTF-16. A lone surrogate stays, so that the statement that stores it refuses it.

    Raises:
        ProtocolError: the number of bytes is odd.
    """
    if len(data) % 2:
        raise ProtocolError("A text of UTF-16 has an odd number of bytes.")
    return str(data, "utf-16-le", "surrogatepass")


def encode_utf16(text: str) -> bytes:
    """Encode a text as UTF-16, with lone surrogates as they are."""
    return text.encode("utf-16-le", "surrogatepass")
