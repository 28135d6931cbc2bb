"""A clock that stands still until a test jumps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Gives the time, UTC; pass it to `servicebroker.open(..., clock=)` or to the double's `open`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """The time."""
        return self._now

    def jump(self, **by: float) -> None:
        """Go forward; the arguments are those of `datetime.timedelta`: `jump(minutes=31)`."""
        self._now += timedelta(**by)

    def jump_to(self, time: datetime) -> None:
        """Go forward to a time; an earlier one changes nothing."""
        self._now = max(self._now, time)
