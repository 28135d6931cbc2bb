"""Measuring: how long some work takes, what processors do for it, what it commits and how much WAL it writes."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks import processes

Work = Callable[[int], int]  # does something with that many messages and says with how many it did

# Both are exact at once, unlike the statistics views, which lag, and they see every connection.
_POSITION = (
    "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, "
    "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)
_METER = "servicebroker meter"
_BACKENDS = f"select pid from pg_stat_activity where backend_type = 'client backend' and application_name <> '{_METER}'"
_WAITS = (
    "select coalesce(wait_event, 'running'), count(*) from pg_stat_activity "
    f"where backend_type = 'client backend' and state = 'active' and application_name <> '{_METER}' group by 1"
)
_SAMPLE_INTERVAL_S = 0.01  # seconds between two looks at what backends wait for


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        messages: with how many it was made.
        seconds: of the wall clock.
        commits: transactions that wrote something, as the server numbered them.
        wal_bytes: bytes of write-ahead log that the server wrote meanwhile.
        server: seconds of processor time of the server's sessions; 0 where the system does not say.
        client: of this process and those it has started.
        waits: how often a session that worked was seen waiting for what, where that was watched.
    """

    messages: int
    seconds: float
    commits: int
    wal_bytes: int
    server: float = 0.0
    client: float = 0.0
    waits: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of some samples: medians, and means of processor time.

    Attributes:
        per_second: messages per second.
        commits: transactions that wrote something, per message.
        wal_bytes: bytes of write-ahead log, per message.
        server, client: microseconds of processor time, per message; 0 where the system does not say.
        waits: in words, what the server's sessions waited for; "" where that was not watched.
    """

    per_second: float
    commits: float
    wal_bytes: float
    server: float = 0.0
    client: float = 0.0
    waits: str = ""


class Meter:
    """Takes samples; on its own connection, so that it sees what any client does to the server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True, application_name=_METER)

    def sample(self, work: Work, messages: int, *, watches: bool = False) -> Sample:
        """Let `work` do its job on `messages` messages. `watches`: look all the while what sessions wait for.

        Raises:
            InstanceError: it did not handle exactly that many.
        """
        gc.collect()
        wal, xid = self._position()
        server, client = self._sessions(), _processor_times(_clients())
        waits: Counter[str] = Counter()
        begin = time.perf_counter()
        if watches:
            with self._watched(waits):
                done = work(messages)
        else:
            done = work(messages)
        seconds = time.perf_counter() - begin
        used = _since(server, self._sessions()), _since(client, _processor_times(_clients()))
        later_wal, later_xid = self._position()
        if done != messages:
            raise InstanceError(f"A benchmark is broken: it handled {done:,} messages where {messages:,} were due.")
        return Sample(messages, seconds, later_xid - xid, later_wal - wal, *used, waits)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _position(self) -> tuple[int, int]:
        row = self._connection.execute(_POSITION).fetchone()
        assert row is not None
        return row[0], row[1]

    def _sessions(self) -> dict[int, float]:
        """Processor time of each session."""
        return _processor_times(process for (process,) in self._connection.execute(_BACKENDS))

    @contextmanager
    def _watched(self, waits: Counter[str]) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            with psycopg.connect(self._url, autocommit=True, application_name=_METER) as connection:
                while not over.wait(_SAMPLE_INTERVAL_S):
                    waits.update(dict(connection.execute(_WAITS, prepare=True).fetchall()))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _clients() -> Iterator[int]:
    """This process and those that it has started, but for a server."""
    return (process for process, name in processes.family(os.getpid()) if not name.startswith("postgres"))


def _processor_times(found: Iterable[int]) -> dict[int, float]:
    return {process: processes.processor_time(process) for process in found}


def _since(before: dict[int, float], after: dict[int, float]) -> float:
    return sum(time - before.get(process, 0.0) for process, time in after.items())


def sample_elsewhere(work: Work, messages: int) -> Sample:
    """Let `work` do its job on `messages` messages where PostgreSQL has no part in it."""
    begin = time.perf_counter()
    done = work(messages)
    return Sample(done, time.perf_counter() - begin, 0, 0)


def figures(samples: Sequence[Sample]) -> Figures:
    """Return the figures of at least one sample; ticks of processor time are added up over all samples."""
    messages = sum(sample.messages for sample in samples)
    return Figures(
        median(sample.messages / sample.seconds for sample in samples),
        median(sample.commits / sample.messages for sample in samples),
        median(sample.wal_bytes / sample.messages for sample in samples),
        sum(sample.server for sample in samples) / messages * 1e6,
        sum(sample.client for sample in samples) / messages * 1e6,
        _in_words(sum((sample.waits for sample in samples), Counter())),
    )


def _in_words(waits: Counter[str]) -> str:
    """The shares of the five that were seen most often."""
    total = waits.total()
    return ", ".join(f"{event} {count / total:.0%}" for event, count in waits.most_common(5))
