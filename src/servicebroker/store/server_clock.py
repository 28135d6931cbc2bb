"""The time that rules: that of the PostgreSQL server, whatever the machines of its clients believe.

docs/decisions/175 says why.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]

TOLERATED = timedelta(seconds=5)  # between this machine's clock and the server's, before anybody is told
_OUTDATED = 10.0  # seconds after which the server is asked again: its clock may have been set


class ServerClock:
    """What a server's clock shows, carried on by a clock of this process that only goes forward.

    `steady` gives seconds since some moment, `local` what this machine takes for the time; `tell` is given a sentence
    when the two clocks differ by more than `TOLERATED`, once for each such difference. Any thread may use it.
    """

    def __init__(self, steady: Callable[[], float], local: Clock, tell: Callable[[str], object]) -> None:
        self._steady = steady
        self._local = local
        self._tell = tell
        self._known: tuple[datetime, float] | None = None  # the server's time, and the steady one at that moment
        self._told = timedelta()
        self._ahead: timedelta | None = None  # what was found and `take_ahead` has not said

    def __call__(self) -> datetime:
        """The server's time now; this machine's, as long as the server was never asked."""
        if self._known is None:
            return self._local()
        then, moment = self._known
        return then + timedelta(seconds=self._steady() - moment)

    def asks(self) -> float | None:
        """The moment, if it is time to ask the server; it is given back to `note` with the answer."""
        now = self._steady()
        return now if self._known is None or now - self._known[1] > _OUTDATED else None

    def note(self, asked_at: float, server: datetime) -> None:
        """The server has answered with its time: it looked at its clock between the question and now."""
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

    def take_ahead(self) -> timedelta | None:
        """How far this machine's clock is ahead of the server's, when it was found wrong since this was asked last.

        Whoever has asked the server has found it: a busy application asks more often than who tells doctor.
        """
        found, self._ahead = self._ahead, None
        return found


def taken_ahead(clock: Clock) -> timedelta | None:
    """What `take_ahead` of a server's clock says; nothing is known of another one."""
    return clock.take_ahead() if isinstance(clock, ServerClock) else None


def system_time() -> datetime:
    """What this machine takes for the time."""
    return datetime.now(UTC)
