"""When to try again what somebody else holds: a row that is locked, or a service that is being altered."""

from __future__ import annotations

from servicebroker.protocol.outgoing import NEVER

FIRST_RETRY_S = 0.02  # most locks are held for a few milliseconds
LAST_RETRY_S = 1.0  # a longer pause delays messages by as much when a long transaction ends


class Backoff:
    """The moment of the next attempt: soon at first, then after twice the pause each time, up to LAST_RETRY_S.

    Attributes:
        at: that moment, in seconds; NEVER if nothing is left to try.
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_RETRY_S
        self.at = NEVER

    def is_due(self, now: float) -> bool:
        """Return whether it is time to try. If so, `schedule` sets the next moment."""
        if now < self.at:
            return False
        self.at = NEVER
        return True

    def schedule(self, now: float, *, is_left: bool) -> None:
        """Set the next moment if something is left to try; else begin again with the first pause."""
        if not is_left:
            self.at, self._pause_s = NEVER, FIRST_RETRY_S
        elif self.at == NEVER:
            self.at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, LAST_RETRY_S)
