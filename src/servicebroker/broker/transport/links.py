"""The interface between the relay and the network: links, and the frames that they bring."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from servicebroker.protocol.mirroring import Known
from servicebroker.protocol.routing import Address


class Link(Protocol):
    """An online connection to a peer. Its methods may be called from any thread."""

    @property
    def owner(self) -> str:
        """The owner of the peer's certificate; NOBODY if it has shown none."""

    @property
    def room(self) -> int:
        """Return how many bytes it takes now without piling them up."""

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Send the body of a DIALOG frame, or of a FORWARDED one. A closed link drops it."""

    def complain(self) -> None:
        """Count a frame of the peer that was for nothing."""

    def refused(self, number: int, text: str) -> None:
        """Count a message of the peer that was refused, with the reason: doctor shows it."""

    def opened(self) -> None:
        """Count a conversation that the peer has begun."""

    def charge(self, seconds: float) -> None:
        """Charge the peer for seconds of the last round."""


class Links(Protocol):
    """The connections of an instance."""

    def reach(self, address: Address) -> Link | str:
        """The link to an address, or why there is none yet; asking has it opened."""

    def ask(self, address: Address, known: Known) -> None:
        """Ask the broker at that address whether it is the principal. The answer comes as an event."""


class Arrival(NamedTuple):
    """The body of a DIALOG frame, or of a FORWARDED one, and the link that brought it."""

    link: Link
    body: bytes
    is_forwarded: bool = False
