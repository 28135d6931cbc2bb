"""MOVE CONVERSATION."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class MoveConversation(Operation[None]):
    """MOVE CONVERSATION to another group of the same service; its messages in the queue go with it.

    Both groups are locked until the transaction ends.

    Args:
        handle: the conversation.
        group: the conversation group to move it to, which exists.

    Raises:
        BrokerError: 8426 no such conversation, 8436 no such group, 8439 it is one of another service, 8438 the
            conversation has ended or failed, 8494 no permission, 8418 and 8420 an argument is missing.
    """

    permission: ClassVar[str] = "MOVE CONVERSATION"

    handle: UUID
    group: UUID

    @property
    def handles(self) -> Sequence[UUID]:
        """The conversation."""
        return [self.handle]

    def check(self) -> None:
        """Refuse invalid arguments.

        Raises:
            BrokerError: 8418 and 8420 missing handle or group, 402 another type.
        """
        if self.handle is None:
            raise BrokerError(8418)
        if self.group is None:
            raise BrokerError(8420)
        for kind, given in (("conversation handle", self.handle), ("conversation group", self.group)):
            if not isinstance(given, UUID):
                raise BrokerError(402, f"the {kind}", type(given).__name__, "uuid.UUID")
