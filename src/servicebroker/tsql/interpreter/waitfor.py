"""How long WAITFOR DELAY and WAITFOR TIME wait."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from servicebroker.tsql.statement_errors import TsqlError

_TIME = re.compile(r"\s*(?:\d{4}-\d{2}-\d{2}\s+)?(\d{1,2}):(\d{2})(?::(\d{2})(?:[.:](\d{1,3}))?)?\s*")


def seconds_until(kind: str, text: str, now: datetime) -> float:
    """The seconds from `now`, UTC: the length of a DELAY, or up to the next time of day that TIME names.

    Raises:
        TsqlError: 148 it is no time of less than 24 hours.
    """
    found = _TIME.fullmatch(text)
    hours, minutes, seconds = (int(found[n] or 0) for n in (1, 2, 3)) if found else (99, 0, 0)
    if found is None or hours > 23 or minutes > 59 or seconds > 59:
        raise TsqlError(148, f"Incorrect time syntax in time string '{text}' used with WAITFOR.", severity=15)
    length = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=int((found[4] or "0").ljust(3, "0")))
    if kind == "DELAY":
        return length.total_seconds()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight + length - now).total_seconds() % timedelta(days=1).total_seconds()
