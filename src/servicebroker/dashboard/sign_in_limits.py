"""Limits of sign-in attempts: failures in a minute, and concurrent checks.

An attempt counts as a failure before it is checked, since many may arrive at the same time. If it was right, it is
removed from the count. Checking a password costs 32 MB and 0.1 s (decision 510), so at most `MAX_CONCURRENT_CHECKS`
run at a time.
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

WINDOW_S = 60.0
MAX_FAILURES_PER_NAME = 10  # in the window: wrong passwords of one name, or wrong tokens; then sign-in is locked
MAX_FAILURES = 100  # in the window, of all names together
MAX_CONCURRENT_CHECKS = 2  # in threads of their own, so that pages do not wait for them
_MAX_NAMES = 1000  # bounds memory: a new name replaces the oldest


class TooManyFailures(Exception):
    """Sign-in is locked for the rest of the window."""


class SignInLimits:
    """The times of failed attempts, and of those being checked, by name and in all."""

    def __init__(self) -> None:
        self._attempts_by_name: OrderedDict[str, deque[float]] = OrderedDict()
        self._all_attempts: deque[float] = deque(maxlen=MAX_FAILURES)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_CHECKS, thread_name_prefix="servicebroker sign-in")

    async def check(self, name: str, is_right: Callable[[], bool]) -> bool:
        """Return the result of `is_right`, called in a thread.

        Raises:
            TooManyFailures: too many attempts have failed in the window, or are being checked.
            InstanceError: `is_right` has raised it; the attempt does not count.
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
            for attempts in (self._attempts_by_name.get(name), self._all_attempts):
                if attempts and len(attempts) == attempts.maxlen and at - attempts[0] < WINDOW_S:
                    raise TooManyFailures
            self._all_attempts.append(at)
            self._attempts_by_name.setdefault(name, deque(maxlen=MAX_FAILURES_PER_NAME)).append(at)
            if len(self._attempts_by_name) > _MAX_NAMES:
                self._attempts_by_name.popitem(last=False)

    def _uncount(self, name: str, at: float) -> None:
        with self._lock:
            for attempts in (self._attempts_by_name.get(name), self._all_attempts):
                if attempts and at in attempts:  # later attempts may have displaced it
                    attempts.remove(at)
