"""The trail, an optional log of the events of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.api.maintenance import run_maintenance
from servicebroker.cli.commands.trail import describe_event
from servicebroker.cli.main import app
from servicebroker.dashboard import Dashboard
from servicebroker.engine.diagnosis.trail import (
    TRAIL_RETENTION,
    Event,
    find_events,
    merge_runs,
    partitions,
    with_short_lock_timeout,
)
from servicebroker.model.names import END_DIALOG
from servicebroker.store.running import in_transaction, run
from support import ORDER, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, begin, open_dialog, peer_handle, query

TRIGGERS = "select count(*)::int from pg_trigger where tgname like 'trailed%%'"


@pytest.fixture
def database(make_instance_url: Callable[..., str]) -> Iterator[sb.Database]:
    with sb.open(make_instance_url(1), upkeep=None) as instance:
        yield instance.database("Test")


def command(database: sb.Database, *arguments: str) -> str:
    return (
        CliRunner()
        .invoke(app, ["trail", *arguments, "--instance", database.instance.url], catch_exceptions=False)
        .stdout
    )


def events(database: sb.Database, handle: UUID) -> list[Event]:
    with database.instance.connection() as connection:
        return run(connection, find_events(handle))


def count_events(database: sb.Database) -> int:
    return int(query(database, "select count(*) from servicebroker.trail")[0][0])


def test_off_it_is_not_there(database: sb.Database) -> None:
    open_dialog(database)
    assert (count_events(database), query(database, TRIGGERS)) == (0, [(0,)])
    command(database, "on")
    assert query(database, TRIGGERS)[0][0] > 4
    assert "off" in command(database, "off")
    open_dialog(database)
    assert (count_events(database), query(database, TRIGGERS)) == (0, [(0,)])
    assert database.instance.check().findings == []


def test_the_trail_shows_the_life_of_a_conversation(database: sb.Database) -> None:
    assert "every conversation" in command(database, "on")
    handle = begin(database)
    with database.transaction() as tx:
        for number in range(3):
            tx.send(handle, ORDER, b"x%d" % number)
    far = peer_handle(database, handle)
    with database.transaction() as tx:
        received = tx.receive(STOCK_QUEUE, top=10)
        assert len(received) == 3
        tx.send(far, REPLY, b"done")
        tx.end_conversation(far)
    with pytest.raises(ZeroDivisionError), database.transaction() as tx:
        tx.receive(ORDERS_QUEUE)
        raise ZeroDivisionError
    database.begin_conversation_timer(handle, 3600)
    database.receive(ORDERS_QUEUE, top=10)
    database.end_conversation(handle)
    trail = events(database, handle)
    assert trail == events(database, far)
    sides = {handle: "near", far: "far"}
    lines = [f"{sides[event.handle]} {describe_event(event)}" for event in trail]
    first = [line for line in lines if "state" not in line]
    assert first[:2] == [
        f"far 3 messages, 0 to 2 of type {ORDER}: arrived in its queue",
        f"far 3 messages, 0 to 2 of type {ORDER}: left its queue",
    ]
    assert f"near message 0 of type {REPLY}: arrived in its queue" in first
    assert f"near message 1 of type {END_DIALOG}: arrived in its queue" in first
    assert any(line.startswith("near timer set for ") for line in lines)
    assert "near state CO -> DI" in lines
    assert sum("left its queue" in line and line.startswith("near") for line in lines) == 1, (
        "what was rolled back is not there"
    )
    (came,) = [event for event in trail if event.what == "R" and event.handle == far]
    (answered,) = [event for event in trail if event.what == "A" and event.handle == handle and event.first == 0]
    assert came.transaction == answered.transaction, "received and answered in one transaction"
    with TestClient(Dashboard([database.instance.url], token=None), base_url="http://127.0.0.1") as browser:
        page = browser.get(f"/i/0/conversation?handle={handle}").text
        assert "3 messages, 0 to 2" in page
        assert f"transaction {came.transaction}" in page
    report = json.loads(command(database, "show", str(far), "--json"))["events"]
    assert len(report) == len(trail)
    assert database.instance.check().findings == []


def test_chosen_services_and_conversations_and_a_share(database: sb.Database) -> None:
    database.create_queue("OtherQueue")
    database.create_service("Other", "OtherQueue", [])
    command(database, "on", "--service", f"Test.{STOCK}")
    handle, far = open_dialog(database)
    assert {event.handle for event in events(database, handle)} == {far}
    command(database, "on", "--conversation", str(handle))
    second, _ = open_dialog(database)
    assert events(database, second) == []
    before = count_events(database)
    database.send(handle, ORDER, b"x")
    assert count_events(database) == before + 1
    command(database, "on", "--share", "0.5")
    followed = 0
    for _ in range(40):
        third, _ = open_dialog(database)
        sides = {event.handle for event in events(database, third)}
        assert len(sides) in (0, 2), "both sides or none"
        followed += bool(sides)
    assert 5 < followed < 35
    for wrong in (("--service", "Test.Nobody"), ("--conversation", str(uuid4()))):
        told_so = CliRunner().invoke(app, ["trail", "on", *wrong, "--instance", database.instance.url])
        assert isinstance(told_so.exception, sb.BrokerError)


def test_failures_and_waiting_are_events_too(database: sb.Database) -> None:
    command(database, "on")
    handle = begin(database)
    database.send(handle, ORDER, b"x")

    def refuse(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no such order")

    database.process(STOCK_QUEUE, refuse, poison=lambda failure: sb.SetAside())
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"y")
    database.alter_queue(STOCK_QUEUE, status=True)
    event_rows = [(event.what, event.first, event.detail) for event in events(database, handle) if event.what in "FPWL"]
    assert any(what == "P" and "no such order" in detail for what, _, detail in event_rows)
    assert [what for what, number, _ in event_rows if number == 1] == ["W", "L"]


def test_a_queue_that_comes_later_is_followed_and_partitions_are_dropped(database: sb.Database) -> None:
    command(database, "on")
    database.create_queue("Later")
    before = query(database, TRIGGERS)[0][0]
    now = database.instance.clock()
    with database.instance.connection() as connection:
        run_maintenance(connection, now)
        assert query(database, TRIGGERS)[0][0] == before + 2
        names = "select count(*)::int from pg_inherits where inhparent = 'servicebroker.trail'::regclass"
        assert query(database, names) == [(4,)], "today, two days more, and the rest"
        open_dialog(database)
        assert query(database, "select count(*) from servicebroker.trail_rest") == [(0,)]
        run_maintenance(connection, now + TRAIL_RETENTION + timedelta(days=1))
        assert count_events(database) == 0
        connection.execute(
            "insert into servicebroker.trail (at, conversation_handle, what) select now(), %s, 'G'", [uuid4()]
        )
        for statement in run(connection, partitions(now)):  # the rest partition has a row of today, which stays there
            in_transaction(connection, with_short_lock_timeout(statement))
    assert database.instance.check().findings == []


def test_a_transaction_that_holds_a_queue_is_waited_for(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servicebroker.cli.commands.trail._LOCK_TIMEOUT_S", 0.2)
    handle, _ = open_dialog(database)
    with database.transaction() as tx:
        tx.send(handle, ORDER, b"x")
        refused = CliRunner().invoke(app, ["trail", "on", "--instance", database.instance.url])
        assert "has used a table" in str(refused.exception)
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    database.send(handle, ORDER, b"x")
    assert events(database, handle)


def test_runs_are_merged() -> None:
    answered = Event(datetime.now(UTC), 7, uuid4(), "A", 0, 0, 1, "T", "")
    run_of = [answered, answered._replace(first=1, last=4, messages=4), answered._replace(first=6, last=6)]
    assert [(event.first, event.last, event.messages) for event in merge_runs(run_of)] == [(0, 4, 5), (6, 6, 1)]
    assert len(merge_runs([answered, answered._replace(first=1, last=1, transaction=8)])) == 2
