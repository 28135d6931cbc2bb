"""Detection of two daemons with one identity: a copy of an instance that runs beside its original.

A daemon draws a random identifier, its incarnation, when it starts. A successor sends messages only after the last one
of its predecessor. So the times in which two incarnations of one instance send do not overlap, unless one is a copy.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

OVERLAP_S = 5.0  # seconds: what was under way when a daemon was replaced comes before
MEMORY_S = 120.0  # seconds for which a daemon that brings nothing is remembered
MAX_IDENTITIES = 1_000  # identities that are remembered
MAX_DAEMONS = 4  # of one identity


class Identity(NamedTuple):
    """The identity that a daemon states, and the owner of the certificate that it has shown."""

    owner: str
    instance: UUID


class Presence(NamedTuple):
    """The address of a daemon, and the first and last time, in seconds, at which it brought messages."""

    where: str
    first: float
    last: float


class Twins:
    """The daemons that have sent messages lately."""

    def __init__(self) -> None:
        self._known: dict[Identity, dict[UUID, Presence]] = {}

    def heard(self, identity: Identity, incarnation: UUID, where: str, now: float) -> str | None:
        """Note that a daemon has sent messages. Returns the address of another one that uses the same identity now.

        The same two are told again after `OVERLAP_S` seconds.
        """
        daemons = {key: one for key, one in self._known.pop(identity, {}).items() if one.last + MEMORY_S > now}
        before = daemons.pop(incarnation, Presence(where, now, now))
        present = Presence(where, before.first, now)
        other = next((key for key, one in daemons.items() if _overlap(present, one) > OVERLAP_S), None)
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


def _overlap(one: Presence, other: Presence) -> float:
    return min(one.last, other.last) - max(one.first, other.first)
