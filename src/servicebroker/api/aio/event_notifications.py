"""Event notifications on the queues of a broker database as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from servicebroker.engine.catalog import event_notifications
from servicebroker.engine.security import authorization as rights
from servicebroker.model.permissions import User
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.instance import AsyncInstance

T = TypeVar("T")


class AsyncEventNotifications(ABC):
    """CREATE and DROP EVENT NOTIFICATION."""

    user: User
    instance: AsyncInstance

    @abstractmethod
    async def _alone(self, steps: Steps[T]) -> T:
        """Run the steps of DDL."""

    async def create_event_notification(
        self,
        name: str,
        *,
        on_queue: str,
        events: str | Sequence[str],
        to_service: str,
        broker_instance: str | UUID = event_notifications.CURRENT_DATABASE,
        with_fan_in: bool = False,
    ) -> None:
        """CREATE EVENT NOTIFICATION name ON QUEUE ... FOR events TO SERVICE: each event is a message to that service.

        The message is of the type EventNotification; `sb.read_event` reads its body.

        Args:
            name: unique among those on the queue, compared without case.
            on_queue: a queue of this database.
            events: QUEUE_ACTIVATION, when the queue wants a reader; BROKER_QUEUE_DISABLED, when it was switched off by
                itself; or both.
            to_service: the service that is told; it accepts the contract PostEventNotification.
            broker_instance: identifier of the database that has it, or "current database".
            with_fan_in: of several that the same login made for the same service, one message goes out.

        Raises:
            BrokerError: 9718 QUEUE_ACTIVATION where the activation of a procedure is on, 8197 no such queue, 2714 name
                taken, 1093, 8413, 402, 15151 no permission to alter the queue.
        """
        steps = event_notifications.create_event_notification(
            self.user, name, on_queue, events, to_service, broker_instance, with_fan_in
        )
        await self._alone(rights.authorized(steps, self.user, "ALTER QUEUE", rights.queue(on_queue)))

    async def drop_event_notification(self, name: str, *, on_queue: str) -> None:
        """DROP EVENT NOTIFICATION name ON QUEUE; the service gets an EndDialog.

        Raises:
            BrokerError: 15151 no such queue, or notification on it.
        """
        steps = event_notifications.drop_event_notification(self.user, name, on_queue, self.instance.clock())
        await self._alone(rights.authorized(steps, self.user, "ALTER QUEUE", rights.queue(on_queue)))
