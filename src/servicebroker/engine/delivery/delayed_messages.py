"""Delayed messages: rows of the transmission queue that have a time, and are not delivered before it.

**The problem.** A delayed message is stored with the transaction of its SEND, and is delivered exactly once. No later
message of its conversation overtakes it, whether the peer is in this instance or in another.

**The flow.** A delayed SEND parks its messages with `delayed_until` (`parking.py`). Its conversation is then parked, so
every later SEND or END CONVERSATION queues its message behind them. The delivery of parked messages and the daemon
both stop before the first row with `delayed_until`. The maintenance thread (`api/maintenance.py`) releases due rows,
and delivers them like other parked messages. A delayed SEND notifies that thread of the message's due time.

**The rules.**

* Only rows of delayed messages are in the two indexes of `delayed_until`, so other SENDs write no entry into them.
* A delayed row has the transaction id 0, so no poll of a daemon finds it. The release sets the transaction id of that
  row and of the rows behind it to its own, as if they were sent at the release.
* A cancelled message leaves no gap in the sequence numbers: later messages, all undelivered, are renumbered.
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

MAX_RELEASED_CONVERSATIONS = 500  # conversations released by one transaction


class DueMessages(NamedTuple):
    """Conversations with a due message, and the due time of the next message that is not due yet."""

    handles: Sequence[UUID]
    next_time: datetime | None


def find_due(now: datetime, busy: Iterable[UUID]) -> Steps[DueMessages]:
    """Return conversations with a due delayed message, except those in `busy`, and the next due time."""
    rows = yield SQL("find_due", (now, MAX_RELEASED_CONVERSATIONS, list(busy)))
    return DueMessages(*rows[0])


def release(handles: Sequence[UUID], now: datetime) -> Steps[set[UUID]]:
    """Release due messages of these conversations for delivery. Returns the conversations that were released.

    A conversation that another session has locked, by a SEND for example, is skipped until the next call.
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
    """Cancel the delayed message of that number, or all delayed ones of the conversation. Returns how many."""
    rows = yield SQL("cancel", (handle, number))
    return int(rows[0][0])
