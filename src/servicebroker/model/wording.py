"""Wording for users: counts with plurals, and safe text of values and exceptions."""

from __future__ import annotations

import traceback

LONGEST_SHOWN = 300  # characters of a value in an error
MAXIMUM_TRACEBACK = 200_000  # characters, of the end: an exception's text may be as long as a body


def about_instance(text: str) -> str:
    """Return a text of SQL Server for a user without SQL Server: its instance is an instance of this product."""
    return text.replace("SQL Server instance", "instance")


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 message` or `2,000 messages`. Pass `many` if the plural is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cleaned(text: str, most: int | None = 500, *, keep: str = "") -> str:
    """Return text from outside for storing or showing: one line of limited length, without control characters.

    Control characters, line ends, direction marks and all else that cannot be printed become U+FFFD, except the
    characters in `keep`. `most` is the number of characters; None keeps all.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def safe_text(value: object) -> str:
    """Return `str(value)`, or a text about its failure. Never raises."""
    try:
        return str(value)
    except BaseException:  # of any kind: only the original failure must be reported
        return f"<{type(value).__name__}, whose text cannot be had>"


def short_repr(value: object) -> str:
    """Return `repr(value)` for an error text: one line of limited length. Never raises."""
    if isinstance(value, str | bytes) and len(value) > LONGEST_SHOWN:
        value = value[:LONGEST_SHOWN]  # the repr of a body may be four times as long
    try:
        text = repr(value)
    except Exception:  # an int of 5,000 digits, nested lists, or a failing __repr__
        text = f"<{type(value).__name__}, whose text cannot be had>"
    return cut(cleaned(text, None), LONGEST_SHOWN)


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters, with a mark if it was longer."""
    return text if len(text) <= most else f"{text[:most]}…"


def describe_exception(problem: BaseException) -> str:
    """Return an exception as one line, such as `ValueError: no such item`. Never raises."""
    return storable(" ".join(f"{type(problem).__name__}: {safe_text(problem)}".split()))


def traceback_of(problem: BaseException) -> str:
    """Return an exception with its traceback, as Python prints it. Never raises."""
    try:
        text = "".join(traceback.format_exception(problem))
    except BaseException:  # as above
        text = "".join(traceback.format_tb(problem.__traceback__)) + describe_exception(problem)
    return storable(text[-MAXIMUM_TRACEBACK:])


def storable(text: str) -> str:
    """Return a text that PostgreSQL can store: NUL and halves of surrogate pairs become replacement characters."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
