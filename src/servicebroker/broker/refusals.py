"""Refusals since the last look, by this instance or by its peers: counted and bounded."""

from __future__ import annotations

import threading

from servicebroker.engine.remote.refusals import MAX_ROWS, Refusal
from servicebroker.model.remedies import REMEDIES
from servicebroker.model.wording import cleaned

OTHERS = "others"  # peers that are too many to be told apart


class Refusals:
    """From any thread. What is the ordinary life of messages, as a duplicate, is none; `REMEDIES` has what is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Refusal, tuple[int, str]] = {}

    def note(self, what: Refusal, text: str) -> None:
        """One more."""
        if what.number not in REMEDIES:
            return
        with self._lock:
            if what not in self._found and len(self._found) >= MAX_ROWS:
                what = what._replace(peer=OTHERS)
            times, _ = self._found.get(what, (0, ""))
            self._found[what] = times + 1, cleaned(text)

    def take(self) -> dict[Refusal, tuple[int, str]]:
        """Return the counts since the last call, each with its latest text."""
        with self._lock:
            taken, self._found = self._found, {}
            return taken
