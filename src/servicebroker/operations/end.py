"""END CONVERSATION: plain, WITH ERROR and WITH CLEANUP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar
from uuid import UUID

from servicebroker.model.arguments import MAXIMUM_DESCRIPTION, check_error_code, check_handle, check_switch
from servicebroker.model.conversation_events import ConversationEvent
from servicebroker.model.errors import BrokerError
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Operation
from servicebroker.overriding import override


@dataclass(frozen=True, slots=True)
class EndConversation(Operation[None]):
    """END CONVERSATION: end this side of a conversation, and drop its messages that were not received.

    The other side gets an EndDialog or Error message after all earlier messages. It must end the conversation, too.

    Args:
        handle: the conversation.
        error: WITH ERROR: a code above 0 and a description, which the other side receives as an Error message.
        cleanup: WITH CLEANUP: remove this side without a message to the other side, which does not exist any more.

    Raises:
        BrokerError: 8426 no such conversation, 8427 it has ended on this side already, 8494 no permission, 8418 the
            handle is missing; 8419, 8422 and 8424 the code or the description is missing; 28006 WITH CLEANUP of a
            conversation that has ended on this side requires db_owner.
    """

    permission: ClassVar[str] = "END CONVERSATION"

    handle: UUID
    _: KW_ONLY
    error: tuple[int, str] | None = None
    cleanup: bool = False

    @override
    @property
    def event_class(self) -> ConversationEvent:  # type: ignore[override] # of most operations it is a constant
        """The event of this form of the statement."""
        if self.cleanup:
            return ConversationEvent.END_WITH_CLEANUP
        return ConversationEvent.END if self.error is None else ConversationEvent.END_WITH_ERROR

    @override
    @property
    def handles(self) -> Sequence[UUID]:
        """The conversation."""
        return [self.handle]

    def check(self) -> None:
        """Refuse invalid arguments.

        Raises:
            BrokerError: 8418 no handle; 8419, 8422 and 8424 no code or description; 402 a wrong type or value.
        """
        check_handle(self.handle)
        check_switch("WITH CLEANUP", self.cleanup)
        if self.error is None:
            return
        if self.cleanup:
            raise BrokerError(402, "END CONVERSATION", "WITH ERROR and WITH CLEANUP", "only one of the two")
        if not isinstance(self.error, tuple) or len(self.error) != 2:
            raise BrokerError(402, "the error", short_repr(self.error), "a tuple of code and description")
        _check_error(*self.error)


def _check_error(code: object, description: object) -> None:
    if code is None:
        raise BrokerError(8424 if description is None else 8419)
    if description is None:
        raise BrokerError(8422)
    check_error_code(code)
    if not isinstance(description, str) or len(description) > MAXIMUM_DESCRIPTION:
        raise BrokerError(
            402,
            "the error description",
            type(description).__name__,
            f"str, at most {MAXIMUM_DESCRIPTION} characters",
        )
