"""Limits of sign-in attempts: failures in a minute, and concurrent checks.

A network that has failed too often is locked, and the others sign in. A network is that of `network_of`. An attempt
counts as a failure before it is checked, since many may arrive at the same time. If it was right, it is removed from
the count. Checking a password costs 32 MB and 0.1 s (decision 510), so at most `MAX_CONCURRENT_CHECKS`
run at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from servicebroker.cli.people_file import MAX_NAME_CHARACTERS
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.admission import network_of

WINDOW_S = 60.0
MAX_FAILURES_PER_NAME = 10  # wrong passwords of one name, or wrong tokens, from one network in the window
MAX_FAILURES_PER_NETWORK = 20  # failures of all names from one network in the window
MAX_FAILURES = 100  # failures from all networks in the window, so the most passwords that are checked in vain
MAX_CONCURRENT_CHECKS = 2  # password checks that run at the same time, in their own threads: pages do not wait for them
_MAX_KEYS = 1000  # bounds memory: a new name or network replaces the oldest, which has left the window


class TooManyFailures(Exception):
    """Sign-in is locked for the rest of the window."""


class _Limit(NamedTuple):
    """A name from one network, or a network, and its most failures."""

    key: tuple[str, ...]
    most: int


class SignInLimits:
    """The times of failed attempts, and of those being checked: by name and network, by network, and in all."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()
        self._all_attempts: deque[float] = deque(maxlen=MAX_FAILURES)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_CHECKS, thread_name_prefix="servicebroker sign-in")

    async def check(self, name: str, host: str, is_right: Callable[[], bool]) -> bool:
        """Return the result of `is_right`, called in a thread. `host`: the address of the browser.

        Raises:
            TooManyFailures: too many attempts have failed in the window, or are being checked.
            InstanceError: `is_right` has raised it; the attempt does not count.
        """
        network, at = network_of(host), time.monotonic()
        limits = (
            _Limit((network, name[: MAX_NAME_CHARACTERS + 1]), MAX_FAILURES_PER_NAME),
            _Limit((network,), MAX_FAILURES_PER_NETWORK),
        )
        self._count(limits, at)
        try:
            was_right = await asyncio.get_running_loop().run_in_executor(self._threads, is_right)
        except InstanceError:
            self._uncount(limits, at)
            raise
        if was_right:
            self._uncount(limits, at)
        return was_right

    def _count(self, limits: Sequence[_Limit], at: float) -> None:
        with self._lock:
            for attempts in (*(self._attempts.get(limit.key) for limit in limits), self._all_attempts):
                if attempts and len(attempts) == attempts.maxlen and at - attempts[0] < WINDOW_S:
                    raise TooManyFailures
            self._all_attempts.append(at)
            for limit in limits:
                attempts = self._attempts.pop(limit.key, None) or deque(maxlen=limit.most)
                attempts.append(at)
                self._attempts[limit.key] = attempts
            while len(self._attempts) > _MAX_KEYS:
                self._attempts.popitem(last=False)

    def _uncount(self, limits: Sequence[_Limit], at: float) -> None:
        with self._lock:
            for attempts in (*(self._attempts.get(limit.key) for limit in limits), self._all_attempts):
                if attempts and at in attempts:  # later attempts may have displaced it
                    attempts.remove(at)
