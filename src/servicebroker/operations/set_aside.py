"""Messages that were set aside for an operator: list them, put one into its queue again, remove one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar
from uuid import UUID

from servicebroker.model.arguments import OMITTED, Body, Omitted, check_count
from servicebroker.model.poison import SetAsideMessage
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class SetAsideMessages(Operation[list[SetAsideMessage]]):
    """The messages that were set aside, oldest first; of one queue when it is named.

    Args:
        queue: its name, as for `receive`; None for all of the database.

    Raises:
        BrokerError: 15151 no such queue, 5011 no permission: they are for db_owner.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    queue: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayMessage(Operation[UUID | None]):
    """Put a message that was set aside into its queue again, in one transaction with its removal.

    While its conversation is open on both sides, it arrives there, behind what is in the queue. Otherwise it
    arrives on a new conversation with the same service, whose queue gets the answers: end it there.

    Args:
        set_aside_id: its number among those that were set aside.
        body: what it carries from now on, instead of what it carried. The audit has that it was edited, by whom,
            and neither body.
        from_service: the service of this database that sends it, on a new conversation in any case. It is needed
            where the conversation has ended and the sender is in another database or instance.

    Returns:
        The initiator's handle of the new conversation; None where it is on its own one.

    Raises:
        BrokerError: 402 there is none of that number, or its message type refuses the body; 5011 no permission; as
            `begin_dialog`.
        InstanceError: its conversation has ended and a new one needs `from_service`, or its service refuses it.
    """

    permission: ClassVar[str] = "ALTER DATABASE"

    set_aside_id: int
    _: KW_ONLY
    body: Body | Omitted = field(default=OMITTED, repr=False)
    from_service: str | None = None

    @property
    def is_edited(self) -> bool:
        """Whether it gets another body."""
        return not isinstance(self.body, Omitted)

    def check(self) -> None:
        """Refuse what can be no number.

        Raises:
            BrokerError: 402.
        """
        check_count("set_aside_id", self.set_aside_id)


@dataclass(frozen=True, slots=True)
class DiscardMessage(Operation[None]):
    """Remove a message that was set aside.

    Args:
        set_aside_id: its number among those that were set aside.

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
