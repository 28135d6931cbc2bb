"""Polling mode: under load, readers poll a queue instead of waiting for NOTIFY.

NOTIFY takes a server-wide lock and keeps it until the COMMIT is on disk, so senders that notify commit one after the
other. At several hundred messages a second, senders mostly wait for that lock. A single process that listens causes
this. So polling mode lasts as long as messages arrive, even if other processes receive them.

A reader's transaction takes at least as long as a sender's COMMIT. So if senders queue for that lock, a notification
usually arrives while readers are busy. If all readers are asleep, as with single requests, polling would only add
latency.
"""

from __future__ import annotations

import math

_BURST_GAP_S = 0.01  # the longest time between two notifications of a burst
_BURST_LENGTH = 10  # notifications; a burst of so many begins polling mode
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.002, 0.016  # the time between two polls: longer adds latency, shorter costs a core
_LAST_INTERVAL_S = 0.512  # the time between the last two polls after polling mode
_COUNT_INTERVAL_S = 0.05  # the time between two reads of the queue's counter while this process finds no message
_ABSENCE_S = 1.0  # without a waiting reader; then the process has none any more


class PollingMode:
    """The polling mode of one queue, decided by its notifications and polls. Times are seconds of a monotonic clock.

    Attributes:
        is_on: True while readers poll and need no notification.
        next_poll: the time of the next poll; infinite if a notification wakes the readers. A few polls follow polling
            mode, at growing intervals: a SEND that found no registered reader may commit later.
        last_attended: the last time when readers were waiting.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.next_poll = math.inf
        self.last_attended = -math.inf
        self._interval = _MIN_INTERVAL_S
        self._last_notified = -math.inf
        self._burst = 0  # notifications in a row
        self._has_found = False  # True if a poll since the last `plan_poll` has found a message
        self._last_number: int | None = None
        self._last_counted = -math.inf

    def needs_count(self, now: float) -> bool:
        """Return whether `plan_poll` needs the last arrival number, because recent polls found nothing."""
        return self._is_idle and now >= self._last_counted + _COUNT_INTERVAL_S

    @property
    def _is_idle(self) -> bool:
        return self.is_on and not self._has_found and self._interval * 2 > _MAX_INTERVAL_S

    def note_notification(self, now: float, *, were_asleep: bool) -> None:
        """Count a notification. The tenth one of a burst begins polling mode.

        `were_asleep`: all readers were asleep, so the notification is not part of a burst.
        """
        is_close = now - self._last_notified < _BURST_GAP_S
        self._burst = self._burst + 1 if is_close and not were_asleep else 0
        self._last_notified = now
        if self._burst >= _BURST_LENGTH and not self.is_on:
            self.is_on = True
            self._interval = _MIN_INTERVAL_S
            self.next_poll = now + _MIN_INTERVAL_S

    def note_message(self) -> None:
        """Halve the poll interval at the next `plan_poll`, since a reader has found a message."""
        self._has_found = True

    def plan_poll(self, now: float, last_number: int | None = None) -> bool:
        """Set the time of the next poll. Return whether polling mode ends, because several polls found nothing.

        `last_number` is the last arrival number of the queue's messages, if `needs_count` asks for it. While it rises,
        other processes receive the messages. Then readers of this process poll at the longest interval, unless none
        waits any more.
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
