"""The cost of a durable commit on this disk, which bounds every queue that commits each message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

from servicebroker_lab.benchmarks.measured_system import Implementation, text_body
from servicebroker_lab.benchmarks.scenarios import BARE
from servicebroker_lab.benchmarks.servicebroker_system import READER_COUNT


class BareCommits:
    """psycopg inserts a row as long as a message, prepared and in autocommit mode, and does nothing else."""

    name = BARE

    def __init__(self, url: str) -> None:
        self._connections = [psycopg.connect(url, autocommit=True) for _ in range(READER_COUNT)]
        self.version = ".".join(map(str, divmod(self._connections[0].info.server_version, 10_000)))
        self._body = text_body().encode()

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return implementations that commit each message, for the scenarios compared with them."""
        single_connection = Implementation(
            "insert", "a bare commit: the bound of one connection", self._clear, self._insert
        )
        several = Implementation(
            f"insert, {READER_COUNT} connections",
            "bare commits: the bound of so many",
            self._clear,
            self._insert_in_threads,
        )
        single = ("send-one", "receive-one", "worker", "dialog-begin", "dialog-answer", "dialog-end", "request-one")
        return {**{name: [single_connection] for name in single}, "workers": [several], "request": [several]}.get(
            scenario, []
        )

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()

    def _clear(self, messages: int) -> None:
        self._connections[0].execute("create table if not exists bench_bare (body bytea)")
        self._connections[0].execute("truncate bench_bare")
        self._insert_in_threads(20 * READER_COUNT)

    def _insert(self, messages: int, number: int = 0) -> int:
        sql, connection = "insert into bench_bare values (%b)", self._connections[number]
        return sum(connection.execute(sql, (self._body,), prepare=True).rowcount for _ in range(messages))

    def _insert_in_threads(self, messages: int) -> int:
        shares = [len(range(number, messages, READER_COUNT)) for number in range(READER_COUNT)]
        with ThreadPoolExecutor(READER_COUNT) as threads:
            return sum(threads.map(self._insert, shares, range(READER_COUNT)))
