"""Helpers for tests of applications: pytest fixtures, and sqlite3 in place of psycopg."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import servicebroker.testing

TESTS = """
import pytest
import servicebroker as sb
from servicebroker import testing

stock = sb.Worker("StockQueue")


@stock.on("//shop/Order")
def order(tx, message):
    tx.send(message.conversation_handle, "//shop/Order", b"one " + message.message_body)
    if message.message_body == b"nothing":
        raise ValueError("nothing cannot be shipped")


@pytest.fixture
def handle(database):
    database.define({
        "message_types": {"//shop/Order": "NONE"},
        "contracts": {"//shop/Ordering": {"//shop/Order": "ANY"}},
        "queues": {"OrderQueue": {}, "StockQueue": {}},
        "services": {
            "//shop/Orders": {"queue": "OrderQueue"},
            "//shop/Stock": {"queue": "StockQueue", "contracts": ["//shop/Ordering"]},
        },
    })
    return database.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Ordering")


def test_an_answer(database, handle, run_worker_once):
    database.send(handle, "//shop/Order", b"teapot")
    assert run_worker_once(stock) == 1
    assert run_worker_once(stock) == 0
    (answer,) = database.receive("OrderQueue")
    assert answer.message_body == b"one teapot"


def test_a_message_becomes_a_dead_letter_after_its_retries(broker, database, handle, clock, run_worker_once):
    assert broker.clock is clock
    database.send(handle, "//shop/Order", b"nothing")
    for pause in (0, 1, 2, 4, 8, 16):
        assert run_worker_once(stock) == (pause == 0)
        clock.jump(seconds=pause)
        if pause:
            assert run_worker_once(stock) == 1
    (letter,) = database.set_aside_messages()
    assert (letter.failures, letter.error) == (6, "ValueError: nothing cannot be shipped")
    assert database.receive("OrderQueue") == []


def test_a_worker_of_asyncio_is_refused(run_worker_once):
    late = sb.Worker("StockQueue")

    @late.on("//shop/Order")
    async def order(tx, message):
        pass

    with pytest.raises(sb.BrokerError, match="402"):
        run_worker_once(late)


@pytest.fixture
def broker_connect(tmp_path):
    connect = testing.sqlite(tmp_path / "test.db")
    setup = connect()
    setup.execute("create table if not exists shipments (handle text, ordered_at timestamptz)")
    setup.commit()
    return connect


def test_rows_of_the_test(broker, database, handle, clock, run_worker_once, broker_connect):
    shipping = sb.Worker("StockQueue")

    @shipping.on("//shop/Order")
    def ship(tx, message):
        tx.connection.execute("insert into shipments values (%s, now())", (message.conversation_handle,))

    database.send(handle, "//shop/Order", b"teapot")
    own = broker_connect()
    assert own.execute("select * from shipments").fetchall() == []
    assert run_worker_once(shipping) == 1
    clock.jump(hours=1)
    database.send(handle, "//shop/Order", b"cup")
    assert run_worker_once(shipping, database=database) == 1
    assert own.execute("select ordered_at from shipments").fetchall() == [
        ("2030-01-01 00:00:00+00:00",), ("2030-01-01 01:00:00+00:00",)
    ]
    other = broker.database("Other", create=True)
    with pytest.raises(sb.BrokerError, match="15151"):
        run_worker_once(shipping, database=other)
"""


def test_the_fixtures_are_there_wherever_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "4 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("query", "parameters", "found"),
    [
        ("select %s, %s", (1, "a"), (1, "a")),
        ("select %(b)s, %(a)s, %(b)s", {"a": 1, "b": "x"}, ("x", 1, "x")),
        ("select 7 %% %s, '100%%'", (4,), (3, "100%")),
        ("select '100%', 7 % 4", None, ("100%", 3)),
        ("select 1", (), (1,)),
    ],
)
def test_sqlite_accepts_placeholders_of_psycopg(
    tmp_path: Path, query: str, parameters: tuple[Any, ...] | Mapping[str, Any] | None, found: tuple[Any, ...]
) -> None:
    connection = servicebroker.testing.sqlite(tmp_path / "test.db")()
    assert connection.execute(query, parameters).fetchone() == found
    connection.close()


def test_a_placeholder_that_psycopg_does_not_know(tmp_path: Path) -> None:
    connection = servicebroker.testing.sqlite(tmp_path / "test.db")()
    with pytest.raises(ValueError, match="no placeholder '%d'"):
        connection.execute("select %d", (1,))
    with pytest.raises(sqlite3.Error):
        connection.execute("select ?", ())
    connection.close()


def test_a_connection_is_a_transaction(tmp_path: Path) -> None:
    connect = servicebroker.testing.sqlite(tmp_path / "test.db")
    connection, other_connection = connect(), connect()
    connection.execute("create table t (n)")
    connection.commit()
    connection.execute("insert into t values (%s)", (1,))
    connection.rollback()
    connection.execute("insert into t values (%s)", (2,))
    assert other_connection.execute("select n from t").fetchall() == []
    other_connection.rollback()
    connection.commit()
    assert other_connection.execute("select n from t").fetchall() == [(2,)]
    connection.close()
    other_connection.close()


def test_a_select_locks_nothing_and_a_write_names_the_remedy(tmp_path: Path) -> None:
    connect = servicebroker.testing.sqlite(tmp_path / "test.db")
    connection, other = connect(), connect()
    connection.execute("create table t (n)")
    connection.commit()
    assert connection.execute("select n from t").fetchall() == []
    other.execute("insert into t values (%s)", (Decimal("1.5"),))
    other.commit()
    assert connection.execute("select n from t").fetchall() == [("1.5",)]
    connection.execute("update t set n = 2")
    with pytest.raises(sqlite3.OperationalError, match="locked: commit the other connection"):
        other.execute("update t set n = 3")
    other.rollback()
    connection.close()
    other.close()
