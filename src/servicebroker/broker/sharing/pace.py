"""The waits between rounds: listen while little happens, poll under load."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

ROUND_PAUSE_S = 0.02  # seconds between rounds that follow each other: many small transactions are carried together
BUSY_MESSAGES = 8  # messages that are much to do for one round
POLL_INTERVAL_S = 1.0  # seconds: how often a share looks when nothing wakes it
FIRST_POLL_S = 0.01  # seconds until it looks again at first: a SEND that began before it slept has not notified
PAUSE_GROWTH = 5  # factor from one pause to the next
ROUNDS_UNTIL_POLLING = 4  # rounds in a row with much to do, after which the daemon polls; with less it waits for NOTIFY


class Wait(NamedTuple):
    """The wait before the next round. `hears_bell`: what comes for the share ends it."""

    seconds: float
    hears_bell: bool


class Mode(StrEnum):
    """The way in which the daemon learns of a SEND."""

    LISTEN = "LISTEN"  # is notified
    POLL = "POLL"  # looks, one round after the other; senders save the notification


class DaemonPace:
    """The pace of the daemon's own share: single messages need no polling.

    For each round call `after_round`, wait, and call `waited`. `poll_interval` is in seconds.

    Attributes:
        mode: as long as it is LISTEN, senders are to notify.
    """

    def __init__(self, poll_interval: float = POLL_INTERVAL_S) -> None:
        self._poll_interval = poll_interval
        self._listen()

    def _listen(self) -> None:
        self.mode = Mode.LISTEN
        self._pause = FIRST_POLL_S
        self._rounds = 0  # that were busy, in a row; while it polls, those that were not

    def after_round(self, carried: int, wake_at: float, now: float) -> Wait:
        """Return the wait after a round that had so many messages to carry."""
        is_busy = carried >= BUSY_MESSAGES
        if self.mode is Mode.LISTEN:
            self._rounds = self._rounds + is_busy if carried else 0
            self._pause = FIRST_POLL_S if carried else self._pause
            return Wait(min(self._pause, max(0.0, wake_at - now)), hears_bell=True)
        self._rounds = 0 if is_busy else self._rounds + 1
        if not carried:
            self._rounds = ROUNDS_UNTIL_POLLING
            return Wait(0.0, hears_bell=False)
        return Wait(ROUND_PAUSE_S if wake_at > now else 0.0, hears_bell=False)

    def waited(self, wake_at: float, now: float, *, rang: bool) -> None:
        """Decide on the next pause, and whether to listen or to poll from now on."""
        if self.mode is Mode.LISTEN:
            if rang:
                self._pause = FIRST_POLL_S
            elif wake_at > now:
                self._pause = min(self._pause * PAUSE_GROWTH, self._poll_interval)
            if self._rounds >= ROUNDS_UNTIL_POLLING:
                self.mode, self._rounds = Mode.POLL, 0
        elif self._rounds >= ROUNDS_UNTIL_POLLING:
            self._listen()


class SharePace:
    """The pace of another share: nobody notifies it, so it looks often while the daemon polls."""

    def __init__(self, poll_interval: float = POLL_INTERVAL_S) -> None:
        self._poll_interval = poll_interval
        self._pause = FIRST_POLL_S

    def after_round(self, carried: int, wake_at: float, now: float, *, is_polling: bool) -> Wait:
        """Return the wait after a round that had so many messages to carry."""
        if carried >= BUSY_MESSAGES:
            self._pause = FIRST_POLL_S
            return Wait(ROUND_PAUSE_S if wake_at > now else 0.0, hears_bell=False)
        longest = ROUND_PAUSE_S if is_polling else self._poll_interval
        self._pause = FIRST_POLL_S if carried else min(self._pause * PAUSE_GROWTH, longest)
        return Wait(min(self._pause, max(0.0, wake_at - now)), hears_bell=True)

    def rang(self) -> None:
        """Its bell has ended the wait."""
        self._pause = FIRST_POLL_S
