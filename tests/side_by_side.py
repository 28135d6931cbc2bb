"""The engine beside the in-memory double: the same objects in both, and comparisons of their contents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

import servicebroker as sb
import servicebroker.testing
from servicebroker.model import names
from servicebroker.model.errors import LockTimeout
from support import Undo

Rows = list[tuple[Any, ...]]
See = Callable[[str], Rows]

PLAIN, DOCUMENT, MARK, ASK, ANSWER = "//model/plain", "//model/doc", "//model/mark", "//model/ask", "//model/answer"
EXTRA, UNUSED = "//model/extra", "//model/unused"
CONTRACT, SMALL = "//model/Contract", "//model/Small"
DATABASES = ("A", "B")
_GUID = re.compile(r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b")
QUEUES = {"Near": "A", "Far": "A", "Other": "B"}  # with their databases
SERVICES = {"//near": "Near", "//far": "Far", "//second": "Far", "//other": "Other"}  # with their queues
LATE = "//late"  # a service that is created and dropped

_ENDPOINT = (
    "conversation_handle, conversation_id, is_initiator, conversation_group_id, lifetime, state, state_desc, "
    "far_service, send_sequence, end_dialog_sequence, receive_sequence, priority"
)
_ENDPOINTS = (
    f"select {_ENDPOINT}, (select name from sys.services s where s.service_id = e.service_id), "
    "nullif(security_timestamp, '1900-01-01 00:00+00'), nullif(dialog_timer, '1900-01-01 00:00+00'), broker_database "
    "from sys.conversation_endpoints e"
)
_GROUPS = (
    "select g.conversation_group_id, s.name, g.broker_database from sys.conversation_groups g "
    "join sys.services s using (service_id)"
)
_TRANSMISSION = (
    "conversation_handle, to_service_name, from_service_name, service_contract_name, message_sequence_number, "
    "message_type_name, is_conversation_error, is_end_of_dialog, message_body, transmission_status, priority"
)
_TRANSMISSIONS = f"select {_TRANSMISSION}, broker_database from sys.transmission_queue"
_MESSAGE = (
    "conversation_handle, conversation_group_id, message_sequence_number, priority, service_name, "
    "service_contract_name, message_type_name, validation, message_body, status"
)
_MESSAGES = (
    " union all ".join(f"select '{queue}', queuing_order, {_MESSAGE} from {database.lower()}_dbo.{queue.lower()}"
                       for queue, database in QUEUES.items()) + " order by 1, 2"
)  # fmt: skip


@dataclass
class Pair:
    """A database or transaction of the engine and one of the double, with the exits of transactions and savepoints."""

    real: Any
    double: Any
    contexts: list[tuple[AbstractContextManager[Any], AbstractContextManager[Any]]] = field(default_factory=list)

    def leave(self, *, undo: bool) -> None:
        """End the innermost savepoint, or the transaction."""
        for context in self.contexts.pop():
            problem = Undo() if undo else None
            context.__exit__(type(problem) if problem else None, problem, None)


def define(database: Any) -> Any:
    """Create the same objects on both sides. In B the contract lacks a type.

    Not every service in B accepts every contract. In A each side of a conversation with //far has its own priority.
    """
    for name in (PLAIN, ASK, ANSWER, EXTRA, UNUSED):
        database.create_message_type(name)
    database.create_message_type(DOCUMENT, "WELL_FORMED_XML")
    database.create_message_type(MARK, "EMPTY")
    usages = {PLAIN: "ANY", DOCUMENT: "ANY", MARK: "ANY", ASK: "INITIATOR", ANSWER: "TARGET"}
    database.create_contract(CONTRACT, usages | ({EXTRA: "ANY"} if database.name == "A" else {}))
    database.create_contract(SMALL, {PLAIN: "ANY"})
    for queue, owner in QUEUES.items():
        if owner == database.name:
            database.create_queue(queue)
    for service, queue in SERVICES.items():
        if QUEUES[queue] == database.name:
            second = SMALL if service == "//second" else names.DEFAULT
            database.create_service(service, queue, [CONTRACT, second])
    if database.name == "A":
        database.create_broker_priority("own", local_service_name="//far", priority_level=7)
    return database


def forget_everything(database: sb.Database, connection: psycopg.Connection[Any]) -> None:
    """Reset a database of the engine to its state after `define`."""
    for change in (
        lambda: database.drop_broker_priority("p"),
        lambda: database.drop_service(LATE),
        lambda: database.alter_service("//second", queue="Far"),
        lambda: database.alter_message_type(PLAIN, "NONE"),
    ):
        outcome(change)
    forget_rows(connection)
    connection.execute("update servicebroker.databases set is_broker_enabled = true where not is_broker_enabled")
    connection.execute(
        "update servicebroker.queues set is_receive_enabled = true, is_enqueue_enabled = true, "
        "is_poison_message_handling_enabled = true, catalog_version = nextval('servicebroker.catalog_versions')"
    )


def forget_rows(connection: psycopg.Connection[Any]) -> None:
    """Remove all conversations and messages of the engine."""
    queues = connection.execute("select queue_id from servicebroker.queues").fetchall()
    tables = ["conversation_endpoints", "conversation_groups", "transmission_queue", "idempotency_keys"]
    tables += [f"{kind}_{number}" for (number,) in queues for kind in ("queue", "retained")]
    for table in tables:
        connection.execute(f"delete from servicebroker.{table}")


def outcome(verb: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the result of a verb, its refusal, or that it would wait for another transaction."""
    try:
        return "done", verb()
    except sb.BrokerError as error:
        # T-SQL writes GUIDs in upper case
        return "refused", error.number, _GUID.sub(lambda match: match[0].lower(), str(error))
    except (LockTimeout, psycopg.errors.LockNotAvailable, servicebroker.testing.WouldWait):
        return ("waits",)


