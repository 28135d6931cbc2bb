"""Clients of SQL Server: sign-in, requests, cancellation and malformed input, through a raw client and python-tds."""

from __future__ import annotations

import importlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.engine.diagnosis.client_findings import judge_clients
from servicebroker.engine.diagnosis.counters import counters
from servicebroker.engine.diagnosis.tds_clients import tds_refusals, tds_servers
from servicebroker.store.running import run
from servicebroker.store.statements import Steps
from servicebroker.tds import connection
from servicebroker.tds import server as tds_server
from servicebroker.tds.byte_reader import encode_utf16
from servicebroker.tds.client_session import ClientSession
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.packets import END_OF_MESSAGE, RESET_SESSION, PacketType
from servicebroker.tds.server import serve_tds
from servicebroker.tds.tokens import Status
from servicebroker.tsql.login_passwords import set_password
from servicebroker.tsql.types import INT, NVARCHAR, SqlType
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE
from tds_support import NO_HEADERS, RawClient, call, login_message, parameter

T = TypeVar("T")
PASSWORD = "Secret 1"
NVARCHAR_4000 = SqlType("nvarchar", 4000)


@pytest.fixture(scope="module")
def port(instance: sb.Instance) -> Iterator[int]:
    """The port of a server for the module's instance, with the password of sa."""
    instance.database("master", create=True).execute_tsql(f"ALTER LOGIN sa WITH PASSWORD = '{PASSWORD}'")
    with serve_tds(instance, "127.0.0.1", 0) as port:
        yield port


def test_the_password_of_an_unknown_login_is_not_that_of_sa(port: int, instance: sb.Instance) -> None:
    with instance.connection() as connection, pytest.raises(sb.BrokerError) as error:
        run(connection, set_password("dropped meanwhile", "another secret"))
    assert error.value.number == 15151
    with RawClient(port) as client:
        assert b"\xad" in client.sign_in("sa", PASSWORD, "master")


@pytest.fixture
def client(port: int, database: sb.Database) -> Iterator[RawClient]:
    """A client that has signed in."""
    with RawClient(port) as client:
        assert b"\xad" in client.sign_in("sa", PASSWORD, database.name)
        yield client


def says(response: bytes, text: str) -> bool:
    """Return True if a response contains a text."""
    return encode_utf16(text) in response


def ends_with(response: bytes, status: Status) -> bool:
    """Return True if a response ends with a DONE of that status."""
    _, found, _, _ = struct.unpack("<BHHQ", response[-13:])
    return bool(found == status)


def test_the_session_goes_on_after_errors_and_messages(client: RawClient, database: sb.Database) -> None:
    assert says(client.batch("PRINT N'grüß dich'"), "grüß dich")
    assert says(client.batch("SELECT * FROM Nowhere"), "Invalid object name 'Nowhere'.")
    assert says(client.batch("SELECT DB_NAME(), SUSER_SNAME()"), database.name)
    assert says(client.batch("USE master"), "Changed database context to 'master'.")


@pytest.mark.parametrize(
    ("user", "password", "there", "numbers"),
    [
        ("sa", "wrong", True, [18456]),
        ("nobody", "wrong", True, [18456]),
        ("sa", PASSWORD, False, [4060, 18456]),
        ("", "", True, [18452]),
    ],
)
def test_a_sign_in_is_refused(
    port: int, database: sb.Database, user: str, password: str, there: bool, numbers: list[int]
) -> None:
    with RawClient(port) as client:
        answer = client.sign_in(user, password, database.name if there else "Nowhere")
        assert [
            number for number in (4060, 18452, 18456) if b"\xaa" in answer and struct.pack("<i", number) in answer
        ] == numbers
        assert client.read() == b""
    act = query_audit(database)
    assert act == "LOGIN FAILED"


def query_audit(database: sb.Database) -> str:
    with database.instance.connection() as server:
        ((act,),) = server.execute("select act from servicebroker.audit order by audit_id desc limit 1").fetchall()
        return str(act)


def test_wrong_passwords_cost_a_delay(port: int, database: sb.Database) -> None:
    database.execute_tsql("CREATE LOGIN guessed WITH PASSWORD = 'Right 1'")
    for _ in range(4):
        with RawClient(port) as client:
            client.sign_in("guessed", "wrong")
    with RawClient(port) as client:
        assert says(client.sign_in("guessed", "Right 1"), "Login failed for user 'guessed'.")


