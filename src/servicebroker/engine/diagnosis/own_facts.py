"""The facts for `servicebroker doctor` run by a restricted role: queues and conversations on which it has rights."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from servicebroker.engine.conversation.restricted_verbs import call
from servicebroker.engine.diagnosis.fact_types import ConversationFacts, Facts, QueueFacts, WaitFacts
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import read_error
from servicebroker.store.statements import Steps


def gather_own(now: datetime) -> Steps[Facts]:
    """Return facts about queues from which the role may receive, and about undelivered messages of their services."""
    queues, waits = (yield call("own_queues", COUNT_LIMIT)), (yield call("own_waits", COUNT_LIMIT))
    shown = [QueueFacts(*row[:-1])._replace(is_for_callers=row[-1]) for row in queues]
    return Facts(now, [], shown, [WaitFacts(*row) for row in waits], [], [], {}, None, None, 0, False)


_COLUMNS = (  # the columns of own_conversation, which are names of facts
    *("state", "far_service", "lifetime", "queue", "is_on", "messages", "oldest", "waits", "status"),
    *("failures", "last_error", "held_until", "error", "readers", "is_activated", "sent", "delayed_until"),
)


def gather_own_conversation(database_id: int, handle: UUID, now: datetime) -> Steps[ConversationFacts]:
    """Return the facts about an endpoint on which the role has rights.

    Raises:
        BrokerError: 8426 the role has no such conversation in the database.
    """
    rows = yield call("own_conversation", database_id, handle, COUNT_LIMIT)
    if not rows:
        raise BrokerError(8426, handle)
    columns = dict(zip(_COLUMNS, rows[0], strict=True))
    error = columns.pop("error")
    return ConversationFacts(
        now=now,
        handle=handle,
        peer_queue="",  # a restricted role may not see the other side and sessions
        peer_messages=0,
        holders=[],
        error=read_error(error) if error else None,
        **columns,
    )
