"""Limits of sign-in attempts: wrong ones in a minute, and concurrent checks.

An attempt is counted before it is checked, since many may arrive at once, and uncounted if it was right. A password
costs 32 MB and 0.1 s to check (decision 510), so at most `MAX_CONCURRENT_CHECKS` are checked at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from servicebroker.cli.people_file import MAX_NAME_CHARACTERS
from servicebroker.model.errors import InstanceError

MAX_FAILURES_PER_NAME, WINDOW_S = 10, 60.0  # wrong tokens, or passwords of a name, in the window; then it is locked
MAX_FAILURES = 100  # wrong passwords of all names in the window
MAX_CONCURRENT_CHECKS = 2  # hashed at once, in threads that no page needs
_MAX_NAMES = 1000  # bounds the memory; the oldest name is forgotten


class TooManyFailures(Exception):
    """Sign-in is locked for the rest of the window."""


class SignInLimits:
    """The failed attempts of the last window, by name, including those being checked."""

    def __init__(self) -> None:
        self._of_names: OrderedDict[str, deque[float]] = OrderedDict()
        self._of_all: deque[float] = deque(maxlen=MAX_FAILURES)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_CHECKS, thread_name_prefix="servicebroker sign-in")

    async def check(self, name: str, is_right: Callable[[], bool]) -> bool:
        """Return the result of `is_right`, called in a thread. An attempt that it could not check is not counted.

        Raises:
            TooManyFailures: too many attempts have failed lately, or are being checked.
            InstanceError: `is_right` could not check the attempt.
        """
        key, at = name[: MAX_NAME_CHARACTERS + 1], time.monotonic()
        self._count(key, at)
        try:
            was_right = await asyncio.get_running_loop().run_in_executor(self._threads, is_right)
        except InstanceError:
            self._uncount(key, at)
            raise
        if was_right:
            self._uncount(key, at)
        return was_right

    def _count(self, name: str, at: float) -> None:
        with self._lock:
            for guesses in (self._of_names.get(name), self._of_all):
                if guesses and len(guesses) == guesses.maxlen and at - guesses[0] < WINDOW_S:
                    raise TooManyFailures
            self._of_all.append(at)
            self._of_names.setdefault(name, deque(maxlen=MAX_FAILURES_PER_NAME)).append(at)
            if len(self._of_names) > _MAX_NAMES:
                self._of_names.popitem(last=False)

    def _uncount(self, name: str, at: float) -> None:
        with self._lock:
            for guesses in (self._of_names.get(name), self._of_all):
                if guesses and at in guesses:  # later ones may have pushed it out
                    guesses.remove(at)
