"""Rows that count incidents: a second report adds up, and old rows and those too many are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.diagnosis.totals import StatementTotal, add_statements, add_totals
from servicebroker.engine.diagnosis.wrong_clocks import note_wrong_clock
from servicebroker.engine.remote import known_peers, old_copies, refusals
from servicebroker.engine.remote.refusals import RefusalKey, save_refusals
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.model.security.peers import INSTANCE, FalseClaim
from servicebroker.protocol.envelope import BrokerFailure
from servicebroker.store.connection import connect
from servicebroker.store.running import run
from servicebroker.store.statements import Steps, only

NOON = datetime.fromisoformat("2030-01-01T12:00:00Z")
LATER = NOON + timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
Report = Callable[[str, int, str, datetime], Steps[Any]]  # of a subject: number of incidents, text, time


def report_old_copies(subject: str, times: int, text: str, now: datetime) -> Steps[None]:
    """Report each incident by itself, since an old copy has no number."""
    values: dict[str, Any] = dict.fromkeys(RemoteEndpoint._fields)
    broker = UUID(int=sum(subject.encode()))
    endpoint = RemoteEndpoint(**values | {"own_broker": broker, "far_service": text})
    for _ in range(times):
        yield from only(old_copies.note(endpoint, None, BrokerFailure(-1, text), now, is_here=True))


class Incidents(NamedTuple):
    """A table, the function that writes it, and the columns that add up, keep their first value, or get the last one.

    Attributes:
        retention: rows older than this are deleted by the next report; None if time deletes none.
        limit: the constant of the module that bounds the rows; the latest are kept.
    """

    report: Report
    sums: tuple[str, ...] = ()
    firsts: tuple[str, ...] = ()
    lasts: tuple[str, ...] = ()
    retention: timedelta | None = None
    limit: tuple[ModuleType, str] | None = None


INCIDENTS = {
    "refusals": Incidents(
        lambda subject, times, text, now: save_refusals({RefusalKey(True, subject, 9753): (times, text)}, now),
        ("times",),
        ("first_time",),
        ("last_time", "last_text"),
        refusals.REFUSAL_RETENTION,
        (refusals, "MAX_ROWS"),
    ),
    "mistrusted": Incidents(
        lambda subject, times, text, now: known_peers.save_false_claims(
            {FalseClaim(subject, INSTANCE): (times, text)}, now
        ),
        ("times",),
        lasts=("last_time", "last_detail"),
        limit=(known_peers, "MAX_CLAIMS"),
    ),
    "old_copies": Incidents(report_old_copies, ("times",), lasts=("last_time", "last_detail", "far_service")),
    "totals": Incidents(lambda subject, times, text, now: add_totals({subject: times}), ("value",)),
    "statement_totals": Incidents(
        lambda subject, times, text, now: add_statements([StatementTotal(subject, times, times)]),
        ("calls", "microseconds"),
    ),
}


@pytest.fixture
def connection(instance: sb.Instance) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction is rolled back."""
    with connect(instance.url) as connection, connection.transaction(force_rollback=True):
        yield connection


def rows_of(connection: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    text = f"select to_jsonb(t) from servicebroker.{table} t".encode()
    return [row for (row,) in connection.execute(text).fetchall()]


@pytest.mark.parametrize("table", INCIDENTS)
def test_a_second_report_adds_to_the_row_of_the_first(connection: psycopg.Connection[Any], table: str) -> None:
    connection.execute(f"delete from servicebroker.{table}".encode())
    incidents = INCIDENTS[table]
    for times, text, now in ((2, "first", NOON), (3, "last", LATER)):
        run(connection, incidents.report("one", times, text, now))
    run(connection, incidents.report("other", 7, "other", LATER))
    row, other = sorted(rows_of(connection, table), key=lambda row: row[incidents.sums[0]])
    values = {"time": (NOON, LATER), "text": ("first", "last")}
    for column in incidents.sums:
        assert (row[column], other[column]) == (5, 7)
    for columns, place in ((incidents.firsts, 0), (incidents.lasts, 1)):
        for column in columns:
            is_time = column.endswith("_time")
            found = datetime.fromisoformat(row[column]) if is_time else row[column]
            assert found == values["time" if is_time else "text"][place], column


@pytest.mark.parametrize("table", [table for table, incidents in INCIDENTS.items() if incidents.limit])
def test_the_latest_rows_are_kept(
    connection: psycopg.Connection[Any], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(f"delete from servicebroker.{table}".encode())
    incidents = INCIDENTS[table]
    assert incidents.limit is not None
    monkeypatch.setattr(*incidents.limit, 2)
    for minute, subject in enumerate("abca"):
        run(connection, incidents.report(subject, 1, subject, NOON + timedelta(minutes=minute)))
    last = next(column for column in incidents.lasts if column != "last_time")
    assert sorted(row[last] for row in rows_of(connection, table)) == ["a", "c"]


@pytest.mark.parametrize("table", [table for table, incidents in INCIDENTS.items() if incidents.retention])
def test_rows_are_kept_for_their_time(connection: psycopg.Connection[Any], table: str) -> None:
    connection.execute(f"delete from servicebroker.{table}".encode())
    incidents = INCIDENTS[table]
    assert incidents.retention is not None
    run(connection, incidents.report("old", 1, "old", NOON))
    for after, count in ((timedelta(), 2), (MICROSECOND, 1)):
        run(connection, incidents.report("new", 1, "new", NOON + incidents.retention + after))
        assert len(rows_of(connection, table)) == count


def test_the_row_of_a_wrong_clock_is_replaced(connection: psycopg.Connection[Any]) -> None:
    connection.execute("delete from servicebroker.wrong_clocks")
    for seconds, now in ((9, NOON), (-7, LATER)):
        run(connection, note_wrong_clock(timedelta(seconds=seconds), now))
    (row,) = rows_of(connection, "wrong_clocks")
    assert (row["seconds_ahead"], datetime.fromisoformat(row["last_time"])) == (-7, LATER)
    connection.execute("update servicebroker.wrong_clocks set program = 'other'")
    for now, count in ((LATER + timedelta(days=1), 2), (LATER - timedelta(days=1, seconds=1), 1)):
        run(connection, note_wrong_clock(timedelta(seconds=1), now))
        assert len(rows_of(connection, "wrong_clocks")) == count
