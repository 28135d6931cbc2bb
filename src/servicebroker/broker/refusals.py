"""Refusals since the last look, by this instance or by its peers: counted and bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from servicebroker.engine.remote.refusals import MAX_ROWS, RefusalKey
from servicebroker.model.remedies import REMEDIES
from servicebroker.model.wording import cleaned
from servicebroker.protocol.budgets import DEFAULT, OVER_BUDGET

REACHED_RETENTION_S = 3_600.0  # as long as doctor reports a refusal
OTHERS = "others"  # peers that are too many to be told apart


class Refusals:
    """Counts of refusals, noted from any thread. Only errors with advice in `REMEDIES` count; a duplicate does not."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._found: dict[RefusalKey, tuple[int, str]] = {}
        self._reached: dict[str, dict[str, float]] = {}  # by peer: what was said of its budgets, and when last

    def note(self, what: RefusalKey, text: str) -> None:
        """Count a refusal."""
        if what.number not in REMEDIES:
            return
        with self._lock:
            if what not in self._found and len(self._found) >= MAX_ROWS:
                what = what._replace(peer=OTHERS)
            times, _ = self._found.get(what, (0, ""))
            if what.number == OVER_BUDGET:
                text = self._all_reached(what.peer, text)
            self._found[what] = times + 1, cleaned(text)

    def _all_reached(self, peer: str, text: str) -> str:
        """Return the sentences about all budgets that a peer has reached lately: one row has room for the last only."""
        now = self._seconds()
        if len(self._reached) > MAX_ROWS:
            self._reached.clear()
        sentences = {one: at for one, at in self._reached.get(peer, {}).items() if at > now - REACHED_RETENTION_S}
        self._reached[peer] = sentences | {text: now}
        return " ".join(list(self._reached[peer])[-len(DEFAULT) :])

    def take(self) -> dict[RefusalKey, tuple[int, str]]:
        """Return the counts since the last call, each with its latest text."""
        with self._lock:
            taken, self._found = self._found, {}
            return taken
