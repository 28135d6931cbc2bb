"""Waiting and cancellation in asyncio.

The rule: the caller of a statement that PostgreSQL has completed gets its result. A cancellation that came meanwhile is
raised at the task's next await. Otherwise the messages of a RECEIVE would be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from servicebroker.overriding import override
from servicebroker.store.concurrency import RESTART_PAUSE_S, is_interrupt

T = TypeVar("T")
P = ParamSpec("P")

_FINISH_TIMEOUT_S = 5.0  # the time from the cancellation until work that must be finished is finished

IS_ASYNC = True  # functions passed to this module are awaited

Lock = asyncio.Lock
event_loop: Callable[[], object] = asyncio.get_running_loop  # the event loop to which an instance belongs
sleep = asyncio.sleep


class Event:
    """An asyncio event with a timeout for waiting, as threading.Event has."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set, self.clear, self.is_set = self._event.set, self._event.clear, self._event.is_set

    async def wait(self, timeout: float) -> bool:
        """Wait until the event is set, at most `timeout` seconds. Returns True if it is set."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        return self._event.is_set()


class StopDetector:
    """Tells whether the owner of a task has stopped its work, or another cause has ended it. Create it before the work.

    The owner cancels the task, closes its coroutine or interrupts the program. Every other CancelledError comes from
    the work itself, for example from awaiting a cancelled task of its own.

    Args:
        exits: an exit of the main thread counts as a stop, too, if the owner has no other way to stop the work.
    """

    def __init__(self, *, exits: bool = False) -> None:
        self._exits = exits
        self._process = os.getpid()
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    def is_stop(self, problem: BaseException) -> bool:
        """Check whether the owner has stopped the work. True also in a forked child, which cannot continue it."""
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
    """A task that its own work cannot cancel. Such a call of `cancel` raises CancelledError instead."""

    @override
    def cancel(self, msg: Any | None = None) -> bool:
        if _is_current(self):
            raise asyncio.CancelledError(msg)
        return super().cancel(msg)


class Background:
    """Background work in a task.

    Args:
        should_restart: called if code that does not own the work has cancelled it; True starts the work again.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        should_restart: Callable[[], bool] = lambda: False,
    ) -> None:
        self._work, self._name, self._should_restart = work, name, should_restart
        self._process = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._task = _BackgroundTask(self._work(), loop=asyncio.get_running_loop(), name=self._name)
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and os.getpid() == self._process:  # an event loop that ends drops scheduled calls
            asyncio.get_running_loop().call_later(RESTART_PAUSE_S, self._restart)

    def _restart(self) -> None:
        if self._should_restart():
            self._begin()

    async def join(self) -> None:
        """Wait for the end of the work."""
        await asyncio.wait({self._task})

    async def stop(self, timeout: float | None = None) -> None:
        """Cancel the work and wait for its end, at most `timeout` seconds."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=timeout)


current_work: Callable[[], object] = asyncio.current_task  # returns a key of the running task


async def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run a blocking function in a thread."""
    return await asyncio.to_thread(work, *arguments, **options)


def in_greenlet(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from code inside SQLAlchemy's greenlet, as its own asyncio drivers do."""
    from sqlalchemy.util import await_only

    return await_only(work)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end, also if the task is cancelled; then for at most 5 more seconds."""
    task = asyncio.ensure_future(work)
    deadline = None
    clock = asyncio.get_running_loop().time
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=None if deadline is None else deadline - clock())
        except asyncio.CancelledError:
            deadline = deadline or clock() + _FINISH_TIMEOUT_S
        if deadline is not None and clock() >= deadline:
            task.cancel()
            raise asyncio.CancelledError
    if deadline is not None:
        cancel_later()
    return task.result()


async def shelter(work: Coroutine[Any, Any, None]) -> None:
    """Run `finish` for a caller that must return a result: a cancellation is raised at the task's next await."""
    try:
        await finish(work)
    except asyncio.CancelledError:  # the 5 seconds have passed
        cancel_later()


def cancel_later() -> None:
    """Raise a postponed cancellation at the next await of this task."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(_cancel_again, task)


def _cancel_again(task: asyncio.Task[Any]) -> None:
    if task.cancelling():  # else the cancellation was withdrawn, as by a timeout whose block has ended
        task.uncancel()
        task.cancel()
