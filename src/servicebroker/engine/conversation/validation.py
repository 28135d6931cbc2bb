"""Validation of a message by the receiving side, with its own definition of the message type.

The rules: docs/reference/rules.md#validation.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Usage, Usages
from servicebroker.engine.conversation.endpoints import Endpoint
from servicebroker.model.rejection import Rejection, invalid_body, unknown_type, wrong_direction
from servicebroker.model.xml import validation_failure
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


ANYTHING = "N"  # the validation letter of VALIDATION = NONE


class Sender(NamedTuple):
    """The sending side, and the database whose definitions decide."""

    conversation_id: UUID
    is_initiator: bool
    far_database_id: int


def sender_of(endpoint: Endpoint) -> Sender:
    """Return the sender for an endpoint whose peer is in this instance."""
    return Sender(endpoint.conversation_id, endpoint.is_initiator, endpoint.far_database_id)


def accepts(usage: Usage | None, is_initiator: bool, content: bytes | None) -> bool:
    """Check whether a receiver with this `usage` of the message type takes the content from that side."""
    if usage is None or not (usage.by_initiator if is_initiator else usage.by_target):
        return False
    return usage.validation == ANYTHING or validation_failure(usage.validation, content, usage.schemas) is None


def rejection(
    sender: Sender, far: Usages, message_type: str, number: int, content: bytes | None
) -> Steps[Rejection | None]:
    """Return the reason why the peer of `sender` refuses the message with this sequence number; None if it takes it."""
    usage = far.get(message_type)
    if usage is None:
        known = yield SQL("rejection", (sender.far_database_id, message_type))
        return unknown_type(message_type, is_known=bool(known))
    if not usage.allows(sender.is_initiator):
        return wrong_direction(message_type, from_initiator=sender.is_initiator)
    return invalid_body(
        message_type,
        usage.validation,
        content,
        sender.conversation_id,
        number,
        from_initiator=sender.is_initiator,
        schemas=usage.schemas,
    )
