"""The number of shares: by how busy the present ones are, and when another number is tried."""

from __future__ import annotations

FULL_LOAD = 0.6  # part of the time that shares are in rounds, on average, and more are started
FULL_CPU = 0.8  # part of the time that this process computes, and more would only wait for each other
LOW_LOAD = 0.55  # part of the time for each share but one, and there is one less
LOOKS_TO_GROW, LOOKS_TO_SHRINK = 3, 10  # looks for which that has to last
RETRY_INTERVAL_S = 60.0  # seconds until more connections are tried again


class Load:
    """The number of shares to have, by how busy the present ones are.

    `most` is the largest number. Shares that are in processes do not wait for what this one computes.
    """

    def __init__(self, most: int, now: float, computed: float, *, in_processes: bool = False) -> None:
        self._most = most
        self._in_processes = in_processes
        self._before: list[float] = []
        self._looked_at, self._computed = now, computed
        self._full = self._resting = 0  # looks

    def wanted(self, worked: list[float], now: float, computed: float) -> int:
        """Return how many from now on.

        `worked` is how long each has been in rounds in all, `computed` how long this process has computed in all.
        """
        count = len(worked)
        elapsed = max(now - self._looked_at, 1e-6)
        busy = [(one - before) / elapsed for one, before in zip(worked, self._before, strict=False)]
        computing = 0.0 if self._in_processes else (computed - self._computed) / elapsed
        is_known = len(self._before) == count
        self._before, self._looked_at, self._computed = worked, now, computed
        self._full = self._full + 1 if is_known and sum(busy) >= FULL_LOAD * count and computing < FULL_CPU else 0
        self._resting = self._resting + 1 if is_known and sum(busy) < LOW_LOAD * (count - 1) else 0
        if self._full >= LOOKS_TO_GROW and count < self._most:
            self._full = 0
            return count + 1
        if self._resting >= LOOKS_TO_SHRINK:
            self._resting = 0
            return count - 1
        return count


class Growth:
    """The decision, each second, whether another number of shares is opened.

    Attributes:
        fixed: so many, whatever the load; None where load decides.
        is_opening: others are being opened, and nothing is decided meanwhile.
    """

    def __init__(self, load: Load, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.is_opening = False
        self._load = load
        self._try_at = 0.0
        self._told = ""

    def look(self, worked: list[float], now: float, computed: float) -> int | None:
        """Return the number of shares to open now; None where it stays as it is."""
        if self.is_opening:
            return None
        wanted = self.fixed or self._load.wanted(worked, now, computed)
        if wanted == len(worked) or now < self._try_at:
            return None
        self.is_opening = True
        return wanted

    def opened(self) -> None:
        """All of them are open."""
        self.is_opening, self._told = False, ""

    def failed(self, why: str, now: float) -> bool:
        """Wait a minute before the next try. Returns whether the reason is news."""
        self.is_opening = False
        self.rest(now)
        is_news, self._told = why != self._told, why
        return is_news

    def rest(self, now: float) -> None:
        """Open no others for a minute."""
        self._try_at = now + RETRY_INTERVAL_S

    def begin(self, load: Load) -> None:
        """Begin with one share. What could not be had is tried no sooner for that."""
        self.is_opening, self._load = False, load
