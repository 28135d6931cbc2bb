"""What the receiving side says of a message, with its own definition of the message type (reference 02 section 12)."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.catalog import Usage, Usages
from servicebroker.engine.endpoints import Endpoint
from servicebroker.model.errors import BrokerError
from servicebroker.model.xml import validation_failure
from servicebroker.store.statements import Statement, Steps


class Rejection(NamedTuple):
    """The Error that each side gets for a message that the receiver does not take."""

    to_sender: BrokerError
    to_receiver: BrokerError


def accepts(usage: Usage | None, is_initiator: bool, content: bytes | None) -> bool:
    """Whether the receiver, who has `usage` for the message type, takes this from an initiator or a target."""
    return (
        usage is not None
        and usage.allows(is_initiator)
        and validation_failure(usage.validation, content, usage.schemas) is None
    )


def rejection(
    sender: Endpoint, far: Usages, message_type: str, number: int, content: bytes | None
) -> Steps[Rejection | None]:
    """Why the peer of `sender` does not take the message with this sequence number, None when it does."""
    usage = far.get(message_type)
    if usage is None:
        known = yield Statement(
            "select from servicebroker.message_types where database_id = $1 and name = $2",
            (sender.far_database_id, message_type),
        )
        return _both(BrokerError(8498 if known else 8428, message_type))
    if not usage.allows(sender.is_initiator):
        return _both(BrokerError(8457 if sender.is_initiator else 8437, message_type))
    problem = validation_failure(usage.validation, content, usage.schemas)
    if problem is None:
        return None
    where = (sender.conversation_id, int(sender.is_initiator), number)
    if usage.validation == "E":
        return Rejection(BrokerError(8430), BrokerError(8499, message_type, *where))
    said = BrokerError(9616, message_type, problem, *where)
    return Rejection(BrokerError(9615, message_type, problem, *where) if sender.is_initiator else said, said)


def _both(error: BrokerError) -> Rejection:
    return Rejection(error, error)
