"""How things are said to a person: how many of something, and what somebody else has said."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 message`, `2,000 messages`; `many` where it is not `one` with an s, as in `messages wait`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cleaned(text: str, most: int = 500, *, keep: str = "") -> str:
    """What a stranger has said, to be stored, logged or shown: one line that steers nothing, and not too long.

    Characters that cannot be printed become U+FFFD, but for those in `keep`.
    """
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
