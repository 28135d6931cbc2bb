"""When readers are no longer notified of messages, since these come all the time, but look from time to time.

NOTIFY takes a lock of the whole server and keeps it until the COMMIT is on disk: senders that notify commit one after
the other, and at some hundred messages a second most of a server's time goes into waiting for that lock. One process
on the list is enough for that: so a rush lasts as long as messages come, also where others take them.
"""

from __future__ import annotations

import math

_CLOSE = 0.01  # seconds between two notifications that follow each other closely
_MANY = 10  # of them in a row make a rush
_SHORTEST, _LONGEST = 0.002, 0.016  # seconds between two looks
_LAST = 0.512  # between the last two of those that follow a rush
_ASK = 0.05  # between two questions whether messages still come, while readers here find none
_ABSENT = 1.0  # after which readers that do not wait any more are taken to have gone


class Rush:
    """What one queue's notifications say of its traffic. Times are seconds of any clock that only rises.

    Attributes:
        is_on: readers look by themselves and need no notification.
        due: when one who sleeps is to look; infinite when a notification will tell. Some looks follow a rush, more and
            more seldom: a SEND that saw nobody to notify may be committed a while later.
        attended: when readers were last seen waiting.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.due = math.inf
        self.attended = -math.inf
        self._interval = _SHORTEST
        self._notified = -math.inf
        self._in_a_row = 0
        self._found = False
        self._drawn: int | None = None
        self._asked = -math.inf

    def asks(self, now: float) -> bool:
        """Whether the next look has to know how many messages have come, as the ones before have found nothing."""
        return self._is_idle and now >= self._asked + _ASK

    @property
    def _is_idle(self) -> bool:
        return self.is_on and not self._found and self._interval * 2 > _LONGEST

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

    def look(self, now: float, drawn: int | None = None) -> bool:
        """A reader looks: plan the next look. Whether the rush is over, since several have found nothing.

        `drawn` is the last number of arrival of the queue's messages, where `asks` wants it: as long as it rises others
        find them, and readers here, unless they have gone, look on, though not often.
        """
        is_over = self.asks(now) and (drawn in (None, self._drawn) or now > self.attended + _ABSENT)
        if self._is_idle and not is_over:
            self._interval = _LONGEST
            if drawn is not None:
                self._drawn, self._asked = drawn, now
        elif self.is_on and self._found:
            self._interval = max(self._interval / 2, _SHORTEST)
        else:
            self._interval *= 2
        self._found = False
        self._in_a_row = 0
        self.due = now + self._interval if self._interval <= _LAST else math.inf
        self.is_on = self.is_on and not is_over
        return is_over
