"""Events of the broker, with the event class numbers of SQL Server's trace: one registry for all of them.

The rules: docs/reference/metrics.md#events.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from servicebroker.model.errors import BrokerError
from servicebroker.model.reporting import report
from servicebroker.model.wording import describe_exception, short_repr

LOGIN_CLASS, LOGOUT_CLASS, LOGIN_FAILED_CLASS = 14, 15, 20
CONVERSATION_CLASS, CONVERSATION_GROUP_CLASS, QUEUE_DISABLED_CLASS, ACTIVATION_CLASS = 124, 136, 143, 163

NAMES = {
    LOGIN_CLASS: "Audit Login",
    LOGOUT_CLASS: "Audit Logout",
    LOGIN_FAILED_CLASS: "Audit Login Failed",
    CONVERSATION_CLASS: "Broker:Conversation",
    CONVERSATION_GROUP_CLASS: "Broker:Conversation Group",
    QUEUE_DISABLED_CLASS: "Broker:Queue Disabled",
    ACTIVATION_CLASS: "Broker:Activation",
}
_LEVELS = {ACTIVATION_CLASS: logging.INFO}  # other classes are logged as warnings
# other classes are sent only to handlers that name them, and are not stored
DEFAULT_CLASSES = frozenset({QUEUE_DISABLED_CLASS, ACTIVATION_CLASS})
_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})

_MAX_RECENT = 1000
_LOG = logging.getLogger("servicebroker")


class BrokerEvent(NamedTuple):
    """One event: the number and name of its class, time (UTC), broker database and object.

    `subclass` divides the event class: for 163 into Started, Ended, Aborted and Not started. `columns` are further
    columns of the trace, with its names. For 124 they are GUID (the conversation), ObjectName (the handle), MethodName
    (the group) and RoleName; for 136 GUID (the group). For 14, 15 and 20 they are LoginName, HostName,
    ApplicationName and DatabaseName of a client of SQL Server.
    """

    number: int
    name: str
    at: datetime
    database_id: int
    object_id: int
    text: str
    subclass: str = ""
    columns: Mapping[str, str] = _NO_COLUMNS


Handler = Callable[[BrokerEvent], object]


def _ends_programs(problem: BaseException) -> bool:
    return isinstance(problem, KeyboardInterrupt | SystemExit)


class Events:
    """The last events of this process, and the handlers that are called for new ones.

    `is_interrupt` returns whether an exception of a handler is meant for the program, such as Ctrl-C.
    """

    def __init__(self, is_interrupt: Callable[[BaseException], bool] = _ends_programs) -> None:
        self._is_interrupt = is_interrupt
        self._recent: deque[BrokerEvent] = deque(maxlen=_MAX_RECENT)
        self._handlers: list[tuple[Handler, frozenset[int]]] = []
        self.watches_conversations = False  # a handler has subscribed to Broker:Conversation or its groups

    def record(
        self, number: int, at: datetime, database_id: int, object_id: int, text: str, subclass: str = ""
    ) -> None:
        """Keep the event, log it, and call the handlers; an exception of a handler is only logged."""
        event = BrokerEvent(number, NAMES[number], at, database_id, object_id, text, subclass)
        self._recent.append(event)
        report(_LOG, _LEVELS.get(number, logging.WARNING), "%s: %s", event.name, event.text)
        self._call_handlers(event)

    def tell(
        self, number: int, at: datetime, database_id: int, text: str, subclass: str, columns: Mapping[str, str]
    ) -> None:
        """Call the handlers of an event that is neither stored nor logged."""
        self._call_handlers(BrokerEvent(number, NAMES[number], at, database_id, 0, text, subclass, columns))

    def _call_handlers(self, event: BrokerEvent) -> None:
        for handler, numbers in tuple(self._handlers):
            if event.number not in numbers:
                continue
            try:
                handler(event)
            except BaseException as problem:
                if self._is_interrupt(problem):
                    raise
                report(
                    _LOG,
                    logging.ERROR,
                    "a handler of %s failed: %s",
                    event.name,
                    describe_exception(problem),
                    exc_info=problem,
                )

    def recent(self, number: int | None = None) -> list[BrokerEvent]:
        """Return the last thousand events, oldest first. With a number, only events of that number."""
        return [event for event in tuple(self._recent) if number in (None, event.number)]

    def subscribe(self, handler: Handler, *numbers: int) -> None:
        """Call `handler` with every event from now on, in the thread where it occurs; it must be fast.

        `numbers` are the wanted event classes, 143 and 163 if none are named. 124 Broker:Conversation and 136
        Broker:Conversation Group occur several times for each message, so handlers must name them. They are reported
        when the statement (SEND, RECEIVE ...) is done, even if its transaction rolls back. They cost each of these four
        more statements.

        Raises:
            BrokerError: 402 a number that is not in `NAMES`.
        """
        unknown = [number for number in numbers if number not in NAMES]
        if unknown:
            raise BrokerError(402, "the event class", short_repr(unknown[0]), f"one of {', '.join(map(str, NAMES))}")
        self._handlers.append((handler, frozenset(numbers) or DEFAULT_CLASSES))
        self.watches_conversations |= bool({CONVERSATION_CLASS, CONVERSATION_GROUP_CLASS} & set(numbers))
