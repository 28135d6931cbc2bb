"""Refusals between this instance and its peers: one stored row for each peer and reason, which `doctor` reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MAX_ROWS = 200  # stored refusals; the newest are kept
REFUSAL_RETENTION = timedelta(days=1)
# failures that are stored like refusals, so that doctor reports them
CONNECTION_BROKEN = 9753  # the number under which a broken connection is stored
ROUND_FAILED = 9644  # the number under which an unexpected failure of a daemon's round is stored


class RefusalKey(NamedTuple):
    """The key of a refusal: the peer, the number of the reason, and `is_ours` if this instance refused."""

    is_ours: bool
    peer: str
    number: int


class RefusalRecord(NamedTuple):
    """A refusal, with its count of consecutive occurrences, its first and last time, and its latest text."""

    is_ours: bool
    peer: str
    number: int
    occurrences: int
    first: datetime
    last: datetime
    text: str


def save_refusals(refusals: Mapping[RefusalKey, tuple[int, str]], now: datetime) -> Steps[None]:
    """Add refusals, each with count and latest text, to the stored ones.

    Rows older than `REFUSAL_RETENTION` are deleted, and the oldest beyond `MAX_ROWS`.
    """
    yield SQL(
        "save_refusals",
        (
            [refusal.is_ours for refusal in refusals],
            [refusal.peer for refusal in refusals],
            [refusal.number for refusal in refusals],
            [count for count, _ in refusals.values()],
            [text for _, text in refusals.values()],
            now,
        ),
    )
    yield Statement(
        "refusals.save_refusals.delete_old",
        "delete from servicebroker.refusals where last_time < $1 or (is_ours, peer, number) in "
        f"(select is_ours, peer, number from servicebroker.refusals order by last_time desc offset {MAX_ROWS})",
        (now - REFUSAL_RETENTION,),
    )


def find_refusals(since: datetime) -> Steps[list[RefusalRecord]]:
    """Return the refusals of `since` and later, latest first, without those of peers whose certificate was dropped."""
    rows = yield SQL("find_refusals", (since,))
    return [RefusalRecord(*row) for row in rows]
