"""The cost of a warm statement: calls of the package's functions, and statements to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from calls import SEND, SETUP, counted
from servicebroker.api.shared import tracing
from servicebroker.store.direct import PreparedStatements


@pytest.fixture
def database(make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[sb.Database]:
    monkeypatch.setattr(tracing, "_trace", lambda: None)  # another test of this process may have set up OpenTelemetry
    with sb.open(make_instance_url(), upkeep=None) as instance:
        database = instance.database("Test", create=True)
        database.execute_tsql(SETUP)
        yield database


@pytest.fixture
def handle(database: sb.Database) -> UUID:
    return database.begin_dialog("S", "S", contract="C", encryption=False)


@pytest.fixture
def session(database: sb.Database) -> Iterator[Any]:
    with database.tsql_session() as session:
        yield session


def test_a_send_calls_few_functions(database: sb.Database, handle: UUID) -> None:
    assert counted(lambda: database.send(handle, "M", b"123")).total() <= 45


def test_a_receive_calls_few_functions(database: sb.Database, handle: UUID) -> None:
    database.send_batch(handle, "M", [b"123"] * 100)
    assert counted(lambda: database.receive("Q", top=1)).total() <= 78


def test_a_send_in_tsql_calls_few_functions(session: Any, handle: UUID) -> None:
    assert counted(lambda: session.execute(SEND, {"handle": handle})).total() <= 80


def test_a_binary_literal_needs_no_statement(session: Any, handle: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    session.execute(SEND, {"handle": handle})
    ran: list[str] = []
    run = PreparedStatements._run

    def record(self: Any, connection: Any, sql: str, *arguments: Any) -> Any:
        ran.append(sql)
        return run(self, connection, sql, *arguments)

    monkeypatch.setattr(PreparedStatements, "_run", record)
    session.execute(SEND, {"handle": handle})
    (statement,) = ran
    assert "conversation.send" in statement
