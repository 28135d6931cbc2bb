"""A fair queue of senders: by priority, round robin among equals, without starvation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

MAX_TURNS_WAITED = 16  # turns; one of them goes to the sender that has waited longest, whatever its priority

Key = TypeVar("Key", bound=Hashable)


class Turn(NamedTuple, Generic[Key]):
    """The next sender. `is_elevated`: it was chosen because of its long wait (StarvationElevation)."""

    key: Key
    is_elevated: bool


class FairQueue(Generic[Key]):
    """The senders with work. One turn is one frame; a sender with more to send is added again.

    So the fragments of a large message take turns with all other messages. If HONOR_BROKER_PRIORITY is off, add with
    priority 5.
    """

    __slots__ = ("_classes", "_elevated", "_turn")

    def __init__(self) -> None:
        self._classes: dict[int, OrderedDict[Key, int]] = {}  # priority -> key -> the turn it was added at
        self._turn = 0
        self._elevated = 0  # the last turn of a sender that was chosen because of its long wait

    def __len__(self) -> int:
        return sum(map(len, self._classes.values()))

    def add(self, key: Key, priority: int) -> None:
        """Add a sender after the others of its priority (1 to 10). A second call changes nothing."""
        self._classes.setdefault(priority, OrderedDict()).setdefault(key, self._turn)

    def discard(self, key: Key) -> None:
        """Remove a sender, if it is in the queue."""
        for priority in list(self._classes):
            if self._classes[priority].pop(key, None) is not None:
                self._forget_if_empty(priority)

    def take(self) -> Turn[Key] | None:
        """Return the next sender; None if nobody waits."""
        if not self._classes:
            return None
        self._turn += 1
        best = max(self._classes)
        chosen = self._starving() if len(self._classes) > 1 else None
        if chosen is not None:
            self._elevated = self._turn
        priority = best if chosen is None else chosen
        key, _ = self._classes[priority].popitem(last=False)
        self._forget_if_empty(priority)
        return Turn(key, priority < best)

    def _starving(self) -> int | None:
        """Return the priority that has waited longest, if it has waited long enough to go first."""
        if self._turn - self._elevated < MAX_TURNS_WAITED:
            return None
        since, priority = min((next(iter(senders.values())), priority) for priority, senders in self._classes.items())
        return priority if self._turn - since >= MAX_TURNS_WAITED else None

    def _forget_if_empty(self, priority: int) -> None:
        if not self._classes[priority]:
            del self._classes[priority]
