"""Measure the time of work, its processor time, its commits and its write-ahead log."""

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

Work = Callable[[int], int]  # handles this number of messages, and returns the number that it has handled

# The positions of the WAL and of transaction ids, which are exact. The statistics views lag.
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
_SAMPLE_INTERVAL_S = 0.01  # the time between two samples of the sessions' wait events


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        messages: the number of messages.
        seconds: the elapsed time.
        commits: the number of transactions that wrote something.
        wal_bytes: bytes of write-ahead log.
        server: seconds of processor time of the server's sessions; 0 without /proc.
        client: seconds of processor time of this process and its children; 0 without /proc.
        waits: the number of samples in which an active session had a wait event, by event; empty if not sampled.
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
    """The figures of several samples: medians, and means of processor time.

    Attributes:
        per_second: messages per second.
        commits: transactions that wrote something, per message.
        wal_bytes: bytes of write-ahead log, per message.
        server, client: microseconds of processor time, per message; 0 without /proc.
        waits: the most frequent wait events of the server's sessions, as text; "" if not sampled.
    """

    per_second: float
    commits: float
    wal_bytes: float
    server: float = 0.0
    client: float = 0.0
    waits: str = ""


class Meter:
    """Measures work over a connection of its own: the server's sessions, and this process with its children."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True, application_name=_METER)

    def sample(self, work: Work, messages: int, *, samples_waits: bool = False) -> Sample:
        """Run `work` on a number of messages, and measure it. `samples_waits`: also sample wait events.

        Raises:
            InstanceError: `work` has handled another number of messages.
        """
        gc.collect()
        wal, xid = self._position()
        server, client = self._sessions(), _processor_times(_clients())
        waits: Counter[str] = Counter()
        begin = time.perf_counter()
        if samples_waits:
            with self._watch_waits(waits):
                done_count = work(messages)
        else:
            done_count = work(messages)
        seconds = time.perf_counter() - begin
        cpu_seconds = _time_since(server, self._sessions()), _time_since(client, _processor_times(_clients()))
        later_wal, later_xid = self._position()
        if done_count != messages:
            raise InstanceError(
                f"A benchmark is broken: it handled {done_count:,} messages where {messages:,} were due."
            )
        return Sample(messages, seconds, later_xid - xid, later_wal - wal, *cpu_seconds, waits)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _position(self) -> tuple[int, int]:
        row = self._connection.execute(_POSITION).fetchone()
        assert row is not None
        return row[0], row[1]

    def _sessions(self) -> dict[int, float]:
        """Return the processor time of each session."""
        return _processor_times(pid for (pid,) in self._connection.execute(_BACKENDS))

    @contextmanager
    def _watch_waits(self, waits: Counter[str]) -> Iterator[None]:
        stop_requested = threading.Event()

        def watch() -> None:
            with psycopg.connect(self._url, autocommit=True, application_name=_METER) as connection:
                while not stop_requested.wait(_SAMPLE_INTERVAL_S):
                    waits.update(dict(connection.execute(_WAITS, prepare=True).fetchall()))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop_requested.set()
            watcher.join()


def _clients() -> Iterator[int]:
    """Yield this process and its children, except PostgreSQL servers."""
    return (pid for pid, name in processes.family(os.getpid()) if not name.startswith("postgres"))


def _processor_times(pids: Iterable[int]) -> dict[int, float]:
    return {pid: processes.processor_time(pid) for pid in pids}


def _time_since(before: dict[int, float], after: dict[int, float]) -> float:
    """Return the processor time between two results of `_processor_times`."""
    return sum(time - before.get(pid, 0.0) for pid, time in after.items())


def sample_without_postgresql(work: Work, messages: int) -> Sample:
    """Run `work` of a system without PostgreSQL on a number of messages, and measure it."""
    begin = time.perf_counter()
    done_count = work(messages)
    return Sample(done_count, time.perf_counter() - begin, 0, 0)


def figures(samples: Sequence[Sample]) -> Figures:
    """Return the figures of at least one sample."""
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
    """Return the five most frequent wait events, with their fractions."""
    total = waits.total()
    return ", ".join(f"{event} {count / total:.0%}" for event, count in waits.most_common(5))
