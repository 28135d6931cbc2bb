"""A cache of page queries: all viewers of a page share one query.

While the database is slow or down, viewers see the last snapshot, with its age and the reason.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.dashboard.readers import Reader, ReaderPool
from servicebroker.engine.diagnosis.judgement import judge_schema
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import is_url
from servicebroker.store.migrations import this_version

FRESH_S = 0.8  # a younger snapshot is shown without a query
SLOW_S = 0.1  # a slower query runs in the background, while the last snapshot is shown
MIN_IDLE_FACTOR = 5  # the pause after a slow query, as a multiple of its duration
MAX_AGE_S = 15.0  # a snapshot older than this is not shown: the viewer waits for a new query
RETRY_DELAY_S = 1.0  # the pause after a failed query
MAX_PAGES = 50  # the most pages in the cache
ACTION_LOCK_TIMEOUT_MS, ACTION_STATEMENT_TIMEOUT_MS = 5_000, 60_000  # an action holds one of the 40 threads meanwhile
RATE_WINDOW_S = 10.0  # a rate is the mean over this time

T = TypeVar("T")
ReaderQuery = Callable[[Reader], Any]
CounterName = tuple[str, ...]


class Snapshot(NamedTuple):
    """The result of a page's query (`facts`), its time, and why it is outdated (`trouble`).

    `facts` is None if no query has succeeded yet. `trouble` is '' for a current result.
    """

    facts: Any
    at: datetime
    trouble: str


class _CacheEntry:
    """The last snapshot of one page. The thread that runs the query holds `lock`, and other viewers wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.facts: Any = None
        self.at = datetime.now(UTC)
        self.read_at = -RETRY_DELAY_S
        self.duration_s = 0.0
        self.trouble = ""
        self.retry_at = 0.0  # the time for a new query, after one that timed out


class CachedSource:
    """A source of page data, with a cache entry for each page.

    Attributes:
        name: the name on the pages, without a password.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._version = 0  # increased by `invalidate`
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()
        self._down_since = -RETRY_DELAY_S
        self._trouble = ""

    def snapshot(self, page: Hashable, query: Callable[[], Any], fresh: float) -> Snapshot:
        """Return the last result of `query` if it is younger than `fresh` seconds, else run the query.

        A slow query runs in the background, and the last result is returned meanwhile. If the source does not answer,
        the last result is returned with its `trouble`.

        Raises:
            BrokerError: the object of the page does not exist.
            psycopg.Error: the role of the URL may not read the object.
        """
        entry = self._entry(page)
        age_s = time.monotonic() - entry.read_at
        max_age_s = max(MAX_AGE_S, 2 * MIN_IDLE_FACTOR * entry.duration_s)
        if entry.facts is not None and entry.duration_s > SLOW_S and age_s < max_age_s:
            if age_s > max(fresh, MIN_IDLE_FACTOR * entry.duration_s) and not entry.lock.locked():
                threading.Thread(target=self._read_in_background, args=(entry, query, fresh), daemon=True).start()
            return Snapshot(entry.facts, entry.at, entry.trouble)
        return self._read_now(entry, query, fresh)

    def _read_in_background(self, entry: _CacheEntry, query: Callable[[], Any], fresh: float) -> None:
        """Run the query in a thread. After an error, drop the snapshot, so that the next viewer's query raises it."""
        try:
            self._read_now(entry, query, fresh)
        except Exception:
            entry.facts = None

    def _read_now(self, entry: _CacheEntry, query: Callable[[], Any], fresh: float) -> Snapshot:
        with entry.lock:
            if time.monotonic() - entry.read_at < fresh and entry.facts is not None:
                return Snapshot(entry.facts, entry.at, "")
            if time.monotonic() - self._down_since < RETRY_DELAY_S:
                entry.trouble = self._trouble
            elif time.monotonic() >= entry.retry_at:
                self._query(entry, query)
            return Snapshot(entry.facts, entry.at, entry.trouble)

    def _query(self, entry: _CacheEntry, query: Callable[[], Any]) -> None:
        """Run the query, and store the result or the trouble.

        If an action has invalidated the cache in the meantime, the result is stored as outdated.
        """
        started_at, version = time.monotonic(), self._version
        try:
            facts = query()
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as problem:
            entry.trouble = timeout_reason(problem)  # only this page waits; other queries may succeed
            entry.retry_at = time.monotonic() + max(RETRY_DELAY_S, MIN_IDLE_FACTOR * (time.monotonic() - started_at))
            return
        except (InstanceError, psycopg.OperationalError, psycopg.InterfaceError, OSError) as problem:
            self._down_since, self._trouble = time.monotonic(), sentence(problem)
            entry.trouble = self._trouble
            return
        with self._lock:
            entry.facts, entry.at, entry.trouble = facts, datetime.now(UTC), ""
            if self._version == version:
                entry.read_at, entry.duration_s = time.monotonic(), time.monotonic() - started_at

    def invalidate(self) -> None:
        """Mark all snapshots as outdated, after an action."""
        with self._lock:
            self._version += 1
            for entry in self._entries.values():
                entry.read_at, entry.duration_s, entry.retry_at = -RETRY_DELAY_S, 0.0, 0.0

    def _entry(self, page: Hashable) -> _CacheEntry:
        with self._lock:
            entry = self._entries.setdefault(page, _CacheEntry())
            self._entries.move_to_end(page)
            if len(self._entries) > MAX_PAGES:
                self._entries.popitem(last=False)
            return entry


