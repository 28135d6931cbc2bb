"""Refusals between this instance and its peers: one row for each peer and reason, for doctor."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAX_ROWS = 200  # rows, the latest
REFUSAL_RETENTION = timedelta(days=1)
CONNECTION_BROKEN = 9753  # the number under which a broken connection is stored
ROUND_FAILED = 9644  # the number under which an unexpected failure of a daemon's round is stored


class Refusal(NamedTuple):
    """The key of a refusal: `is_ours` if this side refused, the peer, the number of the reason."""

    is_ours: bool
    peer: str
    number: int


class Refused(NamedTuple):
    """A refusal, with its count of consecutive occurrences, its first and last time, and its latest text."""

    is_ours: bool
    peer: str
    number: int
    times: int
    first: datetime
    last: datetime
    text: str


def save_refusals(found: Mapping[Refusal, tuple[int, str]], now: datetime) -> Steps[None]:
    """Add these refusals, with count and latest text, to the stored ones. Deletes old and surplus rows."""
    yield SQL(
        "save_refusals",
        (
            [one.is_ours for one in found],
            [one.peer for one in found],
            [one.number for one in found],
            [times for times, _ in found.values()],
            [text for _, text in found.values()],
            now,
        ),
    )
    yield Statement(
        "refusals.save_refusals.forget",
        "delete from servicebroker.refusals where last_time < $1 or (is_ours, peer, number) in "
        f"(select is_ours, peer, number from servicebroker.refusals order by last_time desc offset {MAX_ROWS})",
        (now - REFUSAL_RETENTION,),
    )


def find_refusals(since: datetime) -> Steps[list[Refused]]:
    """Return refusals since then, latest first. Peers that may no longer connect are left out."""
    rows = yield SQL("find_refusals", (since,))
    return [Refused(*row) for row in rows]
