"""The beginning of a message body for a page, as JSON, XML, text or hexadecimal, without control characters."""

from __future__ import annotations

import json
from typing import NamedTuple

from servicebroker.cli.printable_text import printable, shown_body

PREVIEW_BYTES = 120  # the part of a body that a table shows


class ShownBody(NamedTuple):
    """A body for a page: its kind, its text, and the number of bytes left out at the end."""

    kind: str
    text: str
    omitted_bytes: int


def render_body(validation: str, head: bytes | None, size: int) -> ShownBody:
    """Return a body of `size` bytes that begins with `head`.

    `validation` is the code of its message type: E for EMPTY, X for XML, N for NONE. For N, the content decides the
    kind.
    """
    if not head or validation == "E":
        return ShownBody("empty", "", 0)
    omitted = size - len(head)
    if validation == "X":
        return ShownBody("XML", shown_body("X", head), omitted)
    try:
        text = _decode_whole_characters(head, is_cut=omitted > 0)
    except UnicodeDecodeError:
        return ShownBody("hexadecimal", shown_body("N", head), omitted)
    if any(ord(character) < 32 and character not in "\n\r\t" for character in text):
        return ShownBody("hexadecimal", shown_body("N", head), omitted)
    indented = None if omitted else _indent_json(text)
    if indented is not None:
        return ShownBody("JSON", printable(indented), omitted)
    return ShownBody("text", printable(text.replace("\r\n", "\n")), omitted)


def preview(validation: str, head: bytes | None, size: int) -> str:
    """Return the beginning of a body on one line, for a table."""
    text = " ".join(render_body(validation, head and head[:PREVIEW_BYTES], size).text.split())
    return text if size <= PREVIEW_BYTES else f"{text}…"


def editable(head: bytes | None, size: int) -> str | None:
    """Return a body as text for a form; None if it is incomplete, or if a form would change it."""
    try:
        text = (head or b"").decode()
    except UnicodeDecodeError:
        return None
    is_whole = len(head or b"") == size
    return text if is_whole and all(character >= " " or character in "\n\t" for character in text) else None


def _decode_whole_characters(head: bytes, *, is_cut: bool) -> str:
    """Decode UTF-8. If the body is cut, leave out an incomplete last character, up to 3 bytes."""
    for omitted in range(4 if is_cut else 1):
        try:
            return head[: len(head) - omitted].decode()
        except UnicodeDecodeError:
            if omitted == 3 or not is_cut:
                raise
    raise AssertionError("not reached")


def _indent_json(text: str) -> str | None:
    """Return a JSON object or array with indentation; None for other texts."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
