"""Threads under the names that `aio/concurrency.py` gives to what asyncio has: the same code is written for both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Event = threading.Event
Lock = threading.Lock
sleep = time.sleep


class Background:
    """Work beside the caller's, in a thread that does not keep the process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def stop(self, patience: float | None = None) -> None:
        """Wait until the work has seen that it is to end, at most `patience` seconds."""
        self._thread.join(patience)


def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Work that blocks: here it may."""
    return work(*arguments, **options)
