"""What was refused between this instance and its peers: one row for each peer and reason, for doctor."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


MOST = 200  # rows: the latest
KEPT = timedelta(days=1)
BROKE = 9753  # kept under this number: a connection that was online has broken
FAILED = 9644  # and this: a round of the daemon has failed for a reason that nobody foresaw


class Refusal(NamedTuple):
    """Who was refused by whom, and why: `is_ours` when this side has refused. `number` is that of the reason."""

    is_ours: bool
    peer: str
    number: int


class Refused(NamedTuple):
    """A refusal, how often there was one in a row, since when and lately when, and its latest text."""

    is_ours: bool
    peer: str
    number: int
    times: int
    first: datetime
    last: datetime
    text: str


def save_refusals(found: Mapping[Refusal, tuple[int, str]], now: datetime) -> Steps[None]:
    """Add these, with how often and lately in which words, to those of before; what is old, or too much, goes."""
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
        f"(select is_ours, peer, number from servicebroker.refusals order by last_time desc offset {MOST})",
        (now - KEPT,),
    )


def find_refusals(since: datetime) -> Steps[list[Refused]]:
    """Those of which there was one since then, the latest first; not of who is let in no more, as `facts.gather`."""
    rows = yield SQL("find_refusals", (since,))
    return [Refused(*row) for row in rows]
