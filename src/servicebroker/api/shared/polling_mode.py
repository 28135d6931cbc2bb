"""Polling mode: while messages come all the time, readers poll a queue and nobody notifies them.

NOTIFY takes a lock of the whole server and keeps it until the COMMIT is on disk, so senders that notify commit one
after the other. At some hundred messages a second, most of a server's time goes into waiting for that lock. One process
that listens is enough for that. So polling mode lasts as long as messages come, also if other processes take them.

A reader's transaction takes as long as a sender's COMMIT, or longer. So if senders wait for that lock, notifications
find readers at work. If they find all readers asleep, as single requests do, polling would only add latency.
"""

from __future__ import annotations

import math

_BURST_GAP_S = 0.01  # two notifications that follow each other more closely are part of a burst
_BURST_LENGTH = 10  # notifications of a burst that begin polling mode
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.002, 0.016  # between two polls: longer adds latency, shorter costs a core
_LAST_INTERVAL_S = 0.512  # between the last two polls after polling mode
_COUNT_INTERVAL_S = 0.05  # between two questions whether messages still come, while readers here find none
_ABSENCE_S = 1.0  # readers that have not waited for so long are taken to have gone


class PollingMode:
    """The traffic of one queue, as its notifications and polls show it. Times are seconds of a monotonic clock.

    Attributes:
        is_on: whether readers poll and need no notification.
        next_poll: when a sleeping reader polls next; infinite if a notification wakes it. A few polls follow polling
            mode, at growing intervals: a SEND that saw no reader to notify may commit a while later.
        last_attended: when readers were last seen waiting.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.next_poll = math.inf
        self.last_attended = -math.inf
        self._interval = _MIN_INTERVAL_S
        self._last_notified = -math.inf
        self._burst = 0  # notifications in a row
        self._has_found = False
        self._last_number: int | None = None
        self._last_counted = -math.inf

    def needs_count(self, now: float) -> bool:
        """Return whether the next poll needs the number of messages that came, since the polls before found nothing."""
        return self._is_idle and now >= self._last_counted + _COUNT_INTERVAL_S

    @property
    def _is_idle(self) -> bool:
        return self.is_on and not self._has_found and self._interval * 2 > _MAX_INTERVAL_S

    def note_notification(self, now: float, *, were_asleep: bool) -> None:
        """Count a notification; the last one of a burst begins polling mode.

        `were_asleep`: all readers were, so it begins the count anew.
        """
        is_close = now - self._last_notified < _BURST_GAP_S
        self._burst = self._burst + 1 if is_close and not were_asleep else 0
        self._last_notified = now
        if self._burst >= _BURST_LENGTH and not self.is_on:
            self.is_on = True
            self._interval = _MIN_INTERVAL_S
            self.next_poll = now + _MIN_INTERVAL_S

    def note_message(self) -> None:
        """Poll more closely from now on, since a reader has found a message."""
        self._has_found = True

    def plan_poll(self, now: float, last_number: int | None = None) -> bool:
        """Plan the poll after this one. Return whether polling mode ends, since several polls have found nothing.

        `last_number` is the last number of arrival of the queue's messages, if `needs_count` asks for it. While it
        rises, other processes find the messages, and readers here poll on at the longest interval, unless they have
        gone.
        """
        has_ended = self.needs_count(now) and (
            last_number in (None, self._last_number) or now > self.last_attended + _ABSENCE_S
        )
        if self._is_idle and not has_ended:
            self._interval = _MAX_INTERVAL_S
            if last_number is not None:
                self._last_number, self._last_counted = last_number, now
        elif self.is_on and self._has_found:
            self._interval = max(self._interval / 2, _MIN_INTERVAL_S)
        else:
            self._interval *= 2
        self._has_found = False
        self._burst = 0
        self.next_poll = now + self._interval if self._interval <= _LAST_INTERVAL_S else math.inf
        self.is_on = self.is_on and not has_ended
        return has_ended
