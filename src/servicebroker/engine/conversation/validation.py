"""Validation of a message with the definition of its message type in the receiver's database.

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


ANYTHING = "N"  # the validation code of VALIDATION = NONE


class Sender(NamedTuple):
    """The sending side of a conversation, and the database of the receiver, whose definitions decide."""

    conversation_id: UUID
    is_initiator: bool
    peer_database_id: int


def sender_of(endpoint: Endpoint) -> Sender:
    """Return the sender for an endpoint whose peer is in this instance."""
    return Sender(endpoint.conversation_id, endpoint.is_initiator, endpoint.peer_database_id)


def accepts(usage: Usage | None, is_initiator: bool, content: bytes | None) -> bool:
    """Check whether a receiver whose contract has this `usage` of the message type accepts the body from that side."""
    if usage is None or not (usage.by_initiator if is_initiator else usage.by_target):
        return False
    return usage.validation == ANYTHING or validation_failure(usage.validation, content, usage.schemas) is None


def rejection(
    sender: Sender, peer_usages: Usages, message_type: str, number: int, content: bytes | None
) -> Steps[Rejection | None]:
    """Return the reason why the receiver refuses a message; None if it accepts the message.

    `peer_usages` is the contract in the receiver's database, `number` the message's sequence number.
    """
    usage = peer_usages.get(message_type)
    if usage is None:
        rows = yield SQL("rejection", (sender.peer_database_id, message_type))
        return unknown_type(message_type, is_known=bool(rows))
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
