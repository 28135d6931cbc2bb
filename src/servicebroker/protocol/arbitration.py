"""The choice between two connections with one peer: both sides keep the same one and close the other.

**The problem.** Two daemons may connect to each other at the same time. Or a peer has lost a connection and opens a new
one, while this side has not noticed the loss. In the first case either connection may survive, if both sides choose
alike. In the second case the new connection must win.

**The rule.** Each side counts the connections that it opens or accepts, and sends the count in its greeting (the
connection number). A connection that was opened after the old one was accepted is a replacement, and wins. Of two
connections that were opened at the same time, that of the daemon with the lower `daemon_id` wins.

`daemon_id` is the UUID of a daemon's instance, host and server. A peer is a daemon_id together with the owner of its
certificate. So a stranger that sends the daemon_id of another owner is a different peer, and replaces nothing
(decision 150).
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from servicebroker.model.security.peers import NOBODY, Peer
from servicebroker.protocol.adjacent import Hello, Online

Key = TypeVar("Key")


class _Link(NamedTuple, Generic[Key]):
    """A connection, with the number that each side has given it."""

    key: Key
    is_opener: bool
    local_number: int
    incarnation: UUID
    peer_number: int


class Arbiter(Generic[Key]):
    """The established connections of this daemon, one for each peer. The caller chooses the keys.

    `daemon_id` identifies this daemon. `owner` is the owner of the peer's certificate.
    """

    def __init__(self, daemon_id: UUID) -> None:
        self.daemon_id = daemon_id
        self._connection_number = 0
        self._online: dict[Peer, _Link[Key]] = {}

    def count_connection(self) -> int:
        """Count a connection that is opened or accepted. Returns its number."""
        self._connection_number += 1
        return self._connection_number

    def find(self, peer: Peer) -> Key | None:
        """Return the connection with a peer, or None."""
        link = self._online.get(peer)
        return None if link is None else link.key

    def greeted(self, hello: Hello, owner: str = NOBODY) -> int:
        """Return 0 to accept the peer that sent this HELLO, or 28032, the error to reject it with."""
        if hello.daemon_id == self.daemon_id:
            return 28032
        link = self._online.get(Peer(owner, hello.daemon_id))
        new = _Link(None, False, self._connection_number + 1, hello.incarnation, hello.connection_number)
        return 0 if link is None or self._wins(new, link, hello.daemon_id) else 28032

    def online(
        self, key: Key, event: Online, *, is_opener: bool, connection_number: int, owner: str = NOBODY
    ) -> Key | None:
        """Record an established connection. `connection_number` is this side's number for it.

        Returns the connection to close with error 28033: the replaced one, this one, or None.
        """
        peer = Peer(owner, event.daemon_id)
        link = self._online.get(peer)
        new = _Link(key, is_opener, connection_number, event.incarnation, event.connection_number)
        if link is not None and not self._wins(new, link, event.daemon_id):
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
        outgoing, incoming = (new, old) if new.is_opener else (old, new)
        if incoming.peer_number > outgoing.peer_number:  # opened after the peer accepted `outgoing`: it has lost that
            return incoming is new
        if outgoing.local_number > incoming.local_number:
            return outgoing is new
        survivor = outgoing if self.daemon_id < peer else incoming
        return survivor is new
