"""Frames: the units of one connection's byte stream (docs/reference/wire-protocol.md, "Frames").

    magic 2 | format 1 | kind 1 | body length 4 | CRC-32 of the body 4 | CRC-32 of these twelve bytes 4 | body

All numbers are unsigned and big-endian. The header has its own checksum, so that the body's length is verified before
memory is allocated for it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from servicebroker.protocol.wire_errors import WireError

MAGIC = b"SB"
FRAME_FORMAT = 1
HEADER_SIZE = 16  # bytes
MAXIMUM_BODY = 262_144  # bytes of a body after the greeting
MAXIMUM_GREETING = 4_096  # bytes of a body in the greeting

_FIELDS = struct.Struct(">2sBBII")
_CHECK = struct.Struct(">I")


class FrameKind(IntEnum):
    """The kind of a frame's body."""

    HELLO = 1
    WELCOME = 2
    REJECT = 3
    KEEP_ALIVE = 4
    CLOSE = 5
    DIALOG = 6
    FORWARDED = 7  # a DIALOG that has passed a forwarder, see forwarding.py
    QUESTION = 8  # asks whether the peer is the principal of a mirrored pair, see mirroring.py
    STANDING = 9  # the answer: role and timeline


_KINDS = {int(kind): kind for kind in FrameKind}


class Frame(NamedTuple):
    """One frame. `is_intact` is False if the checksum of the body is wrong."""

    kind: FrameKind
    body: bytes
    is_intact: bool = True


def encode_frame(kind: FrameKind, body: bytes = b"") -> bytes:
    """Return the bytes of a frame.

    Raises:
        ValueError: the body is longer than `MAXIMUM_BODY`.
    """
    if len(body) > MAXIMUM_BODY:
        raise ValueError(f"a frame's body has at most {MAXIMUM_BODY} bytes, this one has {len(body)}")
    fields = _FIELDS.pack(MAGIC, FRAME_FORMAT, kind, len(body), crc32(body))
    return b"".join((fields, _CHECK.pack(crc32(fields)), body))


class FrameReader:
    """Cuts a byte stream into frames.

    `limit` is the longest accepted body, in bytes. The reader buffers at most one frame, and the bytes of one call.
    """

    __slots__ = ("_buffer", "limit")

    def __init__(self, limit: int = MAXIMUM_BODY) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None if more bytes are needed.

        Raises:
            WireError: 11235 the bytes are not a frame, or the frame is longer than allowed.
        """
        buffer = self._buffer
        if len(buffer) < HEADER_SIZE:
            return None
        kind, length, check = _parse_header(bytes(buffer[:HEADER_SIZE]), self.limit)
        end = HEADER_SIZE + length
        if len(buffer) < end:
            return None
        body = bytes(buffer[HEADER_SIZE:end])
        del buffer[:end]
        return Frame(kind, body, crc32(body) == check)


def _parse_header(header: bytes, limit: int) -> tuple[FrameKind, int, int]:
    magic, version, kind, length, check = _FIELDS.unpack_from(header)
    if magic != MAGIC:
        raise WireError(11235, "it does not begin like a frame; another program may be connected")
    if crc32(header[: _FIELDS.size]) != _CHECK.unpack_from(header, _FIELDS.size)[0]:
        raise WireError(11235, "the checksum of the header is wrong")
    if version != FRAME_FORMAT:
        raise WireError(11235, f"its frame has format {version}, not {FRAME_FORMAT}: upgrade the older instance")
    if kind not in _KINDS:
        raise WireError(11235, f"its frame has the unknown kind {kind}")
    if length > limit:
        raise WireError(11235, f"a body of {length} bytes exceeds the limit of {limit}")
    return _KINDS[kind], length, check
