"""Events of the broker, with the numbers of its trace (reference 04 and 05): one registry for all of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

QUEUE_DISABLED, ACTIVATION = 143, 163

NAMES = {QUEUE_DISABLED: "Broker:Queue Disabled", ACTIVATION: "Broker:Activation"}
_LEVELS = {ACTIVATION: logging.INFO}  # the others are warnings

_KEPT = 1000
_LOG = logging.getLogger("servicebroker")


class BrokerEvent(NamedTuple):
    """One event: its trace number and name, when (UTC), in which broker database, about which object.

    `subclass` is what the event class tells apart: of 163 Started, Ended, Aborted and Not started.
    """

    number: int
    name: str
    at: datetime
    database_id: int
    object_id: int
    text: str
    subclass: str = ""


Handler = Callable[[BrokerEvent], object]


class Events:
    """The last events of this process, and who wants to be told of new ones."""

    def __init__(self) -> None:
        self._recent: deque[BrokerEvent] = deque(maxlen=_KEPT)
        self._handlers: list[Handler] = []

    def record(
        self, number: int, at: datetime, database_id: int, object_id: int, text: str, subclass: str = ""
    ) -> None:
        """Keep the event, log it, and tell the handlers; what a handler raises is logged and goes no further."""
        event = BrokerEvent(number, NAMES[number], at, database_id, object_id, text, subclass)
        self._recent.append(event)
        _LOG.log(_LEVELS.get(number, logging.WARNING), "%s: %s", event.name, event.text)
        for handler in tuple(self._handlers):
            try:
                handler(event)
            except Exception:
                _LOG.exception("a handler of %s failed", event.name)

    def recent(self, number: int | None = None) -> list[BrokerEvent]:
        """The last thousand events, oldest first; only those of a number when it is given."""
        return [event for event in tuple(self._recent) if number in (None, event.number)]

    def subscribe(self, handler: Handler) -> None:
        """Call `handler` with every event from now on, in the thread where it happens; keep it short."""
        self._handlers.append(handler)