def comparable_messages(messages: list[sb.Message]) -> list[sb.Message]:
    """Return received messages without random values."""
    return [
        message._replace(
            queuing_order=0,
            service_id=0,
            service_contract_id=0,
            message_type_id=min(message.message_type_id, names.FIRST_USER_ID),
            message_enqueue_time=datetime.min,
        )
        for message in messages
    ]


def compare(see: See, databases: dict[str, Any], *, in_order: bool) -> None:
    """Check that the rows that `see` fetches from the engine equal those of the double's databases."""
    _same(see(_ENDPOINTS), (
        (*_pick(row, _ENDPOINT), _service_name(database, row["service_id"]), row["security_timestamp"],
         row["dialog_timer"], name)
        for name, database in databases.items() for row in database.conversation_endpoints()
    ))  # fmt: skip
    _same(see(_GROUPS), (
        (row["conversation_group_id"], row["service_name"], name)
        for name, database in databases.items() for row in database.conversation_groups()
    ))  # fmt: skip
    _same(see(_TRANSMISSIONS), (
        (*_pick(row, _TRANSMISSION), name)
        for name, database in databases.items() for row in database.transmission_queue()
    ))  # fmt: skip
    _same(see("select name, is_receive_enabled, is_enqueue_enabled from sys.service_queues where is_ms_shipped = 0"), (
        (queue.name, int(queue.is_receive_enabled), int(queue.is_enqueue_enabled))
        for database in databases.values() for queue in database.database.broker.queues.values()
    ))  # fmt: skip
    real: dict[str, Rows] = defaultdict(list)
    for queue, _, *message in see(_MESSAGES):
        real[queue].append(tuple(message))
    for queue, owner in QUEUES.items():
        if not in_order:
            _arrive_as(real[queue], databases[owner], queue)
        double = [_pick(row, _MESSAGE) for row in databases[owner].queue_messages(queue)]
        assert double == real[queue], f"in {queue}: {double} in the double, {real[queue]}"


def _arrive_as(real: Rows, database: Any, queue: str) -> None:
    """Give the double the engine's order: the order of concurrent messages to many conversations is undefined."""
    rows = database.queue_messages(queue)
    with database._verb() as session:
        messages = {row["queuing_order"]: session.messages.get(row["queuing_order"]) for row in rows}
    renumbered = {}
    for number, message in zip(sorted(messages), real, strict=True):
        row = next((row for row in rows if _pick(row, _MESSAGE) == message), None)
        assert row is not None, f"only the engine has {message}"
        first = next(candidate for candidate in rows if candidate["conversation_handle"] == row["conversation_handle"])
        assert _pick(first, _MESSAGE) == message, "the order within a conversation is another one"
        rows.remove(first)
        renumbered[number] = replace(messages[first["queuing_order"]], queuing_order=number)
    committed_messages = session.memory.messages
    for (
        number,
        message,
    ) in renumbered.items():  # only new messages are reordered, so each stays committed or uncommitted
        (session.messages.changes if number in session.messages.changes else committed_messages)[number] = message


def _pick(row: dict[str, Any], columns: str) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns.split(", "))


def _same(real: Rows, double: Iterable[tuple[Any, ...]]) -> None:
    mine, theirs = sorted(double, key=repr), sorted(real, key=repr)
    assert mine == theirs, f"{[row for row in mine if row not in theirs]} in the double, " + str(
        [row for row in theirs if row not in mine]
    )


def _service_name(database: Any, service_id: int) -> str:
    services = database.database.broker.services.values()
    return next(service.name for service in services if service.service_id == service_id)


def identity(see: Callable[..., Rows], handle: UUID, conversation: UUID | None) -> tuple[UUID, UUID, UUID]:
    """Return the identifiers that the engine has given to an endpoint, or to the target's side of a conversation."""
    text = "select conversation_handle, conversation_id, conversation_group_id from sys.conversation_endpoints where "
    text += "conversation_handle = $1" if conversation is None else "is_initiator = 0 and conversation_id = $1"
    (row,) = see(text, conversation or handle)
    return row[0], row[1], row[2]
