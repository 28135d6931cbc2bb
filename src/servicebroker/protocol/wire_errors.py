"""The only errors that a decoder may raise: the bytes are hostile until parsed."""

from __future__ import annotations

from servicebroker.model.errors import BrokerError


class WireError(BrokerError):
    """Bytes that no broker of ours sends. The stream they came from cannot be read any further: close it."""


class CorruptedMessage(BrokerError):
    """One message was changed on its way, or never was one: drop it, acknowledge nothing, and go on.

    It becomes the event Broker:Corrupted Message.
    """


class Undeliverable(CorruptedMessage):
    """One message arrived as it was sent, and no endpoint here can take it: drop it as well.

    It becomes the event Broker:Message Undeliverable.
    """
