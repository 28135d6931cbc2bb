"""The measured time of a round, by who has brought what it went to.

What a stranger brings may take longer than its number of frames says: messages with many gaps, for instance. So time is
measured where it depends on what was brought, and told to the link; the inbox then lets that peer rest as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from uuid import UUID

from servicebroker.broker.links import Link

LEAST_S = 0.0005  # of a link in a round: the inbox divides what is less among all by their frames


class Charges:
    """What the round that runs has taken for each link."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._of_link: defaultdict[Link, float] = defaultdict(float)
        self._brought_by: dict[UUID, Link] = {}

    def begin(self) -> None:
        """Begin another round."""
        self._of_link.clear()
        self._brought_by.clear()

    def note_bringer(self, handle: UUID, link: Link) -> None:
        """Charge that link for the conversation, in this round."""
        self._brought_by[handle] = link

    def charge(self, link: Link, since: float) -> None:
        """Charge a link for the time since then."""
        self._of_link[link] += self._seconds() - since

    def charge_for(self, handle: UUID, since: float) -> None:
        """Charge whoever has brought something for that conversation in this round, if anybody has."""
        if (link := self._brought_by.get(handle)) is not None:
            self.charge(link, since)

    def tell(self) -> None:
        """Tell the links, at the end of the round."""
        for link, seconds in self._of_link.items():
            if seconds >= LEAST_S:
                link.charge(seconds)
