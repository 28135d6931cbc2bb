"""A process beside this one: who sends does not share the interpreter lock of who reads, as among their users."""

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
    """Return the number of senders for a batch size: Microsoft's published figure is of three."""
    return 16 if batch == 1 else 4


class SenderProcess:
    """Does what `job` gives to do: it is entered once, with `arguments`, in the process, and called for each order.

    Nobody waits for its start: the first order does, which should be one that is not measured.
    """

    def __init__(self, job: Job, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, job, arguments), daemon=True)
        self._process.start()
        there.close()
        self.answer: Any = None  # the last result of the job

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid or 0

    def during(self, work: Callable[[], T], *order: Any) -> T:
        """Return the result of `work`, while the job is called with that order, and after it.

        Raises:
            InstanceError: the job has failed; what it has raised, where that is one.
        """
        self._pipe.send(order)
        try:
            done = work()
        except InstanceError:
            if self._pipe.poll():  # the reader waits in vain for messages that the job did not send
                self._wait()
            raise
        self._wait()
        return done

    def close(self) -> None:
        """End the process when it has done what it was told."""
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
    """Return the result of `work`, while each of them is called with its order."""
    for aside, order in orders:
        work = partial(aside.during, work, *order)
    return work()


def shares(messages: int, many: int) -> list[int]:
    """Divide messages among `many` senders."""
    return [len(range(number, messages, many)) for number in range(many)]


def _work(pipe: Connection[Any, Any], job: Job, arguments: tuple[Any, ...]) -> None:
    with job(*arguments) as do:
        while True:
            try:
                order = pipe.recv()
            except (EOFError, ConnectionResetError):  # closed, with an answer unread or without
                return
            try:
                pipe.send(do(*order))
            except InstanceError as problem:
                pipe.send(InstanceError(str(problem)))
                return
