"""Operations to list and cancel delayed messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model.arguments import check_handle
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import DelayedMessage
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Operation
from servicebroker.overriding import override


@dataclass(frozen=True, slots=True)
class DelayedMessages(Operation[list[DelayedMessage]]):
    """List delayed messages, and the messages queued behind them on their conversations, ordered by due time.

    Args:
        handle: a conversation; None for all conversations of the database.

    Raises:
        BrokerError: 5011 without a handle, the list requires db_owner; 8494 no SEND on this side's service; 402
            `handle` is not a handle.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    handle: UUID | None = None

    def check(self) -> None:
        """Refuse an invalid handle.

        Raises:
            BrokerError: 402 the handle is not a UUID.
        """
        if self.handle is not None:
            check_handle(self.handle)


@dataclass(frozen=True, slots=True)
class CancelDelayed(Operation[int]):
    """Cancel delayed messages of a conversation: they are never delivered.

    Later messages of the conversation get lower sequence numbers, without a gap.

    Args:
        handle: the conversation.
        number: the sequence number of a message that is delayed or queued behind a delayed one; None for all delayed
            messages of the conversation.

    Returns:
        The number of cancelled messages: 0 if none of them was waiting any more.

    Raises:
        BrokerError: 8426 no such conversation, 8494 no SEND on this side's service, 8418 the handle is missing, 402 an
            invalid handle or number.
    """

    permission: ClassVar[str] = "SEND"

    handle: UUID
    number: int | None = None

    @override
    @property
    def handles(self) -> Sequence[UUID]:
        """The conversation."""
        return [self.handle]

    def check(self) -> None:
        """Refuse an invalid handle or number.

        Raises:
            BrokerError: 8418 the handle is missing, 402 an invalid handle or number.
        """
        check_handle(self.handle)
        number = self.number
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63):
            raise BrokerError(402, "number", short_repr(number), "the sequence number of a message")
