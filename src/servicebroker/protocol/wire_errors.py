"""The only errors that a decoder may raise: the bytes are hostile until parsed."""

from __future__ import annotations

from servicebroker.model.errors import BrokerError


class WireError(BrokerError):
    """The error for bytes that no broker of this program sends. The stream is unreadable: close it."""


class CorruptedMessage(BrokerError):
    """The error for one message that was corrupted on the way, or is invalid: drop it without acknowledgement.

    It becomes the event Broker:Corrupted Message.
    """


class Undeliverable(CorruptedMessage):
    """The error for one intact message that no local endpoint can accept. A subclass, because callers drop both alike.

    It becomes the event Broker:Message Undeliverable.
    """
