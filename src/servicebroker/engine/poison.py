"""Automatic poison detection: how transactions ended, and the switch (reference 04 section 7.1)."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.alter import MONITORS_CHANNEL
from servicebroker.store.statements import Statement, Steps


class Disabled(NamedTuple):
    """A queue that was just switched off."""

    database_id: int
    name: str


def outcomes(transactions: list[int]) -> Steps[dict[int, str | None]]:
    """'committed', 'aborted', 'in progress' or None (too old) of each transaction id, also after a killed process."""
    rows = yield Statement(
        "select x, pg_xact_status(x::text::xid8) from unnest($1::bigint[]) x",
        (transactions,),
    )
    return dict(rows)


def disable_queue(queue_id: int) -> Steps[Disabled | None]:
    """STATUS = OFF, and who waits in a RECEIVE is told. None when it is off, gone, or not to be switched by itself."""
    rows = yield Statement(
        "update servicebroker.queues set is_receive_enabled = false, is_enqueue_enabled = false "
        "where queue_id = $1 and is_poison_message_handling_enabled and (is_receive_enabled or is_enqueue_enabled) "
        "returning database_id, name, pg_notify('servicebroker', (-queue_id)::text), "
        f"pg_notify('{MONITORS_CHANNEL}', '')",
        (queue_id,),
    )
    return Disabled(*rows[0][:2]) if rows else None
