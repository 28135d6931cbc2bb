"""Message bodies and other untrusted values as text for a terminal."""

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
    """Return a message body as text without control characters.

    `validation` is the code of the message type's validation: E for EMPTY, X for XML, N for NONE. A body without
    validation that is not UTF-8 text is returned in hexadecimal.
    """
    if body is None or validation == "E":
        return "Empty message."
    if validation == "X":
        has_byte_order_mark = body[:2] in (b"\xff\xfe", b"\xfe\xff")
        is_utf16 = body[1:2] == b"\0"  # as T-SQL sends N'...'
        encoding = "utf-16" if has_byte_order_mark else "utf-16-le" if is_utf16 else "utf-8-sig"
        return printable(body.decode(encoding, errors="replace"))
    with suppress(UnicodeDecodeError):
        if (text := body.decode()).replace("\n", "").replace("\t", "").isprintable():
            return printable(text)
    text = printable(body.decode("ascii", errors="replace").replace("\ufffd", "."))
    return f"No validation -- binary message:\n{body[:_MAX_CHARACTERS].hex(' ', 16)}\n{text}"


def printable(text: str) -> str:
    """Return a text without control characters, cut after `_MAX_CHARACTERS`."""
    safe = cleaned(text, _MAX_CHARACTERS, keep="\n\t")
    return safe if len(text) <= _MAX_CHARACTERS else f"{safe} ... ({len(text):,} characters)"


def blocks(values: Sequence[float | None], width: int = 20) -> str:
    """Draw values as a line of at most `width` block characters, scaled to the highest value; a blank for None."""
    if len(values) > width:  # each block is the maximum of several values
        cuts = [index * len(values) // width for index in range(width + 1)]
        parts = [[value for value in values[start:end] if value is not None] for start, end in pairwise(cuts)]
        values = [max(part, default=None) for part in parts]
    highest = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _BLOCKS[round(value / highest * 7) if highest else 0] for value in values)


def as_json_text(document: object) -> str:
    """Return a document in JSON, with times in ISO 8601 and bytes in hexadecimal."""
    return json.dumps(document, default=_to_text)


def _to_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)
