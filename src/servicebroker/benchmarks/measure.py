"""Measuring: how long some work takes, what it commits and how much WAL it writes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import psycopg

from servicebroker.model.errors import InstanceError

Work = Callable[[int], int]  # does something with that many messages and says with how many it did

# Both are exact at once, unlike the statistics views, which lag, and they see every connection.
_POSITION = (
    "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, "
    "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        messages: with how many it was made.
        seconds: of the wall clock.
        commits: transactions that wrote something, as the server numbered them.
        wal_bytes: bytes of write-ahead log that the server wrote meanwhile.
    """

    messages: int
    seconds: float
    commits: int
    wal_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of some samples.

    Attributes:
        per_second: messages per second.
        commits: transactions that wrote something, per message.
        wal_bytes: bytes of write-ahead log, per message.
    """

    per_second: float
    commits: float
    wal_bytes: float


class Meter:
    """Takes samples; on its own connection, so that it sees what any client does to the server."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def sample(self, work: Work, messages: int) -> Sample:
        """Let `work` do its job on `messages` messages.

        Raises:
            InstanceError: it did not handle exactly that many.
        """
        gc.collect()
        wal, xid = self._position()
        begin = time.perf_counter()
        done = work(messages)
        seconds = time.perf_counter() - begin
        later_wal, later_xid = self._position()
        if done != messages:
            raise InstanceError(f"A benchmark is broken: it handled {done:,} messages where {messages:,} were due.")
        return Sample(messages, seconds, later_xid - xid, later_wal - wal)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _position(self) -> tuple[int, int]:
        row = self._connection.execute(_POSITION).fetchone()
        assert row is not None
        return row[0], row[1]


def sample_elsewhere(work: Work, messages: int) -> Sample:
    """Let `work` do its job on `messages` messages where PostgreSQL has no part in it."""
    begin = time.perf_counter()
    done = work(messages)
    return Sample(done, time.perf_counter() - begin, 0, 0)


def figures(samples: Sequence[Sample]) -> Figures:
    """The medians of each figure over `samples`, of which there must be one at least."""
    return Figures(
        median(sample.messages / sample.seconds for sample in samples),
        median(sample.commits / sample.messages for sample in samples),
        median(sample.wal_bytes / sample.messages for sample in samples),
    )
