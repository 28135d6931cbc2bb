"""Operations on dead letters ("set aside" in names): list, group, replay and discard them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar
from uuid import UUID

from servicebroker.model.arguments import OMITTED, Body, Omitted, check_count
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import is_encodable
from servicebroker.model.poison import DeadLetterGroup, SetAsideMessage
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class SetAsideMessages(Operation[list[SetAsideMessage]]):
    """List the dead letters, oldest first.

    Args:
        queue: the name of the queue, as for `receive`; None for all queues of the database.
        message_type: only messages of this type.
        error: only messages whose error contains this text, case-insensitive, or is of this kind, as
            `dead_letter_groups` returns it.
        after: only messages with a greater number, for the next page.
        limit: the maximum number of messages; None for all.

    Raises:
        BrokerError: 15151 no such queue, 402 a limit below 1, 5011 no permission: dead letters require db_owner.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str | None = None
    _: KW_ONLY
    message_type: str | None = None
    error: str | None = None
    after: int = 0
    limit: int | None = None

    def check(self) -> None:
        """Refuse invalid strings and numbers.

        Raises:
            BrokerError: 402 an invalid field.
        """
        for name, text in (("message_type", self.message_type), ("error", self.error)):
            if text is not None and (not isinstance(text, str) or "\0" in text or not is_encodable(text)):
                raise BrokerError(402, name, short_repr(text), "a str without NUL characters and lone surrogates")
        if type(self.after) is not int or self.after != 0:
            check_count("after", self.after)
        if self.limit is not None:
            check_count("limit", self.limit)


@dataclass(frozen=True, slots=True)
class DeadLetterGroups(Operation[list[DeadLetterGroup]]):
    """Count the dead letters by queue, message type and kind of error, the largest group first.

    A kind is the first line of an error, with a star for each quoted text, identifier and number.

    Args:
        queue: the name of the queue, as for `receive`; None for all queues of the database.

    Raises:
        BrokerError: 15151 no such queue, 5011 no permission.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayMessage(Operation[UUID | None]):
    """Replay a dead letter: put the message into its queue again, and remove it from the list.

    If its conversation is open on both sides, the message arrives there, after the messages in the queue. Otherwise the
    original sender, or `from_service`, sends it to the same service on a new conversation. Answers arrive in the queue
    of that sender, which must end the conversation.

    Args:
        set_aside_id: the number of the dead letter in the list.
        body: a new body. The audit records that the body was edited, and by whom, but neither body.
        from_service: the service of this database that sends the message on a new conversation. It is required if the
            conversation has ended and the sender is in another database or instance.

    Returns:
        The initiator's handle of a new conversation; None if the message is on its original conversation.

    Raises:
        BrokerError: 402 there is no dead letter of that number, or its message type refuses the body; 5011 no
            permission; as `begin_dialog`.
        InstanceError: the conversation has ended and a new one needs `from_service`, or the service refuses the
            message.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    set_aside_id: int
    _: KW_ONLY
    body: Body | Omitted = field(default=OMITTED, repr=False)
    from_service: str | None = None

    @property
    def is_edited(self) -> bool:
        """True if the message gets another body."""
        return not isinstance(self.body, Omitted)

    def check(self) -> None:
        """Refuse an invalid number.

        Raises:
            BrokerError: 402 an invalid number.
        """
        check_count("set_aside_id", self.set_aside_id)


@dataclass(frozen=True, slots=True)
class DiscardMessage(Operation[None]):
    """Discard a dead letter.

    Args:
        set_aside_id: the number of the dead letter in the list.

    Raises:
        BrokerError: 402 there is no dead letter of that number, 5011 no permission.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    set_aside_id: int

    def check(self) -> None:
        """Refuse an invalid number.

        Raises:
            BrokerError: 402 an invalid number.
        """
        check_count("set_aside_id", self.set_aside_id)
