"""The memory of a client's session between requests: prepared statements, options, transactions, reports."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from servicebroker.model.security.client_refusals import ClientRefusal
from servicebroker.model.security.permissions import Login as Principal
from servicebroker.store.statements import Steps
from servicebroker.tds import connection, prepared_statements, reporter
from servicebroker.tds.client_session import ClientSession, SignedIn, _is_parkable
from servicebroker.tds.connection import ClientGone, Outbox
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.prepared_statements import PreparedStatements
from servicebroker.tds.reporter import ReportedClient, Reporter
from servicebroker.tds.requests import RpcCall, RpcParameter
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import INT, NVARCHAR

# ---------------------------------------------------------------- prepared statements


def run(statements: PreparedStatements, name: str, *values: Any) -> Any:
    """Return the plan of a call, or the number of its error."""
    parameters = tuple(RpcParameter("", INT if isinstance(value, int) else NVARCHAR, value) for value in values)
    try:
        return statements.plan(name, RpcCall(name, parameters))
    except TsqlError as refused:
        return refused.number


def test_a_prepared_statement_is_executed_until_it_is_dropped() -> None:
    statements = PreparedStatements()
    assert run(statements, "sp_prepare", None, "@a int", "SELECT @a").values == {0: 1}
    prepared_and_run = run(statements, "sp_prepexec", None, "", "SELECT 2", 9)
    assert prepared_and_run.values == {0: 2}
    assert [(argument.value, argument.position) for argument in prepared_and_run.arguments] == [
        ("SELECT 2", -1),
        (9, 3),
    ]
    executed = run(statements, "sp_execute", 1, 5)
    assert executed.procedure == "sp_executesql"
    assert [(argument.value, argument.position) for argument in executed.arguments] == [
        ("SELECT @a", -1),
        ("@a int", -1),
        (5, 1),
    ]
    assert run(statements, "sp_unprepare", 1).procedure == ""
    assert run(statements, "sp_execute", 1, 5) == 8179
    assert run(statements, "sp_execute", 2).procedure == "sp_executesql"
    statements.clear()
    assert run(statements, "sp_execute", 2) == 8179
    assert run(statements, "sp_unprepare", 2).procedure == ""  # no error, as in SQL Server
    for name, values in (("sp_prepare", (None, "")), ("sp_execute", ()), ("sp_execute", ("x",)), ("sp_unprepare", ())):
        assert run(statements, name, *values) == 201


@pytest.mark.parametrize("give_back", ["sp_unprepare", "clear"])
def test_statements_that_are_dropped_make_room(monkeypatch: pytest.MonkeyPatch, give_back: str) -> None:
    monkeypatch.setattr(prepared_statements, "_MAX_CHARACTERS", 10)
    monkeypatch.setattr(prepared_statements, "_MAX_STATEMENTS", 2)
    statements = PreparedStatements()
    for _ in range(3):
        handles = [run(statements, "sp_prepare", None, "12", "345").values[0] for _ in range(2)]
        assert run(statements, "sp_prepare", None, "", "") == 701  # a third one
        for handle in handles:
            run(statements, "sp_unprepare", handle) if give_back == "sp_unprepare" else statements.clear()
    for _ in range(3):
        assert run(statements, "sp_prepare", None, "", "12345678901") == 701  # a refused statement takes no room
    assert run(statements, "sp_prepare", None, "", "1234567890").procedure == ""


# ---------------------------------------------------------------- options and transactions


def machine(**changes: Any) -> Any:
    state: dict[str, Any] = {
        "transactions": SimpleNamespace(count=0, was_committed=False),
        "app_locks": {},
        "cursors": {},
        "context": SimpleNamespace(depth=0),
        "is_noexec": False,
        "queries": SimpleNamespace(has_session_state=False),
    }
    return SimpleNamespace(**{**state, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"transactions": SimpleNamespace(count=1)},
        {"app_locks": {"r": 1}},
        {"cursors": {"c": 1}},
        {"context": SimpleNamespace(depth=1)},
        {"is_noexec": True},
        {"queries": SimpleNamespace(has_session_state=True)},
    ],
    ids=lambda changes: str(*changes),
)
def test_a_session_with_state_keeps_its_connection(changes: dict[str, Any]) -> None:
    assert _is_parkable(machine())
    assert not _is_parkable(machine(**changes))


class Owner:
    """A stand-in for the session of T-SQL, and for the instance of a client."""

    def __init__(self) -> None:
        self.machine, self.closed, self.cancelled = machine(), 0, False

    def __exit__(self, *_: object) -> None:
        self.closed += 1


def session_of(database: str = "Shop", dialect: Dialect = Dialect.TDS_7_4) -> Any:
    session: Any = ClientSession.__new__(ClientSession)
    session._client = SignedIn(Principal("app", 7), database, "", dialect)
    session.dialect = dialect
    session._prepared, session._session = PreparedStatements(), Owner()
    session._database, session._options, session._descriptor = "other", object(), 0
    return session


def test_a_reset_forgets_all_that_the_last_user_has_set() -> None:
    session = session_of()
    owner = session._session
    run(session._prepared, "sp_prepare", None, "", "SELECT 1")
    session._reset(keeps_transaction=False)
    assert (session._database, session._options, session._session, owner.closed) == ("Shop", None, None, 1)
    assert run(session._prepared, "sp_execute", 1) == 8179


@pytest.mark.parametrize(("descriptor", "is_kept"), [(0, False), (5, True)])
def test_a_reset_that_keeps_the_transaction_needs_one(descriptor: int, is_kept: bool) -> None:
    session = session_of()
    session._descriptor = descriptor
    session._reset(keeps_transaction=True)
    assert (session._session is not None, session._descriptor) == (is_kept, descriptor if is_kept else 0)


class Written:
    """A stand-in for a response that keeps the tokens."""

    def __init__(self) -> None:
        self.kinds: list[tuple[int, int]] = []

    def write(self, token: bytes) -> None:
        offset = 5 if token[3] == 8 else 6
        self.kinds.append((token[3], struct.unpack_from("<Q", token, offset)[0]))


def test_a_client_is_told_of_each_change_of_its_transaction_once() -> None:
    session, response = session_of(), Written()
    for count, was_committed in ((0, False), (1, False), (2, False), (0, True), (0, True), (1, True), (0, False)):
        session._session.machine.transactions = SimpleNamespace(count=count, was_committed=was_committed)
        session._note_transaction(response)
    (first, began), (second, committed), (third, began_again), (fourth, rolled_back) = response.kinds
    assert (first, second, third, fourth) == (8, 9, 8, 10)
    assert began == committed != began_again == rolled_back
    old, silent = session_of(dialect=Dialect.TDS_7_1), Written()
    old._session.machine.transactions = SimpleNamespace(count=1)
    old._note_transaction(silent)
    assert (silent.kinds, bool(old._descriptor)) == ([], True)


# ---------------------------------------------------------------- a slow client


class Loop:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def call_soon_threadsafe(self, *call: Any) -> None:
        self.calls.append(call)


def test_a_thread_waits_for_a_slow_client_and_no_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WRITE_TIMEOUT_S", 0.01)
    written: list[bytes] = []
    loop: Any = Loop()
    outbox = Outbox(SimpleNamespace(write=written.append), loop)  # type: ignore[arg-type]
    outbox.send(bytes(connection._MAX_WAITING_BYTES))
    with pytest.raises(ClientGone):
        outbox.send(b"more")
    call, *arguments = loop.calls.pop()
    call(*arguments)
    outbox.send(b"more")  # the loop has taken the first part
    outbox.pause(is_paused=True)
    with pytest.raises(ClientGone):
        outbox.send(b"while the client does not read")
    outbox.pause(is_paused=False)
    outbox.send(b"again")
    outbox.close()
    with pytest.raises(ClientGone):
        outbox.send(b"to nobody")
    assert [len(part) for part in written] == [connection._MAX_WAITING_BYTES]
    assert [call[1] for call in loop.calls] == [b"more", b"again"]


# ---------------------------------------------------------------- reports


class Server:
    """A stand-in for PostgreSQL that keeps the names of statements and their first parameter."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.closed = self.is_down = False

    def run(self, connection: Any, steps: Steps[None]) -> None:
        for statement in steps:
            if self.is_down:
                raise psycopg.OperationalError("down")
            self.seen.append((statement.name.rpartition(".")[2], statement.parameters[:1]))

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[tuple[str, Any]]:
        seen, self.seen = self.seen, []
        return [(name, parameters[0] if parameters else None) for name, parameters in seen if "_server" not in name]


