"""The beginning of a body for a page: as JSON, XML, text or hexadecimal. Nothing in it can act."""

from __future__ import annotations

import json
from typing import NamedTuple

from servicebroker.cli.printable_text import printable, shown_body

PREVIEW_BYTES = 120  # of a body in a table


class ShownBody(NamedTuple):
    """A body for a page: its kind, its text, and the number of bytes that are not shown."""

    kind: str
    text: str
    more: int


def shown(validation: str, head: bytes | None, size: int) -> ShownBody:
    """Return a body of `size` bytes that begins with `head`, by the letter of its validation: E, X or N.

    For N, the kind is guessed from the content.
    """
    if not head or validation == "E":
        return ShownBody("empty", "", 0)
    more = size - len(head)
    if validation == "X":
        return ShownBody("XML", shown_body("X", head), more)
    try:
        text = _whole_characters(head, cut=more > 0)
    except UnicodeDecodeError:
        return ShownBody("hexadecimal", shown_body("N", head), more)
    if any(ord(character) < 32 and character not in "\n\r\t" for character in text):
        return ShownBody("hexadecimal", shown_body("N", head), more)
    laid_out = None if more else _json(text)
    if laid_out is not None:
        return ShownBody("JSON", printable(laid_out), more)
    return ShownBody("text", printable(text.replace("\r\n", "\n")), more)


def preview(validation: str, head: bytes | None, size: int) -> str:
    """Return the beginning of a body on one line, for a table."""
    text = " ".join(shown(validation, head and head[:PREVIEW_BYTES], size).text.split())
    return text if size <= PREVIEW_BYTES else f"{text}…"


def editable(head: bytes | None, size: int) -> str | None:
    """Return a body as text that a form returns unchanged; None if the body is cut off or is no such text."""
    try:
        text = (head or b"").decode()
    except UnicodeDecodeError:
        return None
    is_whole = len(head or b"") == size
    return text if is_whole and all(character >= " " or character in "\n\t" for character in text) else None


def _whole_characters(head: bytes, *, cut: bool) -> str:
    """Decode UTF-8 without a last character that the cut has broken."""
    for left_out in range(4 if cut else 1):
        try:
            return head[: len(head) - left_out].decode()
        except UnicodeDecodeError:
            if left_out == 3 or not cut:
                raise
    raise AssertionError("not reached")


def _json(text: str) -> str | None:
    """Return JSON objects and arrays with a line for each part; None for other texts."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
