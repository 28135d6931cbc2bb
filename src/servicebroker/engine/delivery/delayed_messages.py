"""Delayed messages: rows of the transmission queue that have a time, and are not delivered before it.

**The problem.** A delayed message is stored with the transaction of its SEND, and is delivered once. No later message
of its conversation overtakes it, whether the peer is in this instance or in another.

**The flow.** A delayed SEND parks its messages with `delayed_until` (`parking.py`). Its conversation is then parked, so
that every later SEND, and END CONVERSATION, goes behind them. What delivers parked messages, and the daemon's reads of
the transmission queue, stop before the first row with `delayed_until`. The maintenance thread (`api/upkeep.py`)
releases rows whose time has come, and then delivers them as it delivers other messages. The SEND of a delayed message
notifies that thread of its time.

**The rules.**

* Only rows of delayed messages are in the two indexes of `delayed_until`, so other SENDs write no entry into them.
* A delayed row has the transaction id 0: no poll of a daemon finds it. Its release writes the id of its own transaction
  into it, and into the rows behind it, as if they were sent at the release.
* A cancelled message leaves no gap: later messages, none of which has left, move up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.enqueue import IS_FREE, WAKE_TRANSMITTER
from servicebroker.model import waiting
from servicebroker.model.messages import DelayedMessage
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)

MAX_RELEASED_CONVERSATIONS = 500  # by one transaction


class DueMessages(NamedTuple):
    """Conversations with a due message, and the time of the next one that is not due yet."""

    handles: Sequence[UUID]
    next_time: datetime | None


def find_due(now: datetime, busy: Iterable[UUID]) -> Steps[DueMessages]:
    """Return conversations with a due delayed message, except the busy ones, and the time of the next."""
    rows = yield SQL("find_due", (now, MAX_RELEASED_CONVERSATIONS, list(busy)))
    return DueMessages(*rows[0])


def release(handles: Sequence[UUID], now: datetime) -> Steps[set[UUID]]:
    """Release due messages of these conversations. Returns the conversations that were not locked.

    A conversation on which a session is sending is skipped until the next call. Released messages wait for delivery.
    """
    rows = yield SQL("release.lock", (handles,))
    free = [handle for (handle,) in rows]
    if free:
        yield SQL("release.clear", (free, now, waiting.DELAYED))
        yield Statement(
            "delayed_messages.release.follow",
            "with freed as (update servicebroker.transmission_queue t set xact = pg_current_xact_id(), "
            "transmission_status = case when transmission_status = $2 then '' else transmission_status end "
            f"where conversation_handle = any ($1) and {IS_FREE} returning 1) "
            f"select count(*), {WAKE_TRANSMITTER} from freed",
            (free, waiting.DELAYED),
        )
    return set(free)


def find_delayed(database_id: int, handle: UUID | None) -> Steps[list[DelayedMessage]]:
    """Return the delayed messages of a database or a conversation, and those queued behind them, earliest first."""
    rows = yield SQL("find_delayed", (database_id, handle))
    return [DelayedMessage(*row) for row in rows]


def cancel(handle: UUID, number: int | None) -> Steps[int]:
    """Cancel one message that waits for its time, or all delayed ones of the conversation. Returns how many."""
    rows = yield SQL("cancel", (handle, number))
    return int(rows[0][0])
