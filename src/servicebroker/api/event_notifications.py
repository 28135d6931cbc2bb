# Made from aio/event_notifications.py by tools/make_sync.py: change that file, then run `make sync`.
"""Event notifications as methods of a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from servicebroker.api.definitions import defined
from servicebroker.engine.catalog import event_notifications
from servicebroker.model.security.permissions import User
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

    def drop_event_notification(self, name: str, *, on_queue: str | None = None, on_server: bool = False) -> None:
        """DROP EVENT NOTIFICATION name ON QUEUE, SERVER or, without either, DATABASE; the service gets an EndDialog.

        Raises:
            BrokerError: 15151 no such queue, or notification on it.
        """
        now = self.instance.clock()
        self._alone(
            event_notifications.drop_event_notification(self.user, name, now, on_queue=on_queue, on_server=on_server)
        )
