"""Dead letters, messages that were set aside for an operator: list them, group them, replay one, discard one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar
from uuid import UUID

from servicebroker.model.arguments import OMITTED, Body, Omitted, check_count
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import is_encodable
from servicebroker.model.poison import DeadLetterGroup, SetAsideMessage
from servicebroker.model.wording import shown
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class SetAsideMessages(Operation[list[SetAsideMessage]]):
    """List the dead letters: messages that were set aside, oldest first.

    Args:
        queue: its name, as for `receive`; None for all of the database.
        message_type: only messages of this type.
        error: only messages whose error contains this text, in any case, or is of this kind, as `dead_letter_groups`
            names it.
        after: only messages with a greater number, for the next page.
        limit: the maximum number of messages; None for all.

    Raises:
        BrokerError: 15151 no such queue, 402 a limit below 1, 5011 no permission: dead letters are for db_owner.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str | None = None
    _: KW_ONLY
    message_type: str | None = None
    error: str | None = None
    after: int = 0
    limit: int | None = None

    def check(self) -> None:
        """Refuse what can be no text or number.

        Raises:
            BrokerError: 402.
        """
        for name, text in (("message_type", self.message_type), ("error", self.error)):
            if text is not None and (not isinstance(text, str) or "\0" in text or not is_encodable(text)):
                raise BrokerError(402, name, shown(text), "a text")
        if type(self.after) is not int or self.after != 0:
            check_count("after", self.after)
        if self.limit is not None:
            check_count("limit", self.limit)


@dataclass(frozen=True, slots=True)
class DeadLetterGroups(Operation[list[DeadLetterGroup]]):
    """Count the dead letters by queue, message type and kind of error, the largest group first.

    A kind is the first line of an error, with a star for each quoted text, identifier and number.

    Args:
        queue: its name, as for `receive`; None for all of the database.

    Raises:
        BrokerError: 15151 no such queue, 5011 no permission.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayMessage(Operation[UUID | None]):
    """Replay a message that was set aside: put it into its queue again, and remove it from the list.

    If its conversation is open on both sides, it arrives there, behind the messages in the queue. Otherwise it
    arrives on a new conversation with the same service, whose queue gets the answers: end it there.

    Args:
        set_aside_id: its number in the list.
        body: a new body. The audit records that the body was edited, and by whom, but neither body.
        from_service: the service of this database that sends the message, on a new conversation. It is required if the
            conversation has ended and the sender is in another database or instance.

    Returns:
        The initiator's handle of a new conversation; None if the message is on its own conversation.

    Raises:
        BrokerError: 402 there is none of that number, or its message type refuses the body; 5011 no permission; as
            `begin_dialog`.
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
        """Refuse what can be no number.

        Raises:
            BrokerError: 402.
        """
        check_count("set_aside_id", self.set_aside_id)


@dataclass(frozen=True, slots=True)
class DiscardMessage(Operation[None]):
    """Discard a message that was set aside.

    Args:
        set_aside_id: its number in the list.

    Raises:
        BrokerError: 402 there is none of that number, 5011 no permission.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    set_aside_id: int

    def check(self) -> None:
        """Refuse what can be no number.

        Raises:
            BrokerError: 402.
        """
        check_count("set_aside_id", self.set_aside_id)
