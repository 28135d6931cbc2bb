"""MOVE CONVERSATION."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Operation
from servicebroker.overriding import override


@dataclass(frozen=True, slots=True)
class MoveConversation(Operation[None]):
    """MOVE CONVERSATION to another group of the same service, with its messages in the queue.

    Both groups are locked until the transaction ends.

    Args:
        handle: the conversation.
        group: the new conversation group, which must exist.

    Raises:
        BrokerError: 8426 no such conversation, 8436 no such group, 8439 the group belongs to another service, 8438 the
            conversation has ended or failed, 8494 no permission, 8418 and 8420 an argument is missing.
    """

    permission: ClassVar[str] = "MOVE CONVERSATION"

    handle: UUID
    group: UUID

    @override
    @property
    def handles(self) -> Sequence[UUID]:
        """The conversation."""
        return [self.handle]

    def check(self) -> None:
        """Refuse invalid arguments.

        Raises:
            BrokerError: 8418 and 8420 missing handle or group, 402 a wrong type.
        """
        if self.handle is None:
            raise BrokerError(8418)
        if self.group is None:
            raise BrokerError(8420)
        for kind, identifier in (("conversation handle", self.handle), ("conversation group", self.group)):
            if not isinstance(identifier, UUID):
                raise BrokerError(402, f"the {kind}", type(identifier).__name__, "uuid.UUID")
