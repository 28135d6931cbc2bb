"""Alternatives that a user might choose, each through its own public interface as its documentation shows it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks.measured_system import BATCH_MESSAGES, LOOP_SENDS, Implementation, batches, text_body

if TYPE_CHECKING:
    from procrastinate import App

_PSQL_ONLY = re.compile(r"^\\.*$", re.MULTILINE)
_EXTENSION_ONLY = re.compile(
    r"select\s+(pg_catalog\.)?pg_extension_config_dump\s*\(.*?\)\s*;", re.IGNORECASE | re.DOTALL
)


class Pgmq:
    """pgmq's SQL functions, called through psycopg on one connection in autocommit mode, prepared."""

    name = "pgmq"

    def __init__(self, url: str, sql_file: Path) -> None:
        script = sql_file.read_text()
        self.version = pgmq_version(sql_file.name, script)
        self._connection = psycopg.connect(url, autocommit=True)
        try:
            with self._connection.transaction():
                self._connection.execute("create schema if not exists pgmq")
                self._connection.execute(plain_sql(script).encode())
            self._connection.execute("select pgmq.create('bench')")
        except psycopg.Error as problem:
            self._connection.close()
            raise InstanceError(f"'{sql_file}' is not an SQL file of a pgmq release: {problem}") from None
        self._holder = psycopg.connect(url)
        self._body = text_body()

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return the implementations of a scenario."""
        return {
            "send-one": [Implementation("pgmq.send", "psycopg, prepared", self.begin, self._send)],
            "send-batch": [
                Implementation("pgmq.send_batch", f"{BATCH_MESSAGES:,} a batch", self.begin, self._send_batch)
            ],
            "send-loop": [Implementation("pgmq.send", f"{LOOP_SENDS} a transaction", self.begin, self._send_loop)],
            "receive-one": [Implementation("pgmq.pop", "psycopg, prepared", self.fill_groups, self._pop)],
            "receive-loop": [
                Implementation("pgmq.pop", f"{LOOP_SENDS} a transaction", self.fill_groups, self._pop_loop)
            ],
            "receive-batch": [
                Implementation(
                    f"pgmq.read({BATCH_MESSAGES}) + delete",
                    "both in one transaction",
                    self.fill_groups,
                    self._read_and_delete,
                )
            ],
            "dialog": [
                Implementation("pgmq.send, pop, send, pop", "psycopg, prepared", self.begin, self._ask_and_answer)
            ],
            "dialog-groups-answer": [
                Implementation("pgmq.send, pop, send, pop", "psycopg, prepared", self.begin, self._ask_and_answer)
            ],
            "storage-held-read": [self._read_beside_transaction("select 1")],
            "storage-held-write": [self._read_beside_transaction("select pg_current_xact_id()")],
        }.get(scenario, [])

    def close(self) -> None:
        """Close the connections."""
        self._holder.close()
        self._connection.close()

    def _read_beside_transaction(self, held_by: str) -> Implementation:
        """Return the way to read ten at a time, after 100 times as many were deleted that vacuum may not remove."""

        def prepare(messages: int) -> None:
            self.fill_groups(101 * messages)
            self._holder.execute("set transaction isolation level repeatable read")
            self._holder.execute(held_by.encode())
            self._connection.execute(
                "delete from pgmq.q_bench where msg_id in (select msg_id from pgmq.q_bench order by msg_id limit %s)",
                (100 * messages,),
            )

        def work(messages: int) -> int:
            try:
                return self._read_and_delete(messages, 10)
            finally:
                self._holder.rollback()

        return Implementation("pgmq.read(10) + delete", "both in one transaction", prepare, work)

    def begin(self, messages: int) -> None:
        """Empty the queue."""
        self._connection.execute("select pgmq.purge_queue('bench')")
        for work in (self._send, self._pop):
            work(20)

    def fill_groups(self, messages: int) -> None:
        """Put a number of messages into the queue."""
        self.begin(messages)
        self._send_batch(messages)

    def _fetch_all(self, sql: str, *parameters: object) -> list[Any]:
        return self._connection.execute(sql.encode(), parameters, prepare=True).fetchall()

    def _send(self, messages: int) -> int:
        return sum(
            len(self._fetch_all("select * from pgmq.send('bench', %s::jsonb)", json.dumps(self._body)))
            for _ in range(messages)
        )

    def _send_loop(self, messages: int) -> int:
        sent = 0
        for size in batches(messages, LOOP_SENDS):
            with self._connection.transaction():
                sent += self._send(size)
        return sent

    def _send_batch(self, messages: int) -> int:
        sent = 0
        for size in batches(messages):
            bodies = [json.dumps(self._body) for _ in range(size)]
            sent += len(self._fetch_all("select * from pgmq.send_batch('bench', %s::jsonb[])", bodies))
        return sent

    def _pop(self, messages: int) -> int:
        return sum(len(self._fetch_all("select * from pgmq.pop('bench')")) for _ in range(messages))

    def _ask_and_answer(self, messages: int) -> int:
        verbs = (self._send, self._pop, self._send, self._pop)
        return sum(all(verb(1) for verb in verbs) for _ in range(messages))

    def _pop_loop(self, messages: int) -> int:
        received = 0
        for size in batches(messages, LOOP_SENDS):
            with self._connection.transaction():
                received += self._pop(size)
        return received

    def _read_and_delete(self, messages: int, portion: int = BATCH_MESSAGES) -> int:
        received = 0
        while True:
            with self._connection.transaction():
                rows = self._fetch_all("select * from pgmq.read('bench', 30, %s)", portion)
                deleted_rows = self._fetch_all(
                    "select * from pgmq.delete('bench', %s::bigint[])", [row[0] for row in rows]
                )
            if not rows:
                return received
            received += len(deleted_rows)


class PgQueuer:
    """pgqueuer's synchronous queries on one psycopg connection; installed with its default, durable tables."""

    name = "pgqueuer"

    def __init__(self, url: str) -> None:
        from pgqueuer.db import SyncPsycopgDriver
        from pgqueuer.queries import SyncQueries

        self.version = version("pgqueuer")
        asyncio.run(_install_pgqueuer(url))
        self._connection = psycopg.connect(url, autocommit=True)
        self._queries = SyncQueries(SyncPsycopgDriver(self._connection))
        self._body = text_body().encode()

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return the implementations of enqueueing."""
        settings = "SyncQueries, psycopg"
        return {
            "send-one": [Implementation("enqueue", settings, self._clear, self._enqueue)],
            "send-batch": [
                Implementation(
                    "enqueue(lists)", f"{settings}, {BATCH_MESSAGES:,} a batch", self._clear, self._enqueue_lists
                )
            ],
        }.get(scenario, [])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _clear(self, messages: int) -> None:
        self._enqueue(20)
        self._connection.execute("truncate pgqueuer, pgqueuer_log")

    def _enqueue(self, messages: int) -> int:
        return sum(len(self._queries.enqueue("bench", self._body)) for _ in range(messages))

    def _enqueue_lists(self, messages: int) -> int:
        return sum(
            len(self._queries.enqueue(["bench"] * size, [self._body] * size, [0] * size)) for size in batches(messages)
        )


async def _install_pgqueuer(url: str) -> None:
    from pgqueuer.queries import Queries

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await Queries.from_psycopg_connection(connection).install()


class Procrastinate:
    """procrastinate's App, in the synchronous form for defer and the asynchronous one for its worker."""

    name = "procrastinate"

    def __init__(self, url: str) -> None:
        from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

        self.version = version("procrastinate")
        self._app = App(connector=SyncPsycopgConnector(conninfo=url))
        self._app.open()
        self._app.schema_manager.apply_schema()
        self._task: Any = self._app.task(name="bench")(_no_operation)
        self._connection = psycopg.connect(url, autocommit=True)
        self._worker_app = App(connector=PsycopgConnector(conninfo=url))
        self._worker_app.task(name="bench")(_no_operation)
        self._loop = asyncio.Runner()
        self._loop.run(_open(self._worker_app))
        self._body = text_body()

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return the ways to defer and to work, with default settings and with the fastest ones."""
        own = "on an autocommit connection of one's own"
        return {
            "send-one": [
                Implementation("defer", "defaults", self._clear, self._defer),
                Implementation("defer, own connection", own, self._clear, self._defer_on_connection),
            ],
            "send-batch": [
                Implementation("batch_defer", f"{BATCH_MESSAGES:,} a batch, {own}", self._clear, self._batch_defer)
            ],
            "worker": [self._worker(1)],
            "activation": [self._worker(1)],
            "workers": [self._worker(10)],
            "dialog-job": [Implementation("defer, then worker", own, self._clear, self._do_jobs)],
            "dialog-groups": [Implementation("defer, then worker", own, self._clear, self._do_jobs)],
        }.get(scenario, [])

    def close(self) -> None:
        """Close the pools and the connection."""
        self._loop.run(self._worker_app.close_async())
        self._loop.close()
        self._connection.close()
        self._app.close()

    def _worker(self, concurrency: int) -> Implementation:
        settings = "async task, delete_jobs=always, listen_notify=False, its own pool of 4 connections"
        work = partial(self._work, concurrency=concurrency)
        return Implementation(f"worker, concurrency={concurrency}", settings, self._fill, work)

    def _work(self, messages: int, concurrency: int = 1) -> int:
        _done.clear()
        self._loop.run(
            self._worker_app.run_worker_async(
                concurrency=concurrency,
                wait=False,
                delete_jobs="always",
                listen_notify=False,
                install_signal_handlers=False,
            )
        )
        return len(_done)

    def _do_jobs(self, messages: int) -> int:
        return min(self._defer_on_connection(messages), self._work(messages))

    def _clear(self, messages: int) -> None:
        self._defer(10)
        self._defer_on_connection(10)
        self._connection.execute("truncate procrastinate_jobs cascade")

    def _fill(self, messages: int) -> None:
        self._clear(messages)
        self._batch_defer(messages)

    def _defer(self, messages: int) -> int:
        return sum(self._task.defer(body=self._body) > 0 for _ in range(messages))

    def _defer_on_connection(self, messages: int) -> int:
        task = self._task
        return sum(task.configure(connection=self._connection).defer(body=self._body) > 0 for _ in range(messages))

    def _batch_defer(self, messages: int) -> int:
        deferrer = self._task.configure(connection=self._connection)
        return sum(len(deferrer.batch_defer(*[{"body": self._body}] * size)) for size in batches(messages))


_done: list[None] = []


async def _open(app: App) -> None:
    await app.open_async()


async def _no_operation(body: str) -> None:
    _done.append(None)


def plain_sql(script: str) -> str:
    """pgmq's SQL without what only psql or CREATE EXTENSION understands."""
    return _EXTENSION_ONLY.sub("", _PSQL_ONLY.sub("", script))


def pgmq_version(file_name: str, script: str) -> str:
    """Return the release, if the file's name has it, and a fingerprint, since the SQL does not name its release."""
    named = re.search(r"\d+\.\d+\.\d+", file_name)
    fingerprint = f"sha256 {hashlib.sha256(script.encode()).hexdigest()[:12]}"
    return f"{named[0]} ({fingerprint})" if named else f"{file_name}, {fingerprint}"
