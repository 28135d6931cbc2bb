"""What the dynamic routing service has answered: it has ended the conversation that asked it for a route."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog import Catalog
from servicebroker.engine.end import end_conversation
from servicebroker.engine.transmission import lock_delivery, match_again
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import read_error
from servicebroker.model.names import ERROR_ID
from servicebroker.store.statements import Statement, Steps


class Answers(NamedTuple):
    """`failures` are events 9761; `left` each want a `deliver_conversation` of their own."""

    failures: list[BrokerError]
    left: list[UUID]


def take_answers(catalog: Catalog, now: datetime) -> Steps[Answers]:
    """End our side of what was answered, and match again what waited for it. Nobody is waited for."""
    rows = yield Statement(
        "select r.database_id, r.conversation_handle, e.state, e.queue_id from servicebroker.route_requests r "
        "left join servicebroker.conversation_endpoints e using (conversation_handle) "
        "where r.answered is null and coalesce(e.state, 'CD') not in ('SO', 'CO') for update of r skip locked"
    )
    failures: list[BrokerError] = []
    for _, handle, state, queue_id in rows:
        if state == "ER":
            errors = yield Statement(
                f"select message_body from servicebroker.queue_{int(queue_id)} "
                "where conversation_handle = $1 and message_type_id = $2",
                (handle, ERROR_ID),
            )
            failures += [BrokerError(9761, handle, read_error(body)[1]) for (body,) in errors]
        if state is not None:
            yield from end_conversation(handle, now=now)
    if not rows:
        return Answers([], [])
    yield Statement(
        "update servicebroker.route_requests set answered = $2 where conversation_handle = any ($1)",
        ([handle for _, handle, *_ in rows], now),
    )
    left: list[UUID] = []
    yield lock_delivery()
    for database_id in sorted({database_id for database_id, *_ in rows}):
        left += yield from match_again(catalog, database_id, now)
    return Answers(failures, left)
