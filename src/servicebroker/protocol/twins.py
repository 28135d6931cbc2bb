"""Detection of two daemons with one identity: a copy of an instance that runs beside its original.

A daemon draws a random identifier, its incarnation, when it starts. A successor sends messages only after the last one
of its predecessor. So the times in which two incarnations of one instance send do not overlap, unless one is a copy.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

OVERLAP_S = 5.0  # seconds of overlap that frames in flight explain when a daemon is replaced
MEMORY_S = 120.0  # seconds for which a silent daemon is kept in memory
MAX_IDENTITIES = 1_000  # identities in memory
MAX_DAEMONS = 4  # the most daemons of one identity


class Identity(NamedTuple):
    """The instance that a daemon claims to be, and the owner of its certificate."""

    owner: str
    instance: UUID


class Presence(NamedTuple):
    """The address of a daemon, and the times (seconds) of its first and last message."""

    where: str
    first: float
    last: float


class Twins:
    """The daemons that have sent messages lately."""

    def __init__(self) -> None:
        self._known: dict[Identity, dict[UUID, Presence]] = {}

    def heard(self, identity: Identity, incarnation: UUID, where: str, now: float) -> str | None:
        """Record that a daemon has sent messages. Returns the address of another daemon with its identity, or None.

        Two such daemons are reported again after `OVERLAP_S` seconds.
        """
        daemons = {key: known for key, known in self._known.pop(identity, {}).items() if known.last + MEMORY_S > now}
        before = daemons.pop(incarnation, Presence(where, now, now))
        present = Presence(where, before.first, now)
        other = next((key for key, known in daemons.items() if _overlap(present, known) > OVERLAP_S), None)
        twin = daemons[other].where if other is not None else None
        if other is not None:
            present = Presence(where, now, now)
            daemons[other] = daemons[other]._replace(first=now)
        daemons[incarnation] = present
        while len(daemons) > MAX_DAEMONS:
            del daemons[next(iter(daemons))]
        self._known[identity] = daemons
        if len(self._known) > MAX_IDENTITIES:
            del self._known[next(iter(self._known))]
        return twin


def _overlap(first: Presence, second: Presence) -> float:
    return min(first.last, second.last) - max(first.first, second.first)