def test_a_login_works_as_its_user(port: int, database: sb.Database) -> None:
    database.execute_tsql("CREATE LOGIN clerk WITH PASSWORD = 'Right 1'; CREATE USER Clerk FOR LOGIN clerk")
    with RawClient(port) as client:
        client.sign_in("clerk", "Right 1", database.name)
        assert says(client.batch("PRINT SUSER_SNAME() + N' as ' + USER_NAME()"), "clerk as Clerk")
        assert says(client.batch("CREATE QUEUE Mine"), "CREATE QUEUE permission denied")
    database.execute_tsql("ALTER LOGIN clerk DISABLE")
    with RawClient(port) as client:
        assert says(client.sign_in("clerk", "Right 1", database.name), "The account is disabled.")
    database.execute_tsql("DROP USER Clerk; DROP LOGIN clerk")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x12\x01\x00\x09\x00\x00\x01\x00\x00",  # an option list without an end
        b"\x16\x03\x01\x00\x05hello",  # no TLS
        b"\x01\x01\x00\x08\x00\x00\x01\x00",  # a batch before the login
        b"\x12\x01\xff\xff\x00\x00\x01\x00",
    ],
)
def test_malformed_bytes_end_the_connection_and_nothing_else(port: int, client: RawClient, data: bytes) -> None:
    with RawClient(port) as hostile:
        hostile.socket.sendall(data)
        assert hostile.read() == b""
    assert says(client.batch("PRINT 'alive'"), "alive")


def test_a_malformed_request_ends_its_session_with_an_error(client: RawClient) -> None:
    client.send(PacketType.RPC, NO_HEADERS + struct.pack("<HHH", 0xFFFF, 99, 0))
    assert says(client.read(), "No procedure has the number 99.")
    assert client.read() == b""


def test_refused_requests_leave_the_session(client: RawClient) -> None:
    client.send(PacketType.RPC, call(2))
    assert says(client.read(), "sp_cursoropen")
    client.send(PacketType.RPC, call("P", b"\x02@\0t\0\0\xf3" + bytes(20)))
    assert says(client.read(), "a table-valued parameter")
    client.send(PacketType.BULK_LOAD, b"")
    assert says(client.read(), "Bulk load")
    assert says(client.batch("PRINT 'alive'"), "alive")


def test_a_client_of_tds_7_1_signs_in_without_prelogin(port: int, database: sb.Database) -> None:
    with RawClient(port) as client:
        client.send(PacketType.LOGIN, login_message("sa", PASSWORD, database.name, version=Dialect.TDS_7_1))
        assert b"\x71\0\0\x01" in client.read()  # in LOGINACK
        client.send(PacketType.SQL_BATCH, encode_utf16("SELECT CAST('2026-01-02' AS date), N'<a/>'"))
        response = client.read()
        assert says(response, "2026-01-02")
        assert response[-9:] == struct.pack("<BHHI", 0xFD, Status.COUNT, 0, 1)
        client.send(PacketType.RPC, call(10, parameter("", NVARCHAR_4000, "SELECT 7"))[4:])
        assert b"\x26\x04" in client.read()


def test_calls_return_outputs_and_status(client: RawClient) -> None:
    client.batch("CREATE PROCEDURE Twice @n int OUTPUT AS SET @n = 2 * @n; RETURN 7")
    client.send(PacketType.RPC, call("Twice", parameter("@n", INT, 21, 1)))
    response = client.read()
    assert b"\x79\x07\0\0\0" in response
    assert b"\x26\x04\x04\x2a\0\0\0" in response
    statement = parameter("", NVARCHAR, "SELECT @a"), parameter("", NVARCHAR, "@a nvarchar(9)")
    client.send(PacketType.RPC, call(10, *statement, parameter("@a", NVARCHAR, "by name")))
    assert says(client.read(), "by name")
    client.send(
        PacketType.RPC, call(13, parameter("", INT, None, 1), *reversed(statement), parameter("@a", NVARCHAR, "1"))
    )
    handle = client.read()[-30:].partition(b"\x26\x04\x04")[2][:4]
    client.send(
        PacketType.RPC, call(12, parameter("", INT, struct.unpack("<i", handle)[0]), parameter("", NVARCHAR, "again"))
    )
    assert says(client.read(), "again")
    client.send(PacketType.RPC, call(12, parameter("", INT, 999)))
    assert says(client.read(), "Could not find prepared statement with handle 999.")


