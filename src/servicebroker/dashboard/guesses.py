"""Limits on guessing: how many sign-ins may be wrong in a minute, and how many are judged at once.

A guess is counted before it is judged, since a stranger sends many at once, and given back when it was right. What a
password costs to judge (32 MB and 0.1 s, decision 235) is paid at most `MOST_JUDGED` times at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from servicebroker.cli.people_file import LONGEST_NAME
from servicebroker.model.errors import InstanceError

FAILURES, MINUTE = 10, 60.0  # wrong tokens, or passwords of one name, in so many seconds until nobody may try
GUESSES = 100  # wrong passwords of all names in that time
MOST_JUDGED = 2  # passwords that are hashed at once, in threads that no page waits for
_MOST_NAMES = 1000


class TooManyGuesses(Exception):
    """Nobody may try to sign in for the rest of the minute."""


class Guesses:
    """The wrong guesses of the last minute, by the name that they were made for, and those that are being judged."""

    def __init__(self) -> None:
        self._of_names: OrderedDict[str, deque[float]] = OrderedDict()
        self._of_all: deque[float] = deque(maxlen=GUESSES)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MOST_JUDGED, thread_name_prefix="servicebroker sign-in")

    async def judge(self, name: str, is_right: Callable[[], bool]) -> bool:
        """Return what `is_right` says, asked in a thread. A guess that it could not judge is none.

        Raises:
            TooManyGuesses: too many were wrong lately, or are being judged.
            InstanceError: `is_right` could not tell.
        """
        key, at = name[: LONGEST_NAME + 1], time.monotonic()
        self._count(key, at)
        try:
            was_right = await asyncio.get_running_loop().run_in_executor(self._threads, is_right)
        except InstanceError:
            self._give_back(key, at)
            raise
        if was_right:
            self._give_back(key, at)
        return was_right

    def _count(self, name: str, at: float) -> None:
        with self._lock:
            for guesses in (self._of_names.get(name), self._of_all):
                if guesses and len(guesses) == guesses.maxlen and at - guesses[0] < MINUTE:
                    raise TooManyGuesses
            self._of_all.append(at)
            self._of_names.setdefault(name, deque(maxlen=FAILURES)).append(at)
            if len(self._of_names) > _MOST_NAMES:
                self._of_names.popitem(last=False)

    def _give_back(self, name: str, at: float) -> None:
        with self._lock:
            for guesses in (self._of_names.get(name), self._of_all):
                if guesses and at in guesses:  # not pushed out by later ones
                    guesses.remove(at)
