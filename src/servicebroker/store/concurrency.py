"""Threads under the names that `aio/concurrency.py` gives to what asyncio has: the same code is written for both."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

RESTART_PAUSE_S = 1.0  # until work that was ended begins again: what ends it at once must not cost a core
IS_ASYNC = False  # whether functions that are given here are awaited

Event = threading.Event
Lock = threading.Lock
sleep = time.sleep


def is_interrupt(problem: BaseException, *, exits: bool) -> bool:
    """Whether an exception may be Ctrl-C, which Python raises wherever the main thread is.

    Where a program has a handler of its own for SIGINT, as asyncio has, a KeyboardInterrupt comes from the work itself.
    `exits`: also whether the main thread exits, for one by sys.exit in a handler of SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if exits:
        return isinstance(problem, KeyboardInterrupt | SystemExit)
    return isinstance(problem, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class StopDetector:
    """Tells a stop by the owner of a thread from every other way in which its work ends. Make it before the work.

    Args:
        exits: an exit of the main thread counts as a stop, too: the owner has no other way to end the work.
    """

    def __init__(self, *, exits: bool = False) -> None:
        self._exits = exits
        self._process = os.getpid()

    def is_stop(self, problem: BaseException) -> bool:
        """Whether the owner has ended the work; also in a forked child, which has nothing to go on with."""
        return os.getpid() != self._process or is_interrupt(problem, exits=self._exits)


class Background:
    """Work beside the caller's, in a thread that does not keep the process alive.

    Args:
        is_replaced: asked when the work was ended by an exception: whether it begins again.
    """

    def __init__(self, work: Callable[[], None], name: str, is_replaced: Callable[[], bool] = lambda: False) -> None:
        self._work, self._is_replaced = work, is_replaced
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                return self._work()
            except BaseException:
                if os.getpid() != self._process or not self._is_replaced():
                    raise
            time.sleep(RESTART_PAUSE_S)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def stop(self, patience: float | None = None) -> None:
        """Wait until the work has seen that it is to end, at most `patience` seconds."""
        self._thread.join(patience)


def current_work() -> object:
    """Tell apart what runs beside each other: the current thread."""
    return threading.get_ident()


def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Work that blocks: here it may."""
    return work(*arguments, **options)
