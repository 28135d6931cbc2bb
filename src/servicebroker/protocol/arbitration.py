"""One connection for each pair of peers: of two, both sides let the same one go.

Two instances may open to each other at the same moment. A peer that has lost a connection opens a new one while this
side still believes in the old. docs/decisions/052 says how the moments tell these apart. A peer is the seat of an
owner: whoever greets under somebody else's seat, with a certificate of its own, is another peer (decision 150).
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from servicebroker.model.security.peers import NOBODY, Peer
from servicebroker.protocol.adjacent import Hello, Online

Key = TypeVar("Key")


class _Link(NamedTuple, Generic[Key]):
    """A connection with the moments at which each side opened or welcomed it."""

    key: Key
    is_opener: bool
    own_moment: int
    incarnation: UUID
    peer_moment: int


class Arbiter(Generic[Key]):
    """The connections of one seat that are online, one for each peer; the caller names each by a key of its own.

    `owner` is whose certificate the peer has shown.
    """

    def __init__(self, seat: UUID) -> None:
        self.seat = seat
        self._moment = 0
        self._online: dict[Peer, _Link[Key]] = {}

    def moment(self) -> int:
        """The moment of an opening or a welcome: a count of them."""
        self._moment += 1
        return self._moment

    def find(self, peer: Peer) -> Key | None:
        """The connection with a peer."""
        link = self._online.get(peer)
        return None if link is None else link.key

    def greeted(self, hello: Hello, owner: str = NOBODY) -> int:
        """A peer has greeted: 0 to welcome it, or 28032 to reject it with."""
        if hello.seat == self.seat:
            return 28032
        link = self._online.get(Peer(owner, hello.seat))
        new = _Link(None, False, self._moment + 1, hello.incarnation, hello.moment)
        return 0 if link is None or self._wins(new, link, hello.seat) else 28032

    def online(self, key: Key, event: Online, *, is_opener: bool, moment: int, owner: str = NOBODY) -> Key | None:
        """A connection is online; `moment` is our own of it. Returns which to close with 28033: another, or itself."""
        peer = Peer(owner, event.seat)
        link = self._online.get(peer)
        new = _Link(key, is_opener, moment, event.incarnation, event.moment)
        if link is not None and not self._wins(new, link, event.seat):
            return key
        self._online[peer] = new
        return None if link is None else link.key

    def gone(self, key: Key) -> None:
        """A connection is over."""
        self._online = {peer: link for peer, link in self._online.items() if link.key != key}

    def _wins(self, new: _Link[Key] | _Link[None], old: _Link[Key], peer: UUID) -> bool:
        """The same on both sides: the later one, or of two that were opened at once that of the lower seat."""
        if new.incarnation != old.incarnation or new.is_opener == old.is_opener:
            return True
        ours, theirs = (new, old) if new.is_opener else (old, new)
        if theirs.peer_moment > ours.peer_moment:  # the peer opened its own after it had welcomed ours: it had lost it
            return theirs is new
        if ours.own_moment > theirs.own_moment:
            return ours is new
        survivor = ours if self.seat < peer else theirs
        return survivor is new
