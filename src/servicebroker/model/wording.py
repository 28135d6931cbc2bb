"""How things are said to a person: how many of something, and what somebody else has said."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 message`, `2,000 messages`; `many` where it is not `one` with an s, as in `messages wait`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cleaned(text: str, most: int | None = 500, *, keep: str = "") -> str:
    """Return text from outside, to be stored, logged or shown: one line that steers nothing, and not too long.

    Control characters, line ends, direction marks and all else that cannot be printed become U+FFFD, except the
    characters in `keep`. `most` is the number of characters; None keeps all.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)
