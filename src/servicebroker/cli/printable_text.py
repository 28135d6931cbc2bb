"""Text and bytes from outside, as they are shown on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise

from servicebroker.model.wording import cleaned

_MAX_CHARACTERS = 4000
_BLOCKS = "▁▂▃▄▅▆▇█"


def shown_body(validation: str, body: bytes | None) -> str:
    """Return a message body as text, by its validation letter: E empty, X as text, N as text if it is text, else bytes.

    Nothing in it can steer a terminal.
    """
    if body is None or validation == "E":
        return "Empty message."
    if validation == "X":
        marked = body[:2] in (b"\xff\xfe", b"\xfe\xff")
        coding = "utf-16" if marked else "utf-16-le" if body[1:2] == b"\0" else "utf-8-sig"  # as T-SQL sends N'...'
        return printable(body.decode(coding, errors="replace"))
    with suppress(UnicodeDecodeError):
        if (text := body.decode()).replace("\n", "").replace("\t", "").isprintable():
            return printable(text)
    text = printable(body.decode("ascii", errors="replace").replace("\ufffd", "."))
    return f"No validation -- binary message:\n{body[:_MAX_CHARACTERS].hex(' ', 16)}\n{text}"


def printable(text: str) -> str:
    """Return a text without characters that could steer a terminal, cut if it is too long."""
    safe = cleaned(text, _MAX_CHARACTERS, keep="\n\t")
    return safe if len(text) <= _MAX_CHARACTERS else f"{safe} ... ({len(text):,} characters)"


def blocks(values: Sequence[float | None], width: int = 20) -> str:
    """Draw values as a line of blocks, the highest value as high as the line; a blank for an unknown value."""
    if len(values) > width:  # each block is the highest of its part
        cuts = [place * len(values) // width for place in range(width + 1)]
        parts = [[value for value in values[start:end] if value is not None] for start, end in pairwise(cuts)]
        values = [max(part, default=None) for part in parts]
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _BLOCKS[round(value / most * 7) if most else 0] for value in values)


def as_json_text(told: object) -> str:
    """Return one JSON object: times by ISO 8601, bytes in hexadecimal."""
    return json.dumps(told, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)
