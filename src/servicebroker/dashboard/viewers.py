"""Limits on what one viewer takes: streams of pages that change by themselves, and looks and acts at a time.

A viewer is a name where there are people or a proxy, else a session. When all streams are taken, a newcomer gets that
of the viewer who has the most, if that one has more: nobody can keep the others from looking.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MOST_STREAMS = 50
MOST_STREAMS_OF_ONE = 10
MOST_LOOKS_OF_ONE = 8  # of the 40 threads that look


class TooMany(Exception):
    """A viewer has enough already. The text says of what, the status is that of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Stream:
    """One page that changes by itself, until it `is_displaced`."""

    def __init__(self, viewer: str) -> None:
        self.viewer = viewer
        self.is_displaced = False


class Viewers:
    """What each viewer has now."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []  # the oldest first
        self._looks: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def stream(self, viewer: str) -> Iterator[Stream]:
        """Count a stream as long as the block runs.

        Raises:
            TooMany: the viewer has its share, or all are taken by others who have no more.
        """
        begun = Stream(viewer)
        with self._lock:
            self._make_room(viewer)
            self._streams.append(begun)
        try:
            yield begun
        finally:
            with self._lock:
                if not begun.is_displaced:
                    self._streams.remove(begun)

    @contextmanager
    def look(self, viewer: str) -> Iterator[None]:
        """Count a look or an act as long as the block runs.

        Raises:
            TooMany: the viewer waits for as many answers as it may.
        """
        with self._lock:
            if self._looks[viewer] >= MOST_LOOKS_OF_ONE:
                raise TooMany(429, "Too many questions at once: wait for the answers.")
            self._looks[viewer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks[viewer] -= 1
                if not self._looks[viewer]:
                    del self._looks[viewer]

    def _make_room(self, viewer: str) -> None:
        """Displace a stream where there is no room for one more. The caller has the lock."""
        taken = Counter(stream.viewer for stream in self._streams)
        if taken[viewer] >= MOST_STREAMS_OF_ONE:
            raise TooMany(429, f"You have {MOST_STREAMS_OF_ONE} pages open: close one.")
        if len(self._streams) < MOST_STREAMS:
            return
        most = max(taken.values())
        if most <= taken[viewer]:
            raise TooMany(503, "Too many pages are open.")
        displaced = next(stream for stream in self._streams if taken[stream.viewer] == most)
        displaced.is_displaced = True
        self._streams.remove(displaced)
