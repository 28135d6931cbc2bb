"""Counters that application processes add up: SENDs, RECEIVEs, rollbacks, statements (docs/reference/metrics.md).

Each process counts in memory and adds its counts to the stored totals every few seconds, so no verb needs a statement
for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


SENDS, RECEIVES, ROLLBACKS = "SQL SEND Total", "SQL RECEIVE Total", "Broker Transaction Rollbacks"
ENQUEUED = {priority: f"Enqueued P{priority} Messages Total" for priority in range(1, 11)}

SENT_IN_SQL = "coalesce(pg_sequence_last_value('servicebroker.sent_in_sql'), 0)"
_RECEIVED_IN_SQL = "coalesce(pg_sequence_last_value('servicebroker.received_in_sql'), 0)"


def add_totals(counts: Mapping[str, int]) -> Steps[None]:
    """Add these counts to the totals in one statement. All sessions lock the rows in the same order."""
    yield SQL("add_totals", (list(counts), list(counts.values())))


def totals() -> Steps[dict[str, int]]:
    """Return all totals; 0 for a counter without a row."""
    rows = yield Statement(
        "diagnosis.totals",
        "select counter, sum(value)::bigint from (select counter, value from servicebroker.totals "
        f"union all select '{SENDS}', {SENT_IN_SQL} union all select '{RECEIVES}', {_RECEIVED_IN_SQL}) t "
        "group by counter",
    )
    written: dict[str, int] = dict(rows)
    return {counter: written.get(counter, 0) for counter in (SENDS, RECEIVES, ROLLBACKS, *ENQUEUED.values())}


class StatementTotal(NamedTuple):
    """The calls and the time of one named statement, over all processes."""

    name: str
    calls: int
    microseconds: int


def add_statements(totals: Sequence[StatementTotal]) -> Steps[None]:
    """Add the calls and times of statements to their totals, as `add_totals` does."""
    yield SQL(
        "add_statements",
        ([total.name for total in totals], [total.calls for total in totals], [total.microseconds for total in totals]),
    )


def statement_totals() -> Steps[list[StatementTotal]]:
    """Return the totals of all statements, that with the most time first."""
    rows = yield SQL("statement_totals")
    return [StatementTotal(*row) for row in rows]