def test_an_attention_ends_a_wait_and_loses_nothing(client: RawClient, database: sb.Database) -> None:
    client.batch("BEGIN TRANSACTION")
    client.send(PacketType.SQL_BATCH, NO_HEADERS + encode_utf16(f"WAITFOR (RECEIVE * FROM [{STOCK_QUEUE}])"))
    time.sleep(0.2)  # until it waits; earlier it is cancelled as well
    client.send(PacketType.ATTENTION, b"")
    assert ends_with(client.read(), Status.FINAL)
    assert ends_with(client.read(), Status.ATTENTION)
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    database.send(handle, ORDER, b"kept")
    assert says(client.batch(f"RECEIVE TOP(1) message_type_name FROM [{STOCK_QUEUE}]; PRINT @@TRANCOUNT"), ORDER)


def test_a_late_cancellation_does_not_end_the_next_request(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = ClientSession.cancel

    def cancel_late(session: ClientSession) -> None:
        time.sleep(0.3)
        cancel(session)

    monkeypatch.setattr(ClientSession, "cancel", cancel_late)
    client.send(PacketType.SQL_BATCH, NO_HEADERS + encode_utf16("WAITFOR DELAY '00:00:00.1'"))
    client.send(PacketType.ATTENTION, b"")
    client.send(PacketType.SQL_BATCH, NO_HEADERS + encode_utf16("WAITFOR DELAY '00:00:00.5'; PRINT 'alive'"))
    responses = [client.read() for _ in range(3)]
    assert ends_with(responses[1], Status.ATTENTION)
    assert says(responses[2], "alive")


def test_a_reset_gives_a_session_as_after_the_login(client: RawClient, database: sb.Database) -> None:
    client.batch("SET NOCOUNT ON; CREATE TABLE #t (a int); USE master; BEGIN TRANSACTION")
    client.send(
        PacketType.SQL_BATCH,
        NO_HEADERS + encode_utf16("PRINT DB_NAME(); PRINT @@TRANCOUNT; SELECT * FROM #t"),
        END_OF_MESSAGE | RESET_SESSION,
    )
    response = client.read()
    assert says(response, database.name)
    assert says(response, "Invalid object name '#t'.")


def test_an_idle_session_holds_no_connection(port: int, database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PARK_DELAY_S", 0.05)
    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD, database.name)
        client.batch("SET XACT_ABORT ON; SET DATEFIRST 3")
        wait_for(lambda: count_sessions(database) == 0)
        response = client.batch(
            "PRINT 'day ' + CAST(@@DATEFIRST AS varchar(1)); IF @@OPTIONS & 16384 > 0 PRINT 'abort'"
        )
        assert says(response, "day 3")
        assert says(response, "abort")
        client.batch("BEGIN TRANSACTION; SELECT 1")
        time.sleep(0.2)
        assert count_sessions(database) == 1


def count_sessions(database: sb.Database) -> int:
    with database.instance.connection() as server:
        sql = "select count(*) from pg_stat_activity where application_name like 'servicebroker tds%' "
        sql += "and datname = current_database()"
        ((count,),) = server.execute(sql).fetchall()
        return int(count)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_client_that_vanishes_in_a_transaction_frees_its_group(port: int, database: sb.Database) -> None:
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    database.send(handle, ORDER, b"back")
    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD, database.name)
        assert says(client.batch(f"BEGIN TRANSACTION; RECEIVE * FROM [{STOCK_QUEUE}]"), ORDER)
        assert database.receive(STOCK_QUEUE) == []
    (message,) = database.receive(STOCK_QUEUE, wait=10)
    assert message.body == b"back"


def test_a_lost_session_of_postgresql_is_one_error(client: RawClient, database: sb.Database) -> None:
    client.batch("BEGIN TRANSACTION; SELECT 1")
    with database.instance.connection() as server:
        sql = "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        server.execute(sql + "where application_name like 'servicebroker tds%' and datname = current_database()")
    assert b"\xaa" in client.batch("SELECT 1")
    assert says(client.batch("PRINT 'open: ' + CAST(@@TRANCOUNT AS varchar(9))"), "open: 0")


def test_clients_beyond_the_limit_are_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tds_server, "MAX_CONNECTIONS", 0)
    with RawClient(port) as client:
        assert says(client.sign_in("sa", PASSWORD), "the maximum number of user connections")


