"""When what somebody else holds is tried again."""

from __future__ import annotations

from servicebroker.protocol.outgoing import NEVER

SOON = 0.02  # seconds until what somebody else holds is tried again, at first
LATER = 1.0  # seconds until then, at most


class Again:
    """When what somebody else holds is tried again: soon, and less often as long as that lasts.

    Attributes:
        at: the moment; NEVER when nothing is left to try.
    """

    def __init__(self) -> None:
        self._pause = SOON
        self.at = NEVER

    def has_come(self, now: float) -> bool:
        """Whether it is time. Then it is to be planned anew."""
        if now < self.at:
            return False
        self.at = NEVER
        return True

    def plan(self, now: float, *, is_left: bool) -> None:
        """Something is left to try, or nothing."""
        if not is_left:
            self.at, self._pause = NEVER, SOON
        elif self.at == NEVER:
            self.at = now + self._pause
            self._pause = min(self._pause * 2, LATER)