class ObservedInstance(CachedSource):
    """An instance on the pages, a data folder or URL, with its cache. It is opened at the first query."""

    def __init__(self, target: str) -> None:
        super().__init__(shown_name(target))
        self.target = target
        self.rates_in, self.rates_out = Rates(), Rates()
        self._readers = ReaderPool(target)
        self._instance: Instance | None = None
        self._opening = threading.Lock()

    def read(self, page: Hashable, query: ReaderQuery) -> Snapshot:
        """Return the snapshot of a query on the instance. Raises the errors of `snapshot`."""

        def read() -> Any:
            with self._readers.reader() as reader:
                return query(reader)

        return self.snapshot(page, read, FRESH_S)

    def read_anew(self, query: Callable[[Reader], T]) -> T:
        """Run a query whose result is too large for the cache. Raises the errors of `query` and of `ReaderPool`."""
        with self._readers.reader() as reader:
            return query(reader)

    def instance(self) -> Instance:
        """Return the instance, open for actions.

        Raises:
            InstanceError: there is no such instance, it cannot be reached, or its schema is of another version.
        """
        with self._opening:
            if self._instance is None:
                with self._readers.reader() as reader:
                    inspected = reader.instance.inspected
                if inspected is None:
                    raise InstanceError("The version of the schema could not be read: nothing was done. Try again.")
                for finding in judge_schema(inspected.schema, this_version()):
                    raise InstanceError(
                        "The dashboard can only show this instance, because of the number of its schema. "
                        f"{finding.problem} {finding.advice}"
                    )
                keys = None if is_url(self.target) else Path(self.target) / "keys"
                self._instance = open_instance(_with_deadlines(self._readers.url()), upkeep=None, keys=keys)
            return self._instance

    def close(self) -> None:
        """Close the instance; the next query opens it again."""
        with self._opening:
            if self._instance is not None:
                self._instance.close()
                self._instance = None
        self._readers.close()  # last: an embedded server may end with them


def _with_deadlines(url: str) -> str:
    """Return the URL with deadlines for the statements of actions, unless it sets its own."""
    options = f"-c lock_timeout={ACTION_LOCK_TIMEOUT_MS} -c statement_timeout={ACTION_STATEMENT_TIMEOUT_MS}"
    return make_conninfo(url, options=f"{options} {conninfo_to_dict(url).get('options') or ''}".rstrip())


class Rates:
    """Computes rates per second from counters that only rise, over the last `RATE_WINDOW_S`."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[CounterName, float]]] = deque()
        self._lock = threading.Lock()

    def update(self, values: Mapping[CounterName, float]) -> dict[CounterName, float]:
        """Add the current values of the counters. Return their rates; 0 for a new counter."""
        now = time.monotonic()
        with self._lock:
            self._samples.append((now, values))
            while len(self._samples) > 2 and now - self._samples[1][0] > RATE_WINDOW_S:
                self._samples.popleft()
            then, first = self._samples[0]
        elapsed_s = now - then
        return {
            name: max(0.0, value - first.get(name, value)) / elapsed_s if elapsed_s else 0.0
            for name, value in values.items()
        }


def shown_name(target: str) -> str:
    """Return the display name of a data folder or URL; for a URL its database and server, without the password."""
    if not is_url(target):
        return target
    try:
        parts = conninfo_to_dict(target)
    except psycopg.Error:
        return "a PostgreSQL URL that cannot be read"
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{parts.get('dbname') or parts.get('user') or 'postgres'} at {host}{port}"


def timeout_reason(problem: psycopg.Error) -> str:
    """Return in words why a query has timed out: a lock, or no answer."""
    if isinstance(problem, psycopg.errors.LockNotAvailable):
        return "another session holds a lock that this page needs: see Overview"
    return "PostgreSQL did not answer this page in time"


def sentence(problem: BaseException) -> str:
    """Return the text of an error on one line, with passwords of URLs replaced."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:...@", text)
