"""Refusals by this instance and by its peers since the last save, counted in bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from servicebroker.engine.remote.refusals import MAX_ROWS, RefusalKey
from servicebroker.model.remedies import REMEDIES
from servicebroker.model.wording import cleaned
from servicebroker.protocol.budgets import DEFAULT, OVER_BUDGET

REACHED_RETENTION_S = 3_600.0  # seconds for which doctor reports a refusal
OTHERS = "others"  # the peer to which refusals are added when there are too many peers


class Refusals:
    """Counts of refusals; thread-safe. Only errors with advice in `REMEDIES` are counted."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: dict[RefusalKey, tuple[int, str]] = {}
        self._reached: dict[str, dict[str, float]] = {}  # peer -> sentence about a used-up budget -> its last time

    def note(self, key: RefusalKey, text: str) -> None:
        """Count a refusal."""
        if key.number not in REMEDIES:
            return
        with self._lock:
            if key not in self._found and len(self._found) >= MAX_ROWS:
                key = key._replace(peer=OTHERS)
            times, _ = self._found.get(key, (0, ""))
            if key.number == OVER_BUDGET:
                text = self._all_reached(key.peer, text)
            self._found[key] = times + 1, cleaned(text)

    def _all_reached(self, peer: str, text: str) -> str:
        """Return the sentences about all budgets that a peer has used up lately. The row keeps only the last text."""
        now = self._seconds()
        if len(self._reached) > MAX_ROWS:
            self._reached.clear()
        sentences = {
            sentence: at for sentence, at in self._reached.get(peer, {}).items() if at > now - REACHED_RETENTION_S
        }
        self._reached[peer] = sentences | {text: now}
        return " ".join(list(self._reached[peer])[-len(DEFAULT) :])

    def take(self) -> dict[RefusalKey, tuple[int, str]]:
        """Return the counts since the last call, each with its latest text."""
        with self._lock:
            counts, self._found = self._found, {}
            return counts
