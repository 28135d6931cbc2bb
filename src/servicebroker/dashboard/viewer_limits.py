"""Limits of one viewer: open streams of pages, and requests in progress.

A viewer is a person's name if people sign in by name or a proxy names them, else a session. If all streams are taken,
the viewer with the most streams loses its oldest one to a viewer with fewer. So no viewer can block the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MAX_STREAMS = 50  # the most open streams of all viewers together
MAX_STREAMS_PER_VIEWER = 10
MAX_REQUESTS_PER_VIEWER = 8  # five busy viewers fill the 40 query threads


class TooManyRequests(Exception):
    """A viewer has reached a limit. `status` is the HTTP status of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Stream:
    """The stream of an open page. It ends when it `is_displaced` by the stream of another viewer."""

    def __init__(self, viewer: str) -> None:
        self.viewer = viewer
        self.is_displaced = False


class ViewerLimits:
    """Counts the streams and requests of each viewer, and refuses those over a limit."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []  # the oldest first
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def stream(self, viewer: str) -> Iterator[Stream]:
        """Count a stream for the block.

        Raises:
            TooManyRequests: the viewer has its maximum, or all streams are taken and no viewer has more than this one.
        """
        new_stream = Stream(viewer)
        with self._lock:
            self._make_room(viewer)
            self._streams.append(new_stream)
        try:
            yield new_stream
        finally:
            with self._lock:
                if not new_stream.is_displaced:
                    self._streams.remove(new_stream)

    @contextmanager
    def request(self, viewer: str) -> Iterator[None]:
        """Count a query or an action for the block.

        Raises:
            TooManyRequests: the viewer has its maximum of requests in progress.
        """
        with self._lock:
            if self._requests[viewer] >= MAX_REQUESTS_PER_VIEWER:
                raise TooManyRequests(429, "Too many requests at once: wait for the answers.")
            self._requests[viewer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._requests[viewer] -= 1
                if not self._requests[viewer]:
                    del self._requests[viewer]

    def _make_room(self, viewer: str) -> None:
        """If all streams are taken, displace the oldest one of the viewer with the most. The caller holds the lock."""
        counts = Counter(stream.viewer for stream in self._streams)
        if counts[viewer] >= MAX_STREAMS_PER_VIEWER:
            raise TooManyRequests(429, f"You have {MAX_STREAMS_PER_VIEWER} pages open: close one.")
        if len(self._streams) < MAX_STREAMS:
            return
        most = max(counts.values())
        if most <= counts[viewer]:
            raise TooManyRequests(503, "Too many pages are open: close some, and reload this one.")
        displaced = next(stream for stream in self._streams if counts[stream.viewer] == most)
        displaced.is_displaced = True
        self._streams.remove(displaced)
