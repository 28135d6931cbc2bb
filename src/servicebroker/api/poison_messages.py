# Made from aio/poison_messages.py by tools/make_sync.py: change that file, then run `make sync`.
"""What was set aside of a broker database's queues, for an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from servicebroker.engine.catalog import catalog
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation import failed_messages
from servicebroker.engine.conversation.failed_messages import SetAsideMessage
from servicebroker.engine.conversation.replay import replay
from servicebroker.engine.diagnosis.audit import note
from servicebroker.engine.security import authorization as rights
from servicebroker.model.arguments import OMITTED, Body, Omitted, check_count
from servicebroker.model.security.permissions import User
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance

T = TypeVar("T")


class PoisonMessages(ABC):
    """Messages that a policy has set aside: they are listed, replayed or discarded."""

    instance: Instance
    database_id: int
    name: str
    user: User
    catalog: Catalog

    @abstractmethod
    def _alone(self, steps: Steps[T]) -> T:
        """Run steps that see for themselves whether the user may, as one transaction."""

    def set_aside_messages(self, queue: str | None = None) -> list[SetAsideMessage]:
        """The messages that were set aside, oldest first; of one queue when it is named.

        Raises:
            BrokerError: 15151 no such queue, 5011 no permission: they are for db_owner.
        """

        def steps() -> Steps[list[SetAsideMessage]]:
            yield from rights.demand(self.user, "ALTER DATABASE")
            found = None if queue is None else (yield from catalog.find_queue_now("find", self.database_id, queue))
            return (yield from failed_messages.set_aside_messages(self.database_id, found.queue_id if found else None))

        return self._alone(steps())

    def replay_message(
        self, set_aside_id: int, *, body: Body | Omitted = OMITTED, from_service: str | None = None
    ) -> UUID | None:
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
        check_count("set_aside_id", set_aside_id)

        def steps() -> Steps[UUID | None]:
            yield from rights.demand(self.user, "ALTER DATABASE")
            message, handle = yield from replay(
                self.catalog,
                self.database_id,
                set_aside_id,
                body,
                from_service,
                now=self.instance.clock(),
                maximum_body=self.instance.maximum_body,
            )
            edited = {} if isinstance(body, Omitted) else {"body": "edited"}
            anew = {} if handle is None else {"new_conversation": handle}
            yield from note("REPLAY MESSAGE", self.name, str(set_aside_id), message._asdict() | edited | anew)
            return handle

        return self._alone(steps())

    def discard_message(self, set_aside_id: int) -> None:
        """Remove a message that was set aside.

        Raises:
            BrokerError: 402 there is none of that number, 5011 no permission.
        """
        check_count("set_aside_id", set_aside_id)

        def steps() -> Steps[None]:
            yield from rights.demand(self.user, "ALTER DATABASE")
            message = yield from failed_messages.discard(self.database_id, set_aside_id)
            yield from note("DISCARD MESSAGE", self.name, str(set_aside_id), message._asdict())

        self._alone(steps())