def test_reports_show_clients_and_refusals(instance: sb.Instance, port: int, database: sb.Database) -> None:
    told: list[tuple[int, str]] = []
    instance.events.subscribe(lambda event: told.append((event.number, event.columns["LoginName"])), 14, 15, 20)

    def query(steps: Steps[T]) -> T:
        with instance.connection() as connection:
            return run(connection, steps)

    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD, database.name)
        wait_for(lambda: any(server.sessions for server in query(tds_servers())))
        own = client.batch(
            "SELECT login_name, host_name, program_name FROM sys.dm_exec_sessions WHERE session_id = @@SPID"
        )
        assert says(own, "program")
        assert says(own, "host")
        with RawClient(port) as other:
            other.sign_in("nobody", "wrong", database.name)
        wait_for(lambda: "login" in [refusal.kind for refusal in query(tds_refusals())])
        (finding,) = judge_clients([], [row for row in query(tds_refusals()) if row.kind == "login"], instance.clock())
        assert "login 'nobody' from 127.0.0.1" in finding.problem
        names = {counter.name: counter.values for counter in query(counters())}
        assert names["user_connections"][0][1] >= 1
    wait_for(lambda: (15, "sa") in told)
    assert {(14, "sa"), (20, "nobody")} <= set(told)


def test_a_client_that_refuses_the_certificate_is_noted(instance: sb.Instance, port: int) -> None:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["tds/8.0"])
    with socket.create_connection(("127.0.0.1", port)) as plain, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(plain, server_hostname="localhost")

    def kinds() -> list[str]:
        with instance.connection() as connection:
            return [refusal.kind for refusal in run(connection, tds_refusals())]

    wait_for(lambda: "certificate" in kinds())


# ---------------------------------------------------------------- a driver


@pytest.fixture
def driver(port: int, database: sb.Database) -> Iterator[Any]:
    """A connection of python-tds."""
    pytds = pytest.importorskip("pytds", reason="python-tds is not installed")
    with pytds.connect("127.0.0.1", database.name, "sa", PASSWORD, port=port, autocommit=True, timeout=20) as opened:
        yield opened


def rows(driver: Any, sql: str, *values: Any) -> list[Any]:
    cursor = driver.cursor()
    cursor.execute(sql, values) if values else cursor.execute(sql)
    return list(cursor.fetchall()) if cursor.description else []


def test_python_tds_reads_and_writes_values(driver: Any) -> None:
    values = (5, "grüß", None, Decimal("1.25"), datetime(2026, 1, 2, 3, 4, 5), "y" * 100_000)
    assert rows(driver, "SELECT %s, %s, %s, %s, %s, %s", *values) == [values]
    result_rows = rows(
        driver, "SELECT CAST(1 AS bit), CAST(2.5 AS money), CAST('x' AS char(3)), 0x01, CAST(N'<a/>' AS xml)"
    )
    assert result_rows == [(True, Decimal("2.5"), "x  ", b"\1", "<a/>")]


def test_python_tds_leads_a_dialog(driver: Any) -> None:
    sql = f"DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE '{STOCK}' "
    ((handle,),) = rows(driver, sql + f"ON CONTRACT [{CONTRACT}] WITH ENCRYPTION = OFF; SELECT @h")
    assert isinstance(handle, UUID)
    rows(
        driver,
        f"DECLARE @h uniqueidentifier = %s; SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (%s)",
        handle,
        "hällo",
    )
    receive = f"WAITFOR (RECEIVE TOP(1) CAST(message_body AS nvarchar(max)) AS body FROM [{STOCK_QUEUE}]), TIMEOUT 5000"
    assert rows(driver, receive) == [("hällo",)]


def test_python_tds_reports_errors(driver: Any) -> None:
    pytds = importlib.import_module("pytds")
    with pytest.raises(pytds.Error) as error:
        rows(driver, "RAISERROR('broken', 16, 3)")
    assert (error.value.msg_no, error.value.state, error.value.severity) == (50000, 3, 16)


def test_the_server_stops_while_clients_wait(instance: sb.Instance, port: int, database: sb.Database) -> None:
    with ExitStack() as running:
        other = running.enter_context(serve_tds(instance, "127.0.0.1", 0))
        with RawClient(other) as client:
            client.sign_in("sa", PASSWORD, database.name)
            client.send(PacketType.SQL_BATCH, NO_HEADERS + encode_utf16("WAITFOR DELAY '00:01:00'"))
            running.close()
            assert ends_with(client.read(), Status.FINAL)
            assert says(client.read(), "SHUTDOWN is in progress.")
            assert client.read() == b""
