"""The number of shares (partitions of the daemon's conversations): it grows and shrinks with the load."""

from __future__ import annotations

FULL_LOAD = 0.6  # average part of the time in rounds from which on a share is added
FULL_CPU = 0.8  # part of a core that this process uses, above which more threads would only wait for each other
LOW_LOAD = 0.55  # average part of the time in rounds, if there were one share less, below which one is removed
POLLS_TO_GROW, POLLS_TO_SHRINK = 3, 10  # polls in a row, one each second, until the number changes
RETRY_INTERVAL_S = 60.0  # seconds until the next attempt after a failure to open shares


class Load:
    """The wanted number of shares, from the load of the present ones.

    `most` is the maximum. Shares `in_processes` do not compete for this process's core.
    """

    def __init__(self, most: int, now: float, computed: float, *, in_processes: bool = False) -> None:
        self._most = most
        self._in_processes = in_processes
        self._before: list[float] = []
        self._polled_at, self._computed = now, computed
        self._full = self._resting = 0  # polls in a row with full load, and with little

    def wanted(self, worked: list[float], now: float, computed: float) -> int:
        """Return the number of shares to have from now on.

        `worked`: the total seconds in rounds of each share. `computed`: the CPU seconds of this process.
        """
        count = len(worked)
        elapsed = max(now - self._polled_at, 1e-6)
        busy = [(seconds - before) / elapsed for seconds, before in zip(worked, self._before, strict=False)]
        computing = 0.0 if self._in_processes else (computed - self._computed) / elapsed
        is_known = len(self._before) == count
        self._before, self._polled_at, self._computed = worked, now, computed
        self._full = self._full + 1 if is_known and sum(busy) >= FULL_LOAD * count and computing < FULL_CPU else 0
        self._resting = self._resting + 1 if is_known and sum(busy) < LOW_LOAD * (count - 1) else 0
        if self._full >= POLLS_TO_GROW and count < self._most:
            self._full = 0
            return count + 1
        if self._resting >= POLLS_TO_SHRINK:
            self._resting = 0
            return count - 1
        return count


class Growth:
    """The decision, each second, whether to open another number of shares.

    Attributes:
        fixed: the configured number; None if the load decides.
        is_opening: shares are being opened; nothing is decided meanwhile.
    """

    def __init__(self, load: Load, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.is_opening = False
        self._load = load
        self._try_at = 0.0
        self._told = ""

    def wanted_now(self, worked: list[float], now: float, computed: float) -> int | None:
        """Return the number of shares to open now; None if the number stays."""
        if self.is_opening:
            return None
        wanted = self.fixed or self._load.wanted(worked, now, computed)
        if wanted == len(worked) or now < self._try_at:
            return None
        self.is_opening = True
        return wanted

    def opened(self) -> None:
        """Record that all shares are open."""
        self.is_opening, self._told = False, ""

    def failed(self, why: str, now: float) -> bool:
        """Record that shares could not be opened, and wait a minute. Returns whether the reason is new, to log it."""
        self.is_opening = False
        self.rest(now)
        is_news, self._told = why != self._told, why
        return is_news

    def rest(self, now: float) -> None:
        """Change nothing for `RETRY_INTERVAL_S`."""
        self._try_at = now + RETRY_INTERVAL_S

    def begin(self, load: Load) -> None:
        """Begin with one share. A pause after a failure continues."""
        self.is_opening, self._load = False, load
