"""Whole numbers in scripts. They have at most 38 digits, as in SQL Server.

Python's `int` raises its own error above 4,300 digits, and accepts digits of other writing systems. So numbers of a
script are read here and never by `int` alone.
"""

from __future__ import annotations

import re

from servicebroker.tsql.statement_errors import TsqlError

MAX_DIGITS = 38
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]+")


def is_whole(text: str) -> bool:
    """Check that a text consists of digits, with an optional sign."""
    return _WHOLE_NUMBER.fullmatch(text) is not None


def parse_whole_number(text: str, line: int = 0) -> int:
    """Return the value of a text that `is_whole` accepts.

    Raises:
        TsqlError: 1007 more than 38 digits.
    """
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > MAX_DIGITS:
        raise TsqlError(
            1007,
            f"The number '{text[:MAX_DIGITS]}...' is out of the range for numeric representation "
            f"(maximum precision {MAX_DIGITS}).",
            severity=15,
            line=line,
        )
    return -int(digits or "0") if text[0] == "-" else int(digits or "0")
