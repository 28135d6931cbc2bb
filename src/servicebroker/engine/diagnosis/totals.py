"""Counters of the object Broker Statistics that only the processes of applications know (docs/reference/metrics.md).

Each process counts for itself and adds what it has counted to a row now and then, so that no verb pays a statement.
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
    """Add these, in one statement; everybody takes the rows in the same order."""
    yield SQL("add_totals", (list(counts), list(counts.values())))


def totals() -> Steps[dict[str, int]]:
    """All of them; 0 for what has never happened."""
    rows = yield Statement(
        "diagnosis.totals",
        "select counter, sum(value)::bigint from (select counter, value from servicebroker.totals "
        f"union all select '{SENDS}', {SENT_IN_SQL} union all select '{RECEIVES}', {_RECEIVED_IN_SQL}) t "
        "group by counter",
    )
    written: dict[str, int] = dict(rows)
    return {counter: written.get(counter, 0) for counter in (SENDS, RECEIVES, ROLLBACKS, *ENQUEUED.values())}


class StatementTotal(NamedTuple):
    """What all processes have spent on one statement, by its name."""

    name: str
    calls: int
    microseconds: int


def add_statements(totals: Sequence[StatementTotal]) -> Steps[None]:
    """Add these, as `add_totals` does."""
    yield SQL(
        "add_statements",
        ([one.name for one in totals], [one.calls for one in totals], [one.microseconds for one in totals]),
    )


def statement_totals() -> Steps[list[StatementTotal]]:
    """All of them, what took most in all first."""
    rows = yield SQL("statement_totals")
    return [StatementTotal(*row) for row in rows]
