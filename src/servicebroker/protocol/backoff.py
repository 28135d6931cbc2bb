"""Backoff for work that another session blocks: a row that is locked, or a service that is being altered."""

from __future__ import annotations

from servicebroker.protocol.outgoing import NEVER

FIRST_RETRY_S = 0.02  # most locks are held for a few milliseconds
LAST_RETRY_S = 1.0  # a longer pause delays messages by as much when a long transaction ends


class Backoff:
    """The time of the next attempt: after FIRST_RETRY_S, then twice the pause each time, up to LAST_RETRY_S.

    Attributes:
        at: that time, in seconds; NEVER if nothing is left to try.
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_RETRY_S
        self.at = NEVER

    def is_due(self, now: float) -> bool:
        """Return whether an attempt is due. If so, the caller tries, and then calls `schedule`."""
        if now < self.at:
            return False
        self.at = NEVER
        return True

    def schedule(self, now: float, *, is_left: bool) -> None:
        """Set the time of the next attempt if work is left; otherwise reset the pause."""
        if not is_left:
            self.at, self._pause_s = NEVER, FIRST_RETRY_S
        elif self.at == NEVER:
            self.at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, LAST_RETRY_S)
