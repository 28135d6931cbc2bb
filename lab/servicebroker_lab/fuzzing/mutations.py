"""Random changes of a valid body, which decoders have to survive."""

from __future__ import annotations

import random

MAX_BODY_BYTES = 1024 * 1024
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63))


def mutate(body: bytes, draw: random.Random) -> bytes:
    """Return the body, changed at no, one or several positions; never larger than `MAX_BODY_BYTES`."""
    for _ in range(draw.choice((0, 0, 1, 1, 3))):
        body = draw.choice(_CHANGES)(body, draw)[:MAX_BODY_BYTES]
    return body[:MAX_BODY_BYTES]


def zigzag(value: int) -> bytes:
    """Return a number of 64 bits in Avro's encoding of a long."""
    return varint((value << 1 ^ value >> 63) & (2**64 - 1))


def varint(value: int) -> bytes:
    """Return a non-negative number in Protobuf's encoding."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _flip(body: bytes, draw: random.Random) -> bytes:
    changed = bytearray(body or b"\0")
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _cut(body: bytes, draw: random.Random) -> bytes:
    return body[: draw.randint(0, len(body))]


def _repeat(body: bytes, draw: random.Random) -> bytes:
    start, end = _part(body, draw)
    return body[:start] + _times(body[start:end], draw.choice((2, 10, 1_000, 500_000))) + body[end:]


def _nest(body: bytes, draw: random.Random) -> bytes:
    """Repeat the beginning of a body many times, and its end as often."""
    times = draw.choice((2, 100, 200_000))
    middle = draw.randint(0, len(body))
    return _times(body[:middle], times) + _times(body[middle:], times)


def _times(part: bytes, times: int) -> bytes:
    return part * min(times, MAX_BODY_BYTES // (1 + len(part)))


def _number(body: bytes, draw: random.Random) -> bytes:
    start, end = _part(body, draw)
    number = draw.choice(NUMBERS) + draw.randint(-2, 2)
    written = draw.choice((zigzag(number), varint(number % 2**64), str(number).encode(), b"\xff" * draw.randint(1, 12)))
    return body[:start] + written + body[end:]


def _move(body: bytes, draw: random.Random) -> bytes:
    start, end = _part(body, draw)
    index = draw.randint(0, len(body))
    return body[:index] + body[start:end] + body[index:]


def _part(body: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randint(0, len(body))
    return start, min(len(body), start + draw.choice((0, 1, 2, 8, 64)))


_CHANGES = (_flip, _cut, _repeat, _nest, _number, _move)
