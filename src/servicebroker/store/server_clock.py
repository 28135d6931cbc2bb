"""The clock of the PostgreSQL server, which all clients use instead of their own clocks (decision 22)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]

MAX_DIFFERENCE = timedelta(seconds=5)  # a larger difference between the local clock and the server's is reported
_MAX_AGE_S = 10.0  # then the server's time is read again, because its clock may have been set


class ServerClock:
    """The server's clock, extrapolated by a monotonic clock of this process.

    Args:
        monotonic: returns seconds of a monotonic clock.
        local: this machine's clock.
        warn: called with a sentence if the server's clock and the local one differ by more than `MAX_DIFFERENCE`, and
            again if the difference has changed by that much.

    Any thread may use it.
    """

    def __init__(self, monotonic: Callable[[], float], local: Clock, warn: Callable[[str], object]) -> None:
        self._monotonic = monotonic
        self._local = local
        self._warn = warn
        self._last: tuple[datetime, float] | None = None  # the server's time, and `monotonic()` at that time
        self._reported = timedelta()
        self._difference: timedelta | None = None  # the difference, until `take_difference` returns it

    def __call__(self) -> datetime:
        """Return the server's current time; the local time before the first update."""
        if self._last is None:
            return self._local()
        server_time, read_at = self._last
        return server_time + timedelta(seconds=self._monotonic() - read_at)

    def begin_update(self) -> float | None:
        """Return the start time of an update, an argument of `update`; None if no update is due."""
        now = self._monotonic()
        return now if self._last is None or now - self._last[1] > _MAX_AGE_S else None

    def update(self, asked_at: float, server_time: datetime) -> None:
        """Set the clock to the server's time, which the server has read between `asked_at` and now."""
        answered_at = self._monotonic()
        self._last = server_time, (asked_at + answered_at) / 2
        difference = self._local() - server_time
        if abs(difference) <= MAX_DIFFERENCE:
            return
        self._difference = difference
        if abs(difference - self._reported) > MAX_DIFFERENCE:
            self._reported = difference
            seconds = abs(round(difference.total_seconds()))
            direction = "ahead of" if difference > timedelta() else "behind"
            self._warn(
                f"The clock of this machine is {seconds:,} s {direction} that of the PostgreSQL server, whose time "
                "counts: lifetimes, timers and all stored times go by it. Set the clock that is wrong."
            )

    def take_difference(self) -> timedelta | None:
        """Return how far the local clock is ahead of the server's, if an update since the last call found a difference.

        Any thread may have made that update. The caller stores the difference for `servicebroker doctor`.
        """
        difference, self._difference = self._difference, None
        return difference


def take_clock_difference(clock: Clock) -> timedelta | None:
    """Return `take_difference` of a `ServerClock`; None for another clock."""
    return clock.take_difference() if isinstance(clock, ServerClock) else None


def system_time() -> datetime:
    """Return the time of the local clock."""
    return datetime.now(UTC)
