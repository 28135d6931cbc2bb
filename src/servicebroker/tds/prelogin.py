"""PRELOGIN: client and server agree on encryption before the login."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from servicebroker.tds.byte_reader import ByteReader, ProtocolError

SERVER_VERSION = (16, 0, 1000)  # as in SERVERPROPERTY('ProductVersion')
_OPTION = struct.Struct(">BHH")  # token, offset, length
_VERSION, _ENCRYPTION, _INSTANCE, _THREAD, _MARS = range(5)
_END_TOKEN = 0xFF


class Encryption(IntEnum):
    """The values of the option ENCRYPTION."""

    OFF = 0  # encryption for the login only
    ON = 1
    NOT_SUPPORTED = 2
    REQUIRED = 3


class Prelogin(NamedTuple):
    """The options of a client's PRELOGIN.

    Attributes:
        encryption: its wish.
        mars: True if it asks for several requests at a time.
    """

    encryption: Encryption
    mars: bool = False


def parse_prelogin(data: bytes | bytearray) -> Prelogin:
    """Read a PRELOGIN.

    Raises:
        ProtocolError: it is malformed.
    """
    options: dict[int, memoryview] = {}
    reader = ByteReader(data)
    while (token := reader.peek()) != _END_TOKEN:
        token, offset, length = _OPTION.unpack(reader.take(_OPTION.size))
        options[token] = reader.at(offset, length)
    wish = options.get(_ENCRYPTION, b"")
    try:
        encryption = Encryption(wish[0]) if len(wish) else Encryption.NOT_SUPPORTED
    except ValueError:
        raise ProtocolError(f"The encryption {wish[0]} of PRELOGIN is unknown.") from None
    return Prelogin(encryption, mars=bytes(options.get(_MARS, b"")) == b"\1")


def answer_prelogin(encryption: Encryption) -> bytes:
    """Return the server's PRELOGIN. MARS is refused."""
    major, minor, build = SERVER_VERSION
    options = (
        (_VERSION, struct.pack(">BBHH", major, minor, build, 0)),
        (_ENCRYPTION, bytes([encryption])),
        (_INSTANCE, b"\0"),
        (_THREAD, b""),
        (_MARS, b"\0"),
    )
    offset = _OPTION.size * len(options) + 1
    head, content = b"", b""
    for token, value in options:
        head += _OPTION.pack(token, offset + len(content), len(value))
        content += value
    return head + bytes([_END_TOKEN]) + content


def choose_encryption(wish: Encryption, *, is_required: bool) -> Encryption:
    """Return the server's answer to a client's wish.

    All is encrypted, or nothing. A client that asks for it only at the login sends in plain text where that is allowed.
    """
    if wish in (Encryption.ON, Encryption.REQUIRED):
        return Encryption.ON
    return Encryption.REQUIRED if is_required else Encryption.NOT_SUPPORTED
