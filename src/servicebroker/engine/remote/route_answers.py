"""Answers of the dynamic routing service: it ends the conversation of a request (`missing_routes.py`)."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.delivery.transmission import lock_available, match_again
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import read_error
from servicebroker.model.names import ERROR_ID
from servicebroker.model.states import EndpointState
from servicebroker.operations.end import EndConversation
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class RouteAnswers(NamedTuple):
    """The result of `take_route_answers`.

    Attributes:
        failures: the errors 9761 to log as events, for requests that ended with an Error.
        left: handles to deliver with `deliver_conversation`, each in a transaction of its own.
        again: another session had a lock: call again later.
    """

    failures: list[BrokerError]
    left: list[UUID]
    again: bool = False


class _Request(NamedTuple):
    """An answered request. `state` is that of its conversation; None if the conversation was removed.

    `locks_group` and `locks_delivery`: this transaction has got the lock of its group, and the lock of the delivery.
    """

    database_id: int
    handle: UUID
    state: str | None
    queue_id: int
    locks_group: bool
    locks_delivery: bool


def take_route_answers(catalog: Catalog, now: datetime) -> Steps[RouteAnswers]:
    """End this side of answered requests, and look for the targets of waiting messages again. Waits for no lock."""
    rows = yield SQL("take_route_answers.find_requests", (locks.CONVERSATION_GROUP, locks.PARKED_DELIVERY))
    requests = [_Request._make(row) for row in rows]
    if not requests:
        return RouteAnswers([], [])
    if not requests[0].locks_delivery:
        return RouteAnswers([], [], again=True)
    locked = yield from lock_available(
        [request.handle for request in requests if request.state is not None and request.locks_group]
    )
    unlocked = [request for request in requests if request.state is None or request.handle in locked]
    failures: list[BrokerError] = []
    for request in unlocked:
        if request.state == EndpointState.ERROR:
            failures += yield from _failures(request.handle, request.queue_id)
        if request.state is not None:
            yield from end_conversation(EndConversation(request.handle), now=now)
    failed = [request.handle for request in unlocked if request.state == EndpointState.ERROR]
    yield SQL("take_route_answers.note_answer", ([request.handle for request in unlocked], now, failed))
    left: list[UUID] = []
    for database_id in sorted({request.database_id for request in unlocked}):
        left += yield from match_again(catalog, database_id, now)
    return RouteAnswers(failures, left, again=len(unlocked) < len(requests))


def _failures(handle: UUID, queue_id: int) -> Steps[list[BrokerError]]:
    """Return the descriptions of the Errors on a conversation."""
    rows = yield Statement(
        "route_answers.failures",
        f"select message_body from servicebroker.queue_{int(queue_id)} "
        "where conversation_handle = $1 and message_type_id = $2",
        (handle, ERROR_ID),
    )
    return [BrokerError(9761, handle, read_error(body)[1]) for (body,) in rows]
