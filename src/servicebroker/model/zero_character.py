"""The character U+0000, which T-SQL strings may hold and a text of PostgreSQL cannot (decision 405).

Python and messages have the character itself. A text in PostgreSQL has `ZERO` in its place: the last code point of
Unicode, a noncharacter that no text is to interchange and no NCHAR can make. Every string of T-SQL that enters or
leaves PostgreSQL passes `to_postgres` or `from_postgres`; in PostgreSQL, `tsql.zero()` is made of the same constant.
"""

from __future__ import annotations

ZERO = "\U0010ffff"


def to_postgres(text: str) -> str:
    """Return the text as PostgreSQL can hold it.

    A `ZERO` of the text's own becomes U+FFFD, as half of a surrogate pair in bytes does.
    """
    if "\0" not in text and ZERO not in text:
        return text
    return text.replace(ZERO, "\N{REPLACEMENT CHARACTER}").replace("\0", ZERO)


def from_postgres(text: str) -> str:
    """Return the text that PostgreSQL holds, with U+0000 where it has `ZERO`."""
    return text.replace(ZERO, "\0")
