"""The time that counts: that of the PostgreSQL server, whatever the clocks of its clients show.

The reasons: docs/decisions/022.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]

TOLERATED = timedelta(seconds=5)  # between this machine's clock and the server's, before it is reported
_MAX_AGE_S = 10.0  # seconds after which the server is asked again: its clock may have been set


class ServerClock:
    """The server's clock, extrapolated by a monotonic clock of this process.

    `steady` returns seconds of a monotonic clock, `local` is this machine's clock. `tell` is called with a sentence if
    the two clocks differ by more than `TOLERATED`, once for each such difference. Any thread may use it.
    """

    def __init__(self, steady: Callable[[], float], local: Clock, tell: Callable[[str], object]) -> None:
        self._steady = steady
        self._local = local
        self._tell = tell
        self._known: tuple[datetime, float] | None = None  # the server's time, and `steady` at that moment
        self._told = timedelta()
        self._ahead: timedelta | None = None  # a found difference that `take_ahead` has not returned yet

    def __call__(self) -> datetime:
        """Return the server's current time; this machine's before the first answer."""
        if self._known is None:
            return self._local()
        then, moment = self._known
        return then + timedelta(seconds=self._steady() - moment)

    def asks(self) -> float | None:
        """Return the current `steady` time if the server has to be asked; pass it to `note` with the answer."""
        now = self._steady()
        return now if self._known is None or now - self._known[1] > _MAX_AGE_S else None

    def note(self, asked_at: float, server: datetime) -> None:
        """Note the server's time, which it read between the question and now."""
        answered_at = self._steady()
        self._known = server, (asked_at + answered_at) / 2
        ahead = self._local() - server
        if abs(ahead) <= TOLERATED:
            return
        self._ahead = ahead
        if abs(ahead - self._told) > TOLERATED:
            self._told = ahead
            seconds, where = abs(round(ahead.total_seconds())), "ahead of" if ahead > timedelta() else "behind"
            self._tell(
                f"The clock of this machine is {seconds:,} s {where} that of the PostgreSQL server, whose time counts: "
                "lifetimes, timers and all stored times go by it. Set the clock that is wrong."
            )

    def take_difference(self) -> timedelta | None:
        """Return how far this machine's clock is ahead of the server's, if it was found wrong since the last call.

        Any request to the server may find it: a busy application asks more often than the one that reports to doctor.
        """
        found, self._ahead = self._ahead, None
        return found


def take_clock_difference(clock: Clock) -> timedelta | None:
    """Return `take_ahead` of a server's clock; None for another clock."""
    return clock.take_difference() if isinstance(clock, ServerClock) else None


def system_time() -> datetime:
    """Return the time of this machine's clock."""
    return datetime.now(UTC)
