"""Threads under the names of `aio/concurrency.py`, so that the same code is written for threads and asyncio."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

RESTART_PAUSE_S = 1.0  # until ended work starts again: a cause that ends it at once must not cost a core
IS_ASYNC = False  # functions passed to this module are not awaited

Event = threading.Event
Lock = threading.Lock
sleep = time.sleep


def is_interrupt(problem: BaseException, *, exits: bool) -> bool:
    """Check whether an exception may be Ctrl-C, which Python raises anywhere in the main thread.

    If a program has a handler of its own for SIGINT, as asyncio has, a KeyboardInterrupt comes from the work itself.
    `exits`: count exits of the main thread too, for example by sys.exit in a handler of SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if exits:
        return isinstance(problem, KeyboardInterrupt | SystemExit)
    return isinstance(problem, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class StopDetector:
    """Distinguishes a stop by a thread's owner from every other end of its work. Create it before the work.

    Args:
        exits: an exit of the main thread counts as a stop, too: the owner has no other way to end the work.
    """

    def __init__(self, *, exits: bool = False) -> None:
        self._exits = exits
        self._process = os.getpid()

    def is_stop(self, problem: BaseException) -> bool:
        """Check whether the owner has ended the work; True also in a forked child, where it cannot go on."""
        return os.getpid() != self._process or is_interrupt(problem, exits=self._exits)


class Background:
    """Background work, in a thread that does not keep the process alive.

    Args:
        is_replaced: called after the work was ended by an exception; True starts it again.
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
        """Wait for the end of the work."""
        self._thread.join()

    def stop(self, patience: float | None = None) -> None:
        """Wait until the work has noticed its stop, at most `patience` seconds."""
        self._thread.join(patience)


current_work: Callable[[], object] = threading.get_ident  # identifies concurrent work


def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run blocking work, in this thread."""
    return work(*arguments, **options)
