"""The waits between rounds: listen while little happens, poll under load."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

ROUND_PAUSE_S = 0.02  # seconds between consecutive rounds: one round carries many small transactions
BUSY_MESSAGES = 8  # messages from which on a round counts as busy
POLL_INTERVAL_S = 1.0  # seconds between the polls of an idle share
FIRST_POLL_S = 0.01  # seconds until the first poll of a wait: a SEND that began before may send no NOTIFY
PAUSE_GROWTH = 5  # factor from one pause to the next
ROUNDS_UNTIL_POLLING = 4  # busy rounds in a row before polling starts; as many quiet ones stop it


class Wait(NamedTuple):
    """The wait before the next round. `is_interruptible`: a notification or a received message ends the wait early."""

    seconds: float
    is_interruptible: bool


class Mode(StrEnum):
    """The way in which the daemon learns of a SEND."""

    LISTEN = "LISTEN"  # is notified
    POLL = "POLL"  # polls, one round after the other; senders need no NOTIFY


class DaemonPace:
    """The pace of the daemon's own share: single messages need no polling.

    For each round call `after_round`, wait, and call `waited`. `poll_interval` is in seconds; `wake_at` is the time of
    the next timer.

    Attributes:
        mode: in LISTEN, senders must NOTIFY.
    """

    def __init__(self, poll_interval: float = POLL_INTERVAL_S) -> None:
        self._poll_interval = poll_interval
        self._listen()

    def _listen(self) -> None:
        self.mode = Mode.LISTEN
        self._pause = FIRST_POLL_S
        self._rounds = 0  # LISTEN: busy rounds in a row; POLL: quiet rounds in a row

    def after_round(self, handled: int, wake_at: float, now: float) -> Wait:
        """Return the wait after a round that handled `handled` messages."""
        is_busy = handled >= BUSY_MESSAGES
        if self.mode is Mode.LISTEN:
            self._rounds = self._rounds + is_busy if handled else 0
            self._pause = FIRST_POLL_S if handled else self._pause
            return Wait(min(self._pause, max(0.0, wake_at - now)), is_interruptible=True)
        self._rounds = 0 if is_busy else self._rounds + 1
        if not handled:
            self._rounds = ROUNDS_UNTIL_POLLING  # an empty round ends polling at once
            return Wait(0.0, is_interruptible=False)
        return Wait(ROUND_PAUSE_S if wake_at > now else 0.0, is_interruptible=False)

    def waited(self, wake_at: float, now: float, *, was_woken: bool) -> None:
        """Decide on the next pause, and whether to listen or to poll from now on."""
        if self.mode is Mode.LISTEN:
            if was_woken:
                self._pause = FIRST_POLL_S
            elif wake_at > now:
                self._pause = min(self._pause * PAUSE_GROWTH, self._poll_interval)
            if self._rounds >= ROUNDS_UNTIL_POLLING:
                self.mode, self._rounds = Mode.POLL, 0
        elif self._rounds >= ROUNDS_UNTIL_POLLING:
            self._listen()


class SharePace:
    """The pace of another share: senders do not notify it, so it polls often while the daemon polls."""

    def __init__(self, poll_interval: float = POLL_INTERVAL_S) -> None:
        self._poll_interval = poll_interval
        self._pause = FIRST_POLL_S

    def after_round(self, handled: int, wake_at: float, now: float, *, is_polling: bool) -> Wait:
        """Return the wait after a round that handled `handled` messages."""
        if handled >= BUSY_MESSAGES:
            self._pause = FIRST_POLL_S
            return Wait(ROUND_PAUSE_S if wake_at > now else 0.0, is_interruptible=False)
        longest = ROUND_PAUSE_S if is_polling else self._poll_interval
        self._pause = FIRST_POLL_S if handled else min(self._pause * PAUSE_GROWTH, longest)
        return Wait(min(self._pause, max(0.0, wake_at - now)), is_interruptible=True)

    def on_wake(self) -> None:
        """Restart with the shortest pause: the wait was interrupted."""
        self._pause = FIRST_POLL_S
