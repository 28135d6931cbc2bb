"""Refusals of a message by its receiver (docs/reference/rules.md#validation)."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from servicebroker.model.errors import BrokerError
from servicebroker.model.xml import SchemaCollection, validation_failure


class Rejection(NamedTuple):
    """The Errors for both sides of the conversation."""

    to_sender: BrokerError
    to_receiver: BrokerError


def on_both_sides(error: BrokerError) -> Rejection:
    """Return the same Error for both sides."""
    return Rejection(error, error)


def unknown_type(message_type: str, *, is_known: bool) -> Rejection:
    """Refuse a message type that the receiver's contract lacks; `is_known`: its database has the type."""
    return on_both_sides(BrokerError(8498 if is_known else 8428, message_type))


def wrong_direction(message_type: str, *, from_initiator: bool) -> Rejection:
    """Refuse a message type that the receiver's contract lets only the other side send."""
    return on_both_sides(BrokerError(8457 if from_initiator else 8437, message_type))


def invalid_body(
    message_type: str,
    validation: str,
    body: bytes | None,
    conversation_id: UUID,
    number: int,
    *,
    from_initiator: bool,
    schemas: SchemaCollection | None = None,
) -> Rejection | None:
    """Return the refusal of a body that fails the receiver's VALIDATION, None if it passes."""
    problem = validation_failure(validation, body, schemas)
    if problem is None:
        return None
    where = (conversation_id, int(from_initiator), number)
    if validation == "E":
        return Rejection(BrokerError(8430), BrokerError(8499, message_type, *where))
    receiver_error = BrokerError(9616, message_type, problem, *where)
    return Rejection(
        BrokerError(9615, message_type, problem, *where) if from_initiator else receiver_error, receiver_error
    )
