"""The interface between the relay and the network: links, and received frames."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import Address


class Link(Protocol):
    """An online connection to a peer. Its methods may be called from any thread."""

    @property
    def owner(self) -> str:
        """The owner of the peer's certificate; NOBODY if it has shown none."""

    @property
    def room(self) -> int:
        """The bytes that the link accepts now, before they would pile up."""

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Send the body of a DIALOG frame, or of a FORWARDED one. A closed link drops it."""

    def complain(self) -> None:
        """Count a useless frame of the peer."""

    def refused(self, number: int, text: str) -> None:
        """Count a refused message of the peer, with the reason for `doctor`."""

    def opened(self) -> None:
        """Count a conversation that the peer has begun."""

    def charge(self, seconds: float) -> None:
        """Charge the peer for seconds of the last round."""


class Links(Protocol):
    """The connections of an instance."""

    def reach(self, address: Address) -> Link | str:
        """Return the link to an address. Without one, have it opened, and return why there is none yet."""

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Ask the broker at an address whether it is the principal. The answer is an event."""


class Arrival(NamedTuple):
    """The body of a DIALOG frame, or of a FORWARDED one, and its link."""

    link: Link
    body: bytes
    is_forwarded: bool = False
