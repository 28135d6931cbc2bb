"""The session keys of a conversation, and the key for each frame.

The initiator creates the first key and wraps it for the target. In full security the target answers with a second key
for its own messages. Anonymous security has one key for both directions. Acknowledgements and failures, which the
broker itself sends, are sealed with the first key, which both sides have from the first message on.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from servicebroker.protocol.envelope import Header, Kind
from servicebroker.protocol.integrity import CHECKSUM, Protection
from servicebroker.protocol.wire_errors import CorruptedMessage


class SessionKeys(NamedTuple):
    """The keys of one conversation. `has_second`: full security. `second` is None until the target has answered."""

    first: Protection
    second: Protection | None = None
    has_second: bool = False

    def of(self, header: Header) -> Protection:
        """Return the protection that seals a frame with this header.

        Raises:
            CorruptedMessage: 11254 the key is not known yet.
        """
        if header.is_from_initiator or not self.has_second or header.kind not in (Kind.RUN, Kind.FRAGMENT):
            return self.first
        if self.second is None:
            raise CorruptedMessage(11254)
        return self.second


UNSECURED = SessionKeys(CHECKSUM)


def bound(header: Header, key_id: UUID) -> bytes:
    """Return the bytes that bind a key exchange to this conversation, these services and this direction."""
    parts = [key_id.bytes, header.conversation_id.bytes, header.from_broker.bytes, bytes([header.is_from_initiator])]
    for text in (header.from_service, header.to_service):
        parts += [len(text.encode()).to_bytes(2, "big"), text.encode()]
    return b"".join(parts)
