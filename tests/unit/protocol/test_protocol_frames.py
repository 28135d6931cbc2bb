from __future__ import annotations

import struct
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.frames import (
    HEADER_SIZE,
    MAXIMUM_BODY,
    Frame,
    FrameKind,
    FrameReader,
    encode_frame,
)
from servicebroker.protocol.wire_errors import WireError

frames = st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=200)), max_size=5)


def read_all(reader: FrameReader) -> list[Frame]:
    found = []
    while (frame := reader.next_frame()) is not None:
        found.append(frame)
    return found


@given(frames, st.data())
def test_frames_are_read_in_any_portions(sent: list[tuple[FrameKind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(kind, body) for kind, body in sent)
    reader, received = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:size])
        received += read_all(reader)
        stream = stream[size:]
    assert received == [Frame(kind, body) for kind, body in sent]


def test_one_byte_at_a_time() -> None:
    reader, received = FrameReader(), []
    for byte in encode_frame(FrameKind.DIALOG, b"body") + encode_frame(FrameKind.KEEP_ALIVE):
        reader.feed(bytes([byte]))
        received += read_all(reader)
    assert received == [Frame(FrameKind.DIALOG, b"body"), Frame(FrameKind.KEEP_ALIVE, b"")]


@given(st.binary(max_size=400))
def test_any_bytes_parse_or_raise_the_documented_error(junk: bytes) -> None:
    reader = FrameReader()
    reader.feed(junk)
    with suppress(WireError):
        read_all(reader)


@given(st.binary(max_size=60), st.data())
def test_a_changed_bit_is_noticed_wherever_it_is(body: bytes, data: st.DataObject) -> None:
    frame = bytearray(encode_frame(FrameKind.DIALOG, body))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    reader = FrameReader()
    reader.feed(bytes(frame))
    if bit // 8 < HEADER_SIZE:
        with pytest.raises(WireError):
            reader.next_frame()
    else:
        received = reader.next_frame()
        assert received is not None
        assert not received.is_intact


def test_a_length_over_the_limit_is_refused_before_the_body_comes() -> None:
    reader = FrameReader(limit=10)
    reader.feed(encode_frame(FrameKind.HELLO, b"x" * 11)[:HEADER_SIZE])
    with pytest.raises(WireError, match="the limit of 10"):
        reader.next_frame()


def test_the_limit_itself_is_allowed() -> None:
    reader = FrameReader()
    reader.feed(encode_frame(FrameKind.DIALOG, bytes(MAXIMUM_BODY)))
    assert len(read_all(reader)[0].body) == MAXIMUM_BODY
    with pytest.raises(ValueError, match="at most"):
        encode_frame(FrameKind.DIALOG, bytes(MAXIMUM_BODY + 1))


@pytest.mark.parametrize(
    ("place", "value", "reason"), [(0, 0x47, "another program"), (2, 9, "format 9"), (3, 99, "kind 99")]
)
def test_other_protocols_formats_and_kinds_are_refused(place: int, value: int, reason: str) -> None:
    header = bytearray(encode_frame(FrameKind.HELLO))
    header[place] = value
    header[12:] = struct.pack(">I", crc32(bytes(header[:12])))
    reader = FrameReader()
    reader.feed(bytes(header))
    with pytest.raises(WireError, match=reason):
        reader.next_frame()
