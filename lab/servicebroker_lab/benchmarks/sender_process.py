"""A process for senders or readers, so that these do not share one interpreter lock."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

from servicebroker.model.errors import InstanceError

T = TypeVar("T")
Job: TypeAlias = Callable[..., AbstractContextManager[Callable[..., Any]]]


def senders(batch: int) -> int:
    """Return the number of senders for a batch size."""
    return 16 if batch == 1 else 4


class SenderProcess:
    """Runs a job in another process.

    `job` is a context manager that is entered once in the process, with `arguments`. Its value is a function that is
    called for each order. The constructor does not wait for the process: the first order does, so do not measure it.
    """

    def __init__(self, job: Job, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_work, args=(child_end, job, arguments), daemon=True)
        self._process.start()
        child_end.close()
        self.answer: Any = None  # the last result of the job

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid or 0

    def during(self, work: Callable[[], T], *order: Any) -> T:
        """Run `work` in this process while the job runs with an order. Returns the result of `work`, after both ended.

        Raises:
            InstanceError: the job has failed.
        """
        self._pipe.send(order)
        try:
            done = work()
        except InstanceError:
            if self._pipe.poll():  # the cause may be the job, whose error is more useful
                self._wait()
            raise
        self._wait()
        return done

    def close(self) -> None:
        """End the process after its last order."""
        self._pipe.close()
        self._process.join()

    def _wait(self) -> None:
        try:
            self.answer = self._pipe.recv()
        except EOFError:
            raise InstanceError("A benchmark is broken: a process of it has failed.") from None
        if isinstance(self.answer, InstanceError):
            raise self.answer


def all_during(work: Callable[[], T], orders: Iterable[tuple[SenderProcess, tuple[Any, ...]]]) -> T:
    """Run `work` in this process while each of the others runs its order. Returns the result of `work`."""
    for process, order in orders:
        work = partial(process.during, work, *order)
    return work()


def shares(messages: int, many: int) -> list[int]:
    """Divide a number of messages among `many` senders."""
    return [len(range(number, messages, many)) for number in range(many)]


def _work(pipe: Connection[Any, Any], job: Job, arguments: tuple[Any, ...]) -> None:
    with job(*arguments) as do:
        while True:
            try:
                order = pipe.recv()
            except (EOFError, ConnectionResetError):  # the other end was closed
                return
            try:
                pipe.send(do(*order))
            except InstanceError as problem:
                pipe.send(InstanceError(str(problem)))
                return
