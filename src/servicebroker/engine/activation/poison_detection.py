"""Automatic poison detection: find out how transactions ended, switch queues off, and list the alerts to send.

The rules: docs/reference/rules.md#automatic-poison-detection.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.event_notifications import post
from servicebroker.model.errors import BrokerError
from servicebroker.model.event_types import BROKER_QUEUE_DISABLED
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import MONITORS_CHANNEL
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class DisabledQueue(NamedTuple):
    """A queue that was switched off. `notification_errors`: for each event notification that could not be sent."""

    database_id: int
    name: str
    notification_errors: list[BrokerError]


def find_outcomes(transactions: list[int]) -> Steps[dict[int, str | None]]:
    """Return 'committed', 'aborted', 'in progress' or None (too old) for each transaction id.

    PostgreSQL knows the outcome even if the process that ran the transaction was killed.
    """
    rows = yield SQL("find_outcomes", (transactions,))
    return dict(rows)


def disable_queue(queue_id: int, now: datetime) -> Steps[DisabledQueue | None]:
    """Switch the queue off (STATUS = OFF), and send event notifications for BROKER_QUEUE_DISABLED.

    Waiting RECEIVEs are woken, and fail. Records that an alert is pending. Returns None if the queue is already off or
    dropped, or has poison detection off.
    """
    rows = yield Statement(
        "poison_detection.disable_queue",
        "with disabled as ("
        "update servicebroker.queues set is_receive_enabled = false, is_enqueue_enabled = false "
        "where queue_id = $1 and is_poison_message_handling_enabled and (is_receive_enabled or is_enqueue_enabled) "
        "returning queue_id, database_id, name), "
        "pending as (insert into servicebroker.disabled_queues (queue_id) select queue_id from disabled "
        "on conflict (queue_id) do update set at = excluded.at) "
        "select database_id, name, pg_notify('servicebroker', (-queue_id)::text), "
        f"pg_notify('{MONITORS_CHANNEL}', '') from disabled",
        (queue_id,),
    )
    if not rows:
        return None
    notification_errors = yield from post(BROKER_QUEUE_DISABLED, queue_id, now)
    database_id, name, *_ = rows[0]
    return DisabledQueue(database_id, name, notification_errors)


class PendingAlert(NamedTuple):
    """A queue that was switched off automatically at `at`, and for which no alert was sent yet."""

    queue_id: int
    database: str
    schema: str
    queue: str
    at: datetime


def find_pending_alerts() -> Steps[list[PendingAlert]]:
    """Return the queues for which an alert has to be sent, oldest first."""
    rows = yield SQL("find_pending_alerts")
    return [PendingAlert(*row) for row in rows]


def mark_alerted(alarm: PendingAlert) -> Steps[None]:
    """Delete the pending alert, unless the queue was switched off once more since."""
    yield SQL("mark_alerted", (alarm.queue_id, alarm.at))
