"""The choice between two connections with one peer: both sides keep the same one and close the other.

**The problem.** Two daemons may connect to each other at the same time. Or a peer has lost a connection and opens a new
one, while this side has not noticed the loss. In the first case any of the two will do, if both sides choose the same;
in the second case the new one must win.

**The rule.** Each side counts its openings and welcomes; such a count is a moment, and the greeting carries it. A
connection that was opened after the other one was welcomed is a replacement, and wins. Of two connections that were
opened at once, the one of the lower seat wins.

A seat is the UUID of a daemon's instance, host and server. A peer is a seat with the owner of its certificate. So a
stranger that greets under the seat of another owner is a different peer, and replaces nothing (decision 150).
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from servicebroker.model.security.peers import NOBODY, Peer
from servicebroker.protocol.adjacent import Hello, Online

Key = TypeVar("Key")


class _Link(NamedTuple, Generic[Key]):
    """A connection with the moments (counts) at which each side opened or welcomed it."""

    key: Key
    is_opener: bool
    own_moment: int
    incarnation: UUID
    peer_moment: int


class Arbiter(Generic[Key]):
    """The established connections of this daemon, one for each peer. Keys are chosen by the caller.

    `seat` is that of this daemon. `owner` is the owner of the certificate that the peer has shown.
    """

    def __init__(self, seat: UUID) -> None:
        self.seat = seat
        self._moment = 0
        self._online: dict[Peer, _Link[Key]] = {}

    def moment(self) -> int:
        """Count an opening or a welcome, and return the count."""
        self._moment += 1
        return self._moment

    def find(self, peer: Peer) -> Key | None:
        """Return the connection with a peer, or None."""
        link = self._online.get(peer)
        return None if link is None else link.key

    def greeted(self, hello: Hello, owner: str = NOBODY) -> int:
        """Judge the greeting of a peer. Return 0 to welcome it, or 28032, the error to reject it with."""
        if hello.seat == self.seat:
            return 28032
        link = self._online.get(Peer(owner, hello.seat))
        new = _Link(None, False, self._moment + 1, hello.incarnation, hello.moment)
        return 0 if link is None or self._wins(new, link, hello.seat) else 28032

    def online(self, key: Key, event: Online, *, is_opener: bool, moment: int, owner: str = NOBODY) -> Key | None:
        """Note an established connection; `moment` is our own count for it.

        Returns the connection to close with 28033: the replaced one, this one, or None.
        """
        peer = Peer(owner, event.seat)
        link = self._online.get(peer)
        new = _Link(key, is_opener, moment, event.incarnation, event.moment)
        if link is not None and not self._wins(new, link, event.seat):
            return key
        self._online[peer] = new
        return None if link is None else link.key

    def gone(self, key: Key) -> None:
        """Forget a closed connection."""
        self._online = {peer: link for peer, link in self._online.items() if link.key != key}

    def _wins(self, new: _Link[Key] | _Link[None], old: _Link[Key], peer: UUID) -> bool:
        """Return whether the new connection wins. Both sides come to the same result, by the rule above."""
        if new.incarnation != old.incarnation or new.is_opener == old.is_opener:
            return True
        ours, theirs = (new, old) if new.is_opener else (old, new)
        if theirs.peer_moment > ours.peer_moment:  # opened after the peer had welcomed ours, so the peer has lost ours
            return theirs is new
        if ours.own_moment > theirs.own_moment:
            return ours is new
        survivor = ours if self.seat < peer else theirs
        return survivor is new
