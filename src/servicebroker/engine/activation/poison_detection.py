"""Automatic poison detection: the outcome of transactions, and switching queues off.

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


class Disabled(NamedTuple):
    """A queue that was just switched off, and the errors of notifications that could not be sent."""

    database_id: int
    name: str
    unsent: list[BrokerError]


def find_outcomes(transactions: list[int]) -> Steps[dict[int, str | None]]:
    """Return 'committed', 'aborted', 'in progress' or None (too old) for each id, also after a killed process."""
    rows = yield SQL("find_outcomes", (transactions,))
    return dict(rows)


def disable_queue(queue_id: int, now: datetime) -> Steps[Disabled | None]:
    """Switch the queue off: fail its waiting RECEIVEs, and send event notifications for BROKER_QUEUE_DISABLED.

    None if the queue is off already, gone, or has poison detection off.
    """
    rows = yield Statement(
        "poison_detection.disable_queue",
        "with disabled as ("
        "update servicebroker.queues set is_receive_enabled = false, is_enqueue_enabled = false "
        "where queue_id = $1 and is_poison_message_handling_enabled and (is_receive_enabled or is_enqueue_enabled) "
        "returning queue_id, database_id, name), "
        "noted as (insert into servicebroker.disabled_queues (queue_id) select queue_id from disabled "
        "on conflict (queue_id) do update set at = excluded.at) "
        "select database_id, name, pg_notify('servicebroker', (-queue_id)::text), "
        f"pg_notify('{MONITORS_CHANNEL}', '') from disabled",
        (queue_id,),
    )
    if not rows:
        return None
    unsent = yield from post(BROKER_QUEUE_DISABLED, queue_id, now)
    database_id, name, *_ = rows[0]
    return Disabled(database_id, name, unsent)


class Alarm(NamedTuple):
    """A queue that was switched off automatically, without an alert so far."""

    queue_id: int
    database: str
    schema: str
    queue: str
    at: datetime


def find_alarms() -> Steps[list[Alarm]]:
    """Return the queues that need an alert, oldest first."""
    rows = yield SQL("find_alarms")
    return [Alarm(*row) for row in rows]


def remove_alarm(alarm: Alarm) -> Steps[None]:
    """Mark a queue as alerted, unless it was switched off once more since."""
    yield SQL("remove_alarm", (alarm.queue_id, alarm.at))
