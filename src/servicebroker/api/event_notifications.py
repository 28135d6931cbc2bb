# Made from aio/event_notifications.py by tools/make_sync.py: change that file, then run `make sync`.
"""Event notifications on the queues of a broker database as methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from servicebroker.api.definitions import defined
from servicebroker.engine.catalog import event_notifications
from servicebroker.engine.security import authorization as rights
from servicebroker.model.permissions import User
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance

T = TypeVar("T")


class EventNotifications(ABC):
    """CREATE and DROP EVENT NOTIFICATION."""

    user: User
    instance: Instance

    @abstractmethod
    def _alone(self, steps: Steps[T]) -> T:
        """Run the steps of DDL."""

    create_event_notification = defined(event_notifications.create_event_notification)

    def drop_event_notification(self, name: str, *, on_queue: str) -> None:
        """DROP EVENT NOTIFICATION name ON QUEUE; the service gets an EndDialog.

        Raises:
            BrokerError: 15151 no such queue, or notification on it.
        """
        steps = event_notifications.drop_event_notification(self.user, name, on_queue, self.instance.clock())
        self._alone(rights.authorized(steps, self.user, "ALTER QUEUE", rights.queue(on_queue)))
