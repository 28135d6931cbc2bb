"""Statistics by statement name: calls and time of all processes of an instance."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app
from servicebroker.store.statement_counts import StatementCounts, counts_of
from support import ORDER, begin, open_dialog


def totals(url: str) -> dict[str, tuple[int, int]]:
    """Return calls and microseconds by statement name."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("select name, calls, microseconds from servicebroker.statement_totals").fetchall()
    return {name: (calls, microseconds) for name, calls, microseconds in rows}


def send(url: str, messages: int) -> None:
    """Run a process that sends `messages` messages one by one."""
    with sb.open(url) as instance:
        database = instance.database("Test")
        handle = begin(database)
        database.send(handle, ORDER, b"first")  # opens the conversation with other statements
        for _ in range(messages):
            database.send(handle, ORDER, b"x")


def test_totals_add_up_over_processes(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    calls, _ = totals(url).get("conversation.send", (0, 0))
    other = multiprocessing.get_context("spawn").Process(target=send, args=(url, 20))
    other.start()
    send(url, 30)
    other.join()
    after, microseconds = totals(url)["conversation.send"]
    assert after - calls == 50
    assert 0 < microseconds / after < 1_000_000
    result = CliRunner().invoke(app, ["status", "--statements", "--json", "--instance", url], catch_exceptions=False)
    shown = {row["name"]: row["calls"] for row in json.loads(result.stdout)["statements"]}
    assert shown["conversation.send"] == after
    result = CliRunner().invoke(app, ["status", "--statements", "--instance", url], catch_exceptions=False)
    assert re.search(rf"conversation\.send +{after} ", result.stdout)


def test_failed_statements_are_counted(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url) as instance:
        database = instance.database("Test")
        handle, _ = open_dialog(database)
        with database.transaction() as holder:
            holder.send(handle, ORDER, b"x")
            with pytest.raises(sb.InstanceError, match="lock_timeout"), database.transaction() as waiter:
                waiter.connection.execute("set local lock_timeout = 50")
                waiter.send(handle, ORDER, b"y")
    assert totals(url)["conversation.send"][1] >= 50_000


def test_statements_on_a_joined_connection_are_counted(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url) as instance, psycopg.connect(url) as connection:
        database = instance.database("Test")
        handle = begin(database)
        counts = counts_of(connection)
        counts.take()
        database.join(connection).send(handle, ORDER, b"x")
        assert sum(calls for calls, _ in counts.take().values()) > 0


def test_counts_that_could_not_be_stored_are_put_back() -> None:
    counts = StatementCounts()
    counts.add("a", 1.0)
    counts.add("a", 0.5)
    taken = counts.take()
    assert taken == {"a": (2, 1.5)}
    assert counts.take() == {}
    counts.put_back(taken)
    counts.add("a", 0.5)
    assert counts.take() == {"a": (3, 2.0)}
