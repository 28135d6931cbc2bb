"""Waiting and background work with threads. `aio/concurrency.py` has the same names for asyncio."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

RESTART_PAUSE_S = 1.0  # the pause before ended work is started again: a permanent cause must not use up a core
IS_ASYNC = False  # functions that this module gets are not coroutines

Event = threading.Event
Lock = threading.Lock
sleep = time.sleep


def event_loop() -> object:
    """Return None: an instance for threads belongs to no event loop."""
    return None


def is_interrupt(problem: BaseException, *, exits: bool) -> bool:
    """Check whether an exception may come from Ctrl-C, which Python raises anywhere in the main thread.

    If SIGINT has another handler, as in asyncio, the work itself has raised the KeyboardInterrupt. `exits`: check also
    for an exit of the main thread, for example by sys.exit in a handler of SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if exits:
        return isinstance(problem, KeyboardInterrupt | SystemExit)
    return isinstance(problem, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class StopDetector:
    """Tells whether the owner of a thread has stopped its work, or another cause has. Create it before the work.

    Args:
        exits: an exit of the main thread counts as a stop, too, if the owner has no other way to stop the work.
    """

    def __init__(self, *, exits: bool = False) -> None:
        self._exits = exits
        self._process = os.getpid()

    def is_stop(self, problem: BaseException) -> bool:
        """Check whether the owner has stopped the work. True also in a forked child, which cannot continue it."""
        return os.getpid() != self._process or is_interrupt(problem, exits=self._exits)


class Background:
    """Background work in a thread that does not keep the process alive.

    Args:
        should_restart: called after an exception has ended the work; True starts the work again.
    """

    def __init__(self, work: Callable[[], None], name: str, should_restart: Callable[[], bool] = lambda: False) -> None:
        self._work, self._should_restart = work, should_restart
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                return self._work()
            except BaseException:
                if os.getpid() != self._process or not self._should_restart():
                    raise
            time.sleep(RESTART_PAUSE_S)

    def join(self) -> None:
        """Wait for the end of the work."""
        self._thread.join()

    def stop(self, timeout: float | None = None) -> None:
        """Wait for the end of work that was told to stop, at most `timeout` seconds."""
        self._thread.join(timeout)


current_work: Callable[[], object] = threading.get_ident  # returns a key of the running thread


def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run a blocking function in this thread."""
    return work(*arguments, **options)
