"""The character U+0000, which T-SQL strings may have and a text of PostgreSQL cannot (decision 77).

Python and messages have the character itself. A text in PostgreSQL has `ZERO` in its place: the last code point of
Unicode, a noncharacter that texts do not exchange and NCHAR cannot make. Every string of T-SQL that enters or leaves
PostgreSQL passes `to_postgres` or `from_postgres`; in PostgreSQL, `tsql.zero()` has the same constant.
"""

from __future__ import annotations

ZERO = "\U0010ffff"


def to_postgres(text: str) -> str:
    """Return the text as PostgreSQL can store it.

    A `ZERO` in the text itself becomes U+FFFD, as half of a surrogate pair in bytes does.
    """
    if "\0" not in text and ZERO not in text:
        return text
    return text.replace(ZERO, "\N{REPLACEMENT CHARACTER}").replace("\0", ZERO)


def from_postgres(text: str) -> str:
    """Return the text of PostgreSQL, with U+0000 in place of `ZERO`."""
    return text.replace(ZERO, "\0")
