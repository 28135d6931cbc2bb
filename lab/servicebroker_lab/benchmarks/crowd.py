"""Concurrent senders and readers, each in a separate process, as applications run them.

In one process they would share Python's interpreter lock, and the benchmark would measure the lock instead of the
queue.
"""

from __future__ import annotations

import multiprocessing
import time
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
_CHECK_INTERVAL_S = 1.0  # seconds between two checks that no process has failed
_START_POLL_INTERVAL_S = 0.01  # seconds between two checks that all processes are ready


class Crowd:
    """Processes that have started and wait: a sender for each of `handles`, and `readers` that RECEIVE TOP (1)."""

    def __init__(self, url: str, handles: Sequence[UUID], readers: int, messages: int) -> None:
        context = _context()
        self._all_ready = context.Barrier(len(handles) + readers + 1)
        warmed_up = context.Barrier(len(handles) + readers)  # reached when all warm-up messages are sent
        self._received = context.Value("q", 0)
        self._is_done = context.Event()
        counts = [len(range(number, messages, len(handles))) for number in range(len(handles))]
        jobs: list[tuple[Any, ...]] = [
            (_send, url, warmed_up, self._all_ready, handle, count)
            for handle, count in zip(handles, counts, strict=True)
        ]
        reading = (_read, url, bool(handles), warmed_up, self._all_ready, self._received, messages, self._is_done)
        jobs += [reading for _ in range(readers)]
        self._members = [context.Process(target=target, args=arguments, daemon=True) for target, *arguments in jobs]
        for member in self._members:
            member.start()
        while self._all_ready.n_waiting < len(self._members):
            self._check()
            time.sleep(_START_POLL_INTERVAL_S)

    def run(self) -> int:
        """Start the processes, wait until all messages are received, and return their number.

        Raises:
            InstanceError: one of the processes failed.
        """
        self._all_ready.wait()
        while not self._is_done.wait(_CHECK_INTERVAL_S):
            self._check()
        return int(self._received.value)

    def close(self) -> None:
        """Stop the processes, and wait for them."""
        self._is_done.set()
        self._all_ready.abort()  # releases processes that still wait at the barrier
        for member in self._members:
            member.join()

    def _check(self) -> None:
        if any(member.exitcode for member in self._members):
            raise InstanceError("A process of the benchmark has failed.")


def _context() -> ForkServerContext:
    """Return a context whose processes start with all modules imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


def _send(url: str, warmed_up: Any, all_ready: Any, handle: UUID, messages: int) -> None:
    """Send the warm-up messages; then, when all processes are ready, the measured ones."""
    body = text_body().encode()
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        for _ in range(_WARMUP_MESSAGES):
            database.send(handle, TYPE, body)
        warmed_up.wait()
        all_ready.wait()
        for _ in range(messages):
            database.send(handle, TYPE, body)


def _read(
    url: str, takes_warmup: bool, warmed_up: Any, all_ready: Any, received: Any, messages: int, is_done: Any
) -> None:
    """Receive the warm-up messages; then, when all processes are ready, the measured ones until all are received."""
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        with database.transaction() as transaction:  # prepares the statement, and begins to listen
            transaction.receive(QUEUE, top=1, wait=0.001)
            transaction.connection.rollback()
        warmed_up.wait()
        while takes_warmup and database.receive(QUEUE, top=1):
            pass
        all_ready.wait()
        while not is_done.is_set():
            count = len(database.receive(QUEUE, top=1, wait=_WAITFOR_S))
            with received.get_lock():
                received.value += count
                if received.value >= messages:
                    is_done.set()
