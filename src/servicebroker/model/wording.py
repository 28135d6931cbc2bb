"""How many of something, in words that a person reads."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 message`, `2,000 messages`; `many` where it is not `one` with an s, as in `messages wait`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
