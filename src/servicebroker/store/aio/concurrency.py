"""What the asyncio form waits with, and how its tasks are cancelled.

The rule: a statement that PostgreSQL has completed counts. Its caller gets the result, and the cancellation that came
meanwhile is raised at the task's next await; otherwise messages that a RECEIVE has taken would be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from servicebroker.store.concurrency import RESTART_PAUSE_S, is_interrupt

T = TypeVar("T")
P = ParamSpec("P")

_PATIENCE = 5.0  # seconds that work which must be finished goes on after a cancellation

IS_ASYNC = True  # whether functions that are given here are awaited

Lock = asyncio.Lock
sleep = asyncio.sleep


class Event:
    """An asyncio event that is waited for at most so many seconds, as threading.Event is."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set, self.clear, self.is_set = self._event.set, self._event.clear, self._event.is_set

    async def wait(self, timeout: float) -> bool:
        """Whether it was set within `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        return self._event.is_set()


class StopDetector:
    """Tells a stop by the owner of a task from every other way in which its work ends. Make it before the work.

    The owner cancels the task, closes its coroutine or interrupts the program. A CancelledError that nobody asked this
    task for comes from the work itself, as when it awaits a task of its own that was cancelled.

    Args:
        exits: an exit of the main thread counts as a stop, too: the owner has no other way to end the work.
    """

    def __init__(self, *, exits: bool = False) -> None:
        self._exits = exits
        self._process = os.getpid()
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    def is_stop(self, problem: BaseException) -> bool:
        """Whether the owner has ended the work; also in a forked child, which has nothing to go on with."""
        if os.getpid() != self._process:
            return True
        if isinstance(problem, Exception):
            return False
        is_cancelled = self._task is not None and self._task.cancelling() > self._before
        return is_cancelled or not _is_current(self._task) or is_interrupt(problem, exits=self._exits)


def _is_current(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


class _BackgroundTask(asyncio.Task[None]):
    """A task that its own work cannot cancel: the call that tries it ends, and nothing else."""

    def cancel(self, msg: Any | None = None) -> bool:
        if _is_current(self):
            raise asyncio.CancelledError(msg)
        return super().cancel(msg)


class Background:
    """Work beside the caller's, as a task.

    Args:
        is_replaced: asked when the work was ended by somebody who does not own it: whether it begins again.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        is_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self._work, self._name, self._is_replaced = work, name, is_replaced
        self._process = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._task = _BackgroundTask(self._work(), loop=asyncio.get_running_loop(), name=self._name)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and os.getpid() == self._process:  # an event loop that ends drops what is called later
            asyncio.get_running_loop().call_later(RESTART_PAUSE_S, self._replace)

    def _replace(self) -> None:
        if self._is_replaced():
            self._begin()

    async def join(self) -> None:
        """Wait for its end."""
        await asyncio.wait({self._task})

    async def stop(self, patience: float | None = None) -> None:
        """Cancel it and wait for its end, at most `patience` seconds."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=patience)


def current_work() -> object:
    """Tell apart what runs beside each other: the current task."""
    return asyncio.current_task()


async def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Work that blocks, beside the event loop."""
    return await asyncio.to_thread(work, *arguments, **options)


def in_greenlet(work: Coroutine[Any, Any, T]) -> T:
    """Do the work where SQLAlchemy calls us, between a coroutine of its own and ours."""
    from sqlalchemy.util import await_only

    return await_only(work)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Do the work to its end, also when the task is cancelled meanwhile; then it has 5 seconds left."""
    task = asyncio.ensure_future(work)
    deadline = None
    clock = asyncio.get_running_loop().time
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=None if deadline is None else deadline - clock())
        except asyncio.CancelledError:
            deadline = deadline or clock() + _PATIENCE
        if deadline is not None and clock() >= deadline:
            task.cancel()
            raise asyncio.CancelledError
    if deadline is not None:
        cancel_later()
    return task.result()


async def shelter(work: Coroutine[Any, Any, None]) -> None:
    """`finish`, where something is to be returned in any case: the cancellation comes at the task's next await."""
    try:
        await finish(work)
    except asyncio.CancelledError:  # its 5 seconds are over
        cancel_later()


def cancel_later() -> None:
    """Raise a cancellation that was held back at the next await of this task."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(_cancel_again, task)


def _cancel_again(task: asyncio.Task[Any]) -> None:
    if task.cancelling():  # whoever asked for it may have given up: a timeout whose block has ended
        task.uncancel()
        task.cancel()