def test_reports_are_written_when_they_change_and_all_again_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    def connect(url: str, *, application_name: str) -> Server:
        server.closed = False
        return server

    monkeypatch.setattr(reporter, "connect", connect)
    monkeypatch.setattr(reporter, "run", server.run)
    reports = Reporter(SimpleNamespace(url="", clock=lambda: None))  # type: ignore[arg-type]
    began = [("delete_clients", None), ("delete_refusals", None)]
    one, two = (ReportedClient(name, "", "", "", "", True, "Shop", None) for name in ("one", "two"))
    reports.write({1: one, 2: two})
    assert server.take() == [*began, ("upsert_clients", [1, 2])]
    reports.write({1: one, 2: two})
    assert server.take() == []
    reports.note_refusal(ClientRefusal.LOGIN, "10.0.0.1")
    reports.write({1: one._replace(database="Other")})
    assert server.take() == [("delete_clients", [2]), ("upsert_clients", [1]), ("upsert_refusals", ["login"])]
    server.is_down = True
    reports.note_refusal(ClientRefusal.PASSWORD, "10.0.0.1")
    reports.note_refusal(ClientRefusal.PASSWORD, "10.0.0.2")
    reports.write({1: one})  # while PostgreSQL is down
    assert server.closed
    server.is_down = False
    reports.write({1: one})
    assert server.take() == [*began, ("upsert_clients", [1]), ("upsert_refusals", ["login", "password"])]
    server.closed = True  # its session was ended
    reports.write({1: one})
    assert server.take() == [*began, ("upsert_clients", [1]), ("upsert_refusals", ["login", "password"])]
    assert reports._refused[ClientRefusal.PASSWORD].times == 2
    assert (reports._refused[ClientRefusal.PASSWORD].address, reports._refused[ClientRefusal.LOGIN].times) == (
        "10.0.0.2",
        1,
    )
