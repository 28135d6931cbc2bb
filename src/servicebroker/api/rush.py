"""When readers are no longer notified of messages, since these come all the time, but look from time to time.

NOTIFY takes a lock of the whole server and keeps it until the COMMIT is on disk: senders that notify commit one after
the other, and at some hundred messages a second most of a server's time goes into waiting for that lock.
"""

from __future__ import annotations

import math

_CLOSE = 0.01  # seconds between two notifications that follow each other closely
_MANY = 10  # of them in a row make a rush
_SHORTEST, _LONGEST = 0.002, 0.016  # seconds between two looks
_LAST = 0.512  # between the last two of those that follow a rush


class Rush:
    """What one queue's notifications say of its traffic. Times are seconds of any clock that only rises.

    Attributes:
        is_on: readers look by themselves and need no notification.
        due: when one who sleeps is to look; infinite when a notification will tell. Some looks follow a rush, more and
            more seldom: a SEND that saw nobody to notify may be committed a while later.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.due = math.inf
        self._interval = _SHORTEST
        self._notified = -math.inf
        self._in_a_row = 0
        self._found = False

    def notified(self, now: float) -> None:
        """A notification came; it may be the one that makes a rush."""
        self._in_a_row = self._in_a_row + 1 if now - self._notified < _CLOSE else 0
        self._notified = now
        if self._in_a_row >= _MANY and not self.is_on:
            self.is_on = True
            self._interval = _SHORTEST
            self.due = now + _SHORTEST

    def found(self) -> None:
        """A reader has found something: the next looks may follow each other more closely."""
        self._found = True

    def look(self, now: float) -> bool:
        """A reader looks: plan the next look. Whether the rush is over, since several have found nothing."""
        self._interval = max(self._interval / 2, _SHORTEST) if self._found and self.is_on else self._interval * 2
        self._found = False
        self._in_a_row = 0
        self.due = now + self._interval if self._interval <= _LAST else math.inf
        is_over = self.is_on and self._interval > _LONGEST
        self.is_on = self.is_on and not is_over
        return is_over
