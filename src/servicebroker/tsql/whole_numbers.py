"""Whole numbers that a script writes: they have at most 38 digits, as in SQL Server.

Python refuses to read more than 4,300 digits with an error of its own, and takes digits of other scripts. So what a
script says is read here, and nowhere by `int` alone.
"""

from __future__ import annotations

import re

from servicebroker.tsql.statement_errors import TsqlError

MAXIMUM_DIGITS = 38
_WHOLE = re.compile(r"[-+]?[0-9]+")


def is_whole(text: str) -> bool:
    """Return whether a text is digits, perhaps behind a sign."""
    return _WHOLE.fullmatch(text) is not None


def parse_whole_number(text: str, line: int = 0) -> int:
    """Return the number that `is_whole` has found.

    Raises:
        TsqlError: 1007 it has more than 38 digits.
    """
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > MAXIMUM_DIGITS:
        raise TsqlError(
            1007,
            f"The number '{text[:MAXIMUM_DIGITS]}...' is out of the range for numeric representation "
            f"(maximum precision {MAXIMUM_DIGITS}).",
            severity=15,
            line=line,
        )
    return -int(digits or "0") if text[0] == "-" else int(digits or "0")
