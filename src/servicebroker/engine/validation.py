"""What the receiving side says of a message, with its own definition of the message type (reference 02 section 12)."""

from __future__ import annotations

from servicebroker.engine.catalog import Usages
from servicebroker.engine.endpoints import Endpoint
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import validation_failure


def rejection(
    sender: Endpoint, far: Usages, message_type: str, number: int, content: bytes | None
) -> BrokerError | None:
    """Why the peer of `sender` does not take the message with this sequence number, None when it does."""
    usage = far.get(message_type)
    if usage is None:
        return BrokerError(8498, message_type)
    problem = validation_failure(usage.validation, content)
    if problem is None:
        return None
    if usage.validation == "E":
        return BrokerError(8430)
    return BrokerError(9615, message_type, problem, sender.conversation_id, int(sender.is_initiator), number)
