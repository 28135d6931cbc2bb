"""Several senders and readers at once, each in a process of its own, as their users run them.

In one process they would share Python's interpreter lock, which would be measured instead of the queue.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from typing import Any
from uuid import UUID

from servicebroker.api.instance import Instance
from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks.measured_system import text_body
from servicebroker_lab.benchmarks.servicebroker_system import DATABASE, QUEUE, TYPE

_WAITFOR_S = 1.0  # seconds of a reader's WAITFOR
_WARMUP_MESSAGES = 20  # messages that each sender sends, and readers take, before the clock starts
_CHECK_INTERVAL_S = 1.0  # seconds between two looks at whether everybody lives


class Crowd:
    """Processes that are ready to go: a sender for each of `handles`, and `readers` that RECEIVE TOP (1)."""

    def __init__(self, url: str, handles: Sequence[UUID], readers: int, messages: int) -> None:
        context = _context()
        self._all_ready = context.Barrier(len(handles) + readers + 1)
        warm = context.Barrier(len(handles) + readers)
        self._received = context.Value("q", 0)
        self._over = context.Event()
        shares = [len(range(number, messages, len(handles))) for number in range(len(handles))]
        orders: list[tuple[Any, ...]] = [
            *(
                (_send, url, warm, self._all_ready, handle, share)
                for handle, share in zip(handles, shares, strict=True)
            ),
            *((_read, url, bool(handles), warm, self._all_ready, self._received, messages, self._over),) * readers,
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
        while not self._over.wait(_CHECK_INTERVAL_S):
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


def _send(url: str, warm: Any, all_ready: Any, handle: UUID, messages: int) -> None:
    body = text_body().encode()
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        for _ in range(_WARMUP_MESSAGES):
            database.send(handle, TYPE, body)
        warm.wait()
        all_ready.wait()
        for _ in range(messages):
            database.send(handle, TYPE, body)


def _read(url: str, drains: bool, warm: Any, all_ready: Any, received: Any, messages: int, over: Any) -> None:
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        with database.transaction() as transaction:  # prepares the statement, and begins to listen
            transaction.receive(QUEUE, top=1, wait=0.001)
            transaction.connection.rollback()
        warm.wait()
        while drains and database.receive(QUEUE, top=1):
            pass
        all_ready.wait()
        while not over.is_set():
            taken = len(database.receive(QUEUE, top=1, wait=_WAITFOR_S))
            with received.get_lock():
                received.value += taken
                if received.value >= messages:
                    over.set()
