"""Read-only connections for the queries of pages, with doctor's deadlines. They never upgrade the schema."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servicebroker.cli.diagnosed_instance import DiagnosedInstance
from servicebroker.cli.examination import find_users_of_disk, judge_access
from servicebroker.cli.existing_instance import check_exists
from servicebroker.engine.diagnosis.findings import Finding
from servicebroker.store.connection import is_url
from servicebroker.store.embedded import EmbeddedServer

PROGRAM = "servicebroker dashboard"  # application_name of the sessions
MAX_IDLE = 4  # connections kept for the next pages
LIFETIME_S = 60.0  # the life of a connection; a new one checks schema, rights, timeouts and the server's clock


class Reader:
    """A read-only connection of the pages.

    Attributes:
        instance: the instance, open for queries.
        access: doctor's findings about access to the server, from the time when this connection was opened.
        disk_usage: the largest users of the disk at that time.
    """

    def __init__(self, url: str) -> None:
        self.instance = DiagnosedInstance(url, PROGRAM, is_thorough=False)
        self.access: list[Finding] = judge_access(self.instance)
        self.disk_usage = find_users_of_disk(self.instance)
        self._failed_at_opening = list(self.instance.failed_queries)
        self._expires_at = time.monotonic() + LIFETIME_S

    @property
    def is_usable(self) -> bool:
        """True if the connection is open and not too old."""
        return not self.instance.is_lost and time.monotonic() < self._expires_at

    def begin(self) -> DiagnosedInstance:
        """Begin the query of a page: drop the failed queries of earlier pages, and return the instance."""
        self.instance.failed_queries = list(self._failed_at_opening)
        return self.instance


class ReaderPool:
    """A pool of readers for one instance, a data folder or URL. It opens connections when they are needed."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._idle: list[Reader] = []
        self._server: EmbeddedServer | None = None

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Lend a reader for the block.

        Raises:
            InstanceError: there is no such instance, or it cannot be reached.
        """
        reader = self._take()
        try:
            yield reader
        finally:
            self._give_back(reader)

    def close(self) -> None:
        """Close all connections, and leave an embedded server; the next query opens them again."""
        with self._lock:
            idle, self._idle = self._idle, []
            server, self._server = self._server, None
        for reader in idle:
            reader.instance.close()
        if server is not None:
            server.close()

    def _take(self) -> Reader:
        while True:
            with self._lock:
                reader = self._idle.pop() if self._idle else None
            if reader is None:
                return Reader(self.url())
            if reader.is_usable:
                return reader
            reader.instance.close()

    def _give_back(self, reader: Reader) -> None:
        with self._lock:
            is_kept = reader.is_usable and len(self._idle) < MAX_IDLE
            if is_kept:
                self._idle.append(reader)
        if not is_kept:
            reader.instance.close()

    def url(self) -> str:
        """Return the URL of the server. Start an embedded one unless it runs.

        Raises:
            InstanceError: there is no such instance.
        """
        check_exists(self._target)
        if is_url(self._target):
            return self._target
        with self._lock:
            if self._server is None:
                self._server = EmbeddedServer.start(Path(self._target))
            return self._server.url
