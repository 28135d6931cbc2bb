"""Several senders and readers at once, each in a process of its own, as their users run them.

In one process they would share Python's interpreter lock, which would be measured instead of the queue.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from typing import Any
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.benchmarks.ours import DATABASE, QUEUE, TYPE
from servicebroker.benchmarks.system import text_body
from servicebroker.model.errors import InstanceError

_WAIT = 1.0  # seconds of a reader's WAITFOR
_PATIENCE = 1.0  # seconds between two looks at whether everybody lives


class Crowd:
    """Processes that are ready to go: a sender for each of `handles`, and `readers` that RECEIVE TOP (1)."""

    def __init__(self, url: str, handles: Sequence[UUID], readers: int, messages: int) -> None:
        context = _context()
        self._all_ready = context.Barrier(len(handles) + readers + 1)
        self._received = context.Value("q", 0)
        self._over = context.Event()
        shares = [len(range(number, messages, len(handles))) for number in range(len(handles))]
        orders: list[tuple[Any, ...]] = [
            *((_send, url, self._all_ready, handle, share) for handle, share in zip(handles, shares, strict=True)),
            *((_read, url, self._all_ready, self._received, messages, self._over) for _ in range(readers)),
        ]
        self._members = [context.Process(target=job, args=arguments, daemon=True) for job, *arguments in orders]
        for member in self._members:
            member.start()
        while self._all_ready.n_waiting < len(self._members):
            self._check()
            self._over.wait(0.01)

    def run(self) -> int:
        """Let them begin, and wait until everything is received: how many messages that was.

        Raises:
            InstanceError: one of them failed.
        """
        self._all_ready.wait()
        while not self._over.wait(_PATIENCE):
            self._check()
        return int(self._received.value)

    def close(self) -> None:
        """Wait until they have ended."""
        self._over.set()
        self._all_ready.abort()
        for member in self._members:
            member.join()

    def _check(self) -> None:
        if any(member.exitcode for member in self._members):
            raise InstanceError("A benchmark is broken: a process of it has failed.")


def _context() -> ForkServerContext:
    """Processes that begin with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


def _send(url: str, all_ready: Any, handle: UUID, messages: int) -> None:
    body = text_body().encode()
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        _warm_up(database, handle)
        all_ready.wait()
        for _ in range(messages):
            database.send(handle, TYPE, body)


def _read(url: str, all_ready: Any, received: Any, messages: int, over: Any) -> None:
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        _warm_up(database)
        all_ready.wait()
        while not over.is_set():
            taken = len(database.receive(QUEUE, top=1, wait=_WAIT))
            with received.get_lock():
                received.value += taken
                if received.value >= messages:
                    over.set()


def _warm_up(database: Database, handle: UUID | None = None) -> None:
    """Prepare the statements that will be measured, in a transaction that is rolled back, and begin to listen."""
    with database.transaction() as transaction:
        if handle is not None:
            transaction.send(handle, TYPE, b"")
            transaction.send(handle, TYPE, b"")
        else:
            transaction.receive(QUEUE, top=1, wait=0.001)
        transaction.connection.rollback()
