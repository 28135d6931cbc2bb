"""LOGIN7: the client's names, its password and what it asks for."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.tds.byte_reader import ByteReader, ProtocolError, decode_utf16
from servicebroker.tds.dialect import Dialect, find_dialect

MAX_LOGIN_BYTES = 32 * 1024  # a login with a password has less than 3 KiB

_FIXED_BYTES = 94  # the fixed part of LOGIN7, before its texts
_MAX_CHARACTERS = 128  # the longest name
# offsets of the pairs (offset, length) of texts
(
    _HOST_PLACE,
    _USER_PLACE,
    _PASSWORD_PLACE,
    _PROGRAM_PLACE,
    _EXTENSION_PLACE,
    _LIBRARY_PLACE,
    _LANGUAGE_PLACE,
    _DATABASE_PLACE,
) = 36, 40, 44, 48, 56, 60, 64, 68
_INTEGRATED_SECURITY = 0x80  # a bit of the second option flags
_HAS_EXTENSION = 0x10  # a bit of the third option flags
_FEDERATED_FEATURE = 0x02  # the feature extension of access tokens
_END_OF_FEATURES = 0xFF


class Login(NamedTuple):
    """The content of LOGIN7.

    Attributes:
        version: the version of TDS.
        packet_bytes: the packet size that the client asks for.
        user, password: SQL authentication.
        database: the database to open, "" for the default.
        program, host, library: names that the client gives itself and its driver.
        is_integrated: True for Windows authentication.
        features: the numbers of the feature extensions.
    """

    version: int
    packet_bytes: int
    user: str
    password: str
    database: str = ""
    program: str = ""
    host: str = ""
    library: str = ""
    is_integrated: bool = False
    features: tuple[int, ...] = ()

    @property
    def dialect(self) -> Dialect:
        """The dialect of the client; TDS 7.4 for a version that is refused."""
        return find_dialect(self.version) or Dialect.TDS_7_4

    @property
    def has_access_token(self) -> bool:
        """True if the client signs in with a token of a directory."""
        return _FEDERATED_FEATURE in self.features


def parse_login(data: bytes | bytearray) -> Login:
    """Read LOGIN7.

    Raises:
        ProtocolError: it is malformed, or longer than the protocol allows.
    """
    reader = ByteReader(data)
    length = reader.uint32()
    if length != len(data) or length > MAX_LOGIN_BYTES or length < _FIXED_BYTES:
        raise ProtocolError(f"LOGIN7 says that it has {length} bytes, and has {len(data)}.")
    version, packet_bytes = reader.uint32(), reader.uint32()
    reader.position = 25
    second_flags, _, third_flags = reader.uint8(), reader.uint8(), reader.uint8()
    features = _read_features(reader) if third_flags & _HAS_EXTENSION else ()
    return Login(
        version,
        packet_bytes,
        _text(reader, _USER_PLACE),
        decode_utf16(unmask(_field(reader, _PASSWORD_PLACE))),
        _text(reader, _DATABASE_PLACE),
        _text(reader, _PROGRAM_PLACE),
        _text(reader, _HOST_PLACE),
        _text(reader, _LIBRARY_PLACE),
        bool(second_flags & _INTEGRATED_SECURITY),
        features,
    )


def _field(reader: ByteReader, place: int) -> memoryview:
    reader.position = place
    offset, characters = reader.uint16(), reader.uint16()
    if characters > _MAX_CHARACTERS:
        raise ProtocolError(f"A name in LOGIN7 has {characters} characters; the limit is {_MAX_CHARACTERS}.")
    return reader.at(offset, 2 * characters)


def _text(reader: ByteReader, place: int) -> str:
    return decode_utf16(_field(reader, place))


def _read_features(reader: ByteReader) -> tuple[int, ...]:
    """Return the numbers of the feature extensions. Their content is not needed."""
    reader.position = _EXTENSION_PLACE
    offset, size = reader.uint16(), reader.uint16()
    if size != 4:
        raise ProtocolError("The feature extensions of LOGIN7 have no offset of 4 bytes.")
    reader.position = offset
    reader.position = reader.uint32()
    features: list[int] = []
    while (feature := reader.uint8()) != _END_OF_FEATURES:
        reader.take(reader.uint32())
        features.append(feature)
    return tuple(features)


def unmask(masked: bytes | memoryview) -> bytes:
    """Return a password without its mask: each byte is XORed with 0xA5, then its halves are swapped."""
    return bytes((byte ^ 0xA5) >> 4 | ((byte ^ 0xA5) & 0x0F) << 4 for byte in masked)


def mask(password: str) -> bytes:
    """Return the masked form of a password, as a client sends it."""
    return bytes(((byte >> 4) | (byte & 0x0F) << 4) ^ 0xA5 for byte in password.encode("utf-16-le"))
