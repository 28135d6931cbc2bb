"""Service Broker for Python and PostgreSQL.

import servicebroker as sb

with sb.open("./data") as instance:
    db = instance.database("Warehouse", create=True)
    with db.transaction() as tx:
        ...
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from servicebroker.api.scripts import Interpreter
from servicebroker.model.bodies import codec
from servicebroker.model.errors import BodyError, BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.event_instances import EventInstance, read_event
from servicebroker.model.events import BrokerEvent, Events
from servicebroker.model.handlers.schedules import ScheduledJob
from servicebroker.model.messages import DelayedMessage, Message, read_error
from servicebroker.model.names import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR
from servicebroker.model.poison import (
    DeadLetterGroup,
    EndWithError,
    Failure,
    Ignore,
    Policy,
    Reply,
    Retry,
    SetAside,
    SetAsideMessage,
    Verdict,
    give_up_after,
)
from servicebroker.model.requests import RequestError, RequestTimeout
from servicebroker.model.workers import Worker

if TYPE_CHECKING:
    __version__: str

    from servicebroker.activation.activate import activate
    from servicebroker.activation.procedures import procedure
    from servicebroker.api.aio.database import AsyncDatabase
    from servicebroker.api.aio.instance import AsyncInstance
    from servicebroker.api.aio.pool import AsyncConversationPool
    from servicebroker.api.aio.transaction import AsyncJoinedTransaction, AsyncTransaction
    from servicebroker.api.database import Database
    from servicebroker.api.instance import Instance
    from servicebroker.api.pool import ConversationPool
    from servicebroker.api.shared.open import open_async
    from servicebroker.api.shared.open import open_instance as open
    from servicebroker.api.transaction import JoinedTransaction, Transaction
    from servicebroker.operations.begin import RepeatedHandle
    from servicebroker.operations.queues import Activation
    from servicebroker.tsql.statement_errors import TsqlError

__all__ = [
    "DEFAULT",
    "DIALOG_TIMER",
    "END_DIALOG",
    "ERROR",
    "Activation",
    "AsyncConversationPool",
    "AsyncDatabase",
    "AsyncInstance",
    "AsyncJoinedTransaction",
    "AsyncTransaction",
    "BodyError",
    "BrokerError",
    "BrokerEvent",
    "ConversationPool",
    "Database",
    "DeadLetterGroup",
    "DelayedMessage",
    "EndWithError",
    "EventInstance",
    "Events",
    "Failure",
    "Ignore",
    "Instance",
    "InstanceError",
    "JoinedTransaction",
    "Message",
    "Policy",
    "RepeatedHandle",
    "Reply",
    "RequestError",
    "RequestTimeout",
    "Retry",
    "ScheduledJob",
    "ServiceBrokerError",
    "SetAside",
    "SetAsideMessage",
    "Transaction",
    "TsqlError",
    "Verdict",
    "Worker",
    "__version__",
    "activate",
    "codec",
    "give_up_after",
    "open",
    "open_async",
    "procedure",
    "read_error",
    "read_event",
]

# Loaded at their first use: Spark starts a process for each commit, which needs none of them, nor psycopg.
_LAZY_ATTRIBUTES = {
    "Activation": ("servicebroker.operations.queues", "Activation"),
    "AsyncConversationPool": ("servicebroker.api.aio.pool", "AsyncConversationPool"),
    "AsyncDatabase": ("servicebroker.api.aio.database", "AsyncDatabase"),
    "AsyncInstance": ("servicebroker.api.aio.instance", "AsyncInstance"),
    "AsyncJoinedTransaction": ("servicebroker.api.aio.transaction", "AsyncJoinedTransaction"),
    "AsyncTransaction": ("servicebroker.api.aio.transaction", "AsyncTransaction"),
    "ConversationPool": ("servicebroker.api.pool", "ConversationPool"),
    "Database": ("servicebroker.api.database", "Database"),
    "Instance": ("servicebroker.api.instance", "Instance"),
    "JoinedTransaction": ("servicebroker.api.transaction", "JoinedTransaction"),
    "RepeatedHandle": ("servicebroker.operations.begin", "RepeatedHandle"),
    "Transaction": ("servicebroker.api.transaction", "Transaction"),
    "TsqlError": ("servicebroker.tsql.statement_errors", "TsqlError"),
    "activate": ("servicebroker.activation.activate", "activate"),
    "open": ("servicebroker.api.shared.open", "open_instance"),
    "open_async": ("servicebroker.api.shared.open", "open_async"),
    "procedure": ("servicebroker.activation.procedures", "procedure"),
}

# T-SQL is imported with the first script
Interpreter.find = lambda: import_module("servicebroker.tsql.session").Session


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("servicebroker")
    if name not in _LAZY_ATTRIBUTES:
        raise AttributeError(f"module 'servicebroker' has no attribute '{name}'")
    module, attribute = _LAZY_ATTRIBUTES[name]
    globals()[name] = value = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
