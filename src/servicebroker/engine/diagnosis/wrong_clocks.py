"""Wrong clocks: machines whose clock differs from the server's. Their programs record it, and doctor reports it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


_RETENTION = timedelta(days=1)  # older records are deleted


class WrongClock(NamedTuple):
    """A wrong clock that a program on a host has recorded; the host is '' for the server's machine."""

    program: str
    host: str
    seconds_ahead: int
    last: datetime


def note_wrong_clock(ahead: timedelta, now: datetime) -> Steps[None]:
    """Record how far the clock of this session's machine is ahead of the server's, and delete old records."""
    yield SQL("note_wrong_clock", (round(ahead.total_seconds()), now))
    yield SQL("note_wrong_clock.forget", (now - _RETENTION, now + _RETENTION))


def find_wrong_clocks(most: int) -> Steps[list[WrongClock]]:
    """Return the recorded clocks, latest first."""
    rows = yield Statement(
        "wrong_clocks.find_wrong_clocks",
        f"select program, host, seconds_ahead, last_time from servicebroker.wrong_clocks order by 4 desc limit {most}",
    )
    return [WrongClock(*row) for row in rows]
