"""SQL Server's drivers: one table of cases for each that is installed; others are skipped by name.

`SERVICEBROKER_CLIENT_MATRIX=docs/how-to/sql-server-clients.md` writes the results into that page.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

import servicebroker as sb
from servicebroker.tds.server import serve_tds
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE
from tds_clients import CLIENTS, Client, ClientError, NotInstalled, Parameter, Server, Tsql

PASSWORD = "Secret 1"
STATEMENT_TIMEOUT_S = 60
LONG = "y" * 100_000

# expression and the text of its value
TYPES_OUT = [
    ("1", "1"),
    ("CAST(9007199254740993 AS bigint)", "9007199254740993"),
    ("CAST(200 AS tinyint)", "200"),
    ("CAST(1 AS bit)", "1"),
    ("CAST(1.25 AS decimal(9, 2))", "1.25"),
    ("CAST(2.5 AS money)", "2.5"),
    ("CAST(0.5 AS float)", "0.5"),
    ("N'grüß'", "grüß"),
    ("CAST('x' AS char(3))", "x  "),
    ("CAST('ab' AS varchar(MAX))", "ab"),
    ("0x00FF", "00ff"),
    ("CAST('6F9619FF-8B86-D011-B42D-00C04FC964FF' AS uniqueidentifier)", "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
    ("CAST('2026-01-02T03:04:05' AS datetime)", "2026-01-02 03:04:05"),
    ("CAST('2026-01-02' AS date)", "2026-01-02"),
    ("CAST('12:30:01' AS time(0))", "12:30:01"),
    ("CAST('2026-01-02T03:04:05' AS datetime2(0))", "2026-01-02 03:04:05"),
    ("CAST(N'<a/>' AS xml)", "<a/>"),
    ("CAST(NULL AS int)", "null"),
]
TYPES_IN = [
    Parameter("int", "5"),
    Parameter("nvarchar", "grüß"),
    Parameter("null", "NULL"),
    Parameter("decimal", "1.25"),
    Parameter("datetime", "2026-01-02 03:04:05"),
    Parameter("varbinary", "00ff"),
    Parameter("nvarchar", LONG),
]


@pytest.fixture(scope="module")
def port(instance: sb.Instance) -> Iterator[int]:
    instance.database("master", create=True).execute_tsql(f"ALTER LOGIN sa WITH PASSWORD = '{PASSWORD}'")
    with serve_tds(instance, "127.0.0.1", 0) as port:
        yield port


# ---------------------------------------------------------------- cases


def types_out(client: Client) -> None:
    for expression, text in TYPES_OUT:
        ((value,),) = client.query(f"SELECT {expression} AS v")
        assert value.lower() == text, expression  # drivers write a GUID in either case
    (row,) = client.query("SELECT " + ", ".join(f"{one} AS c{index}" for index, (one, _) in enumerate(TYPES_OUT)))
    assert [cell.lower() for cell in row] == [text for _, text in TYPES_OUT]


def types_in(client: Client) -> None:
    longest = getattr(client, "max_parameter_characters", len(LONG))
    for parameter in TYPES_IN:
        value = "CAST(@p1 AS datetime)" if parameter.kind == "datetime" else "@p1"  # some drivers send a literal
        assert client.query(f"SELECT {value} AS v", parameter) == [(parameter.text[:longest],)], parameter.kind
    guid = str(uuid4())
    ((same,),) = client.query("SELECT CAST(@p1 AS uniqueidentifier) AS v", Parameter("uniqueidentifier", guid))
    assert same.lower() == guid


def errors(client: Client) -> None:
    for sql, number, text in (
        ("RAISERROR('broken', 16, 3)", 50000, "broken"),
        ("SELECT * FROM Nowhere", 208, "Invalid object name"),
        ("SELECT 1 / 0 AS v", 8134, "Divide by zero"),
    ):
        with pytest.raises(ClientError) as raised:
            client.query(sql)
        assert raised.value.number in (number, 0)
        assert text in raised.value.text
    assert client.query("SELECT 1 AS v") == [("1",)]


def transactions(client: Client) -> None:
    client.query("CREATE TABLE Orders (number int)")
    client.begin()
    client.query("INSERT Orders VALUES (1)")
    client.rollback()
    client.begin()
    client.query("INSERT Orders VALUES (2)")
    client.commit()
    assert client.query("SELECT number FROM Orders") == [("2",)]


def waits(client: Client) -> None:
    start = time.monotonic()
    assert client.query(f"WAITFOR (RECEIVE TOP(1) message_body FROM [{STOCK_QUEUE}]), TIMEOUT 200") == []
    assert time.monotonic() - start > 0.2


def dialog(client: Client) -> None:
    begin = f"DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE '{STOCK}' "
    ((handle,),) = client.query(begin + f"ON CONTRACT [{CONTRACT}] WITH ENCRYPTION = OFF; SELECT @h AS h")
    send = "DECLARE @h uniqueidentifier = @p1; SEND ON CONVERSATION @h MESSAGE TYPE [{}] (@p2)"
    handle_value = Parameter("uniqueidentifier", handle)
    client.query(send.format(ORDER), handle_value, Parameter("nvarchar", "hällo"))
    receive = (
        "WAITFOR (RECEIVE TOP(1) conversation_handle, message_type_name, CAST(message_body AS nvarchar(MAX)) AS b "
    )
    ((theirs, type_, body),) = client.query(receive + f"FROM [{STOCK_QUEUE}]), TIMEOUT 5000")
    assert (type_, body) == (ORDER, "hällo")
    client.query(send.format(REPLY), Parameter("uniqueidentifier", theirs), Parameter("nvarchar", "back"))
    client.query("DECLARE @h uniqueidentifier = @p1; END CONVERSATION @h", Parameter("uniqueidentifier", theirs))
    found = [client.query(receive + f"FROM [{ORDERS_QUEUE}]), TIMEOUT 5000")[0][1] for _ in range(2)]
    assert found == [REPLY, "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"]
    client.query("DECLARE @h uniqueidentifier = @p1; END CONVERSATION @h", handle_value)
    assert client.query("SELECT state FROM sys.conversation_endpoints WHERE state <> 'CD'") == []


CASES: dict[str, Callable[[Client], None]] = {
    "types out": types_out,
    "types in": types_in,
    "errors": errors,
    "transactions": transactions,
    "WAITFOR (RECEIVE)": waits,
    "dialog": dialog,
}


def command_timeout(name: str, server: Server) -> None:
    """The driver cancels a wait at its command timeout. No message is lost."""
    client = CLIENTS[name]()
    client.open(server, 1)
    with suppress(ClientError), pytest.raises(ClientError):
        client.query(f"WAITFOR (RECEIVE TOP(1) message_body FROM [{STOCK_QUEUE}]), TIMEOUT 30000")
        raise AssertionError("no timeout")
    with suppress(ClientError):
        client.close()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_connects_and_works(name: str, port: int, database: sb.Database) -> None:
    server = Server(port, database.name, "sa", PASSWORD)
    failures: dict[str, str] = {}
    client = CLIENTS[name]()
    try:
        client.open(server, STATEMENT_TIMEOUT_S)
    except NotInstalled as missing:
        pytest.skip(str(missing))
    try:
        for case, work in CASES.items():
            try:
                work(client)
            except (AssertionError, ClientError) as problem:
                failures[case] = str(problem)
    finally:
        client.close()
    if not isinstance(client, Tsql):
        start = time.monotonic()
        command_timeout(name, server)
        if time.monotonic() - start > 20:
            failures["timeout"] = "The driver's timeout did not end the wait."
    record(name, failures, has_timeout=not isinstance(client, Tsql))
    assert failures == {}


def record(name: str, failures: dict[str, str], *, has_timeout: bool) -> None:
    """Write the client's row into the page, if asked for."""
    if not (path := os.environ.get("SERVICEBROKER_CLIENT_MATRIX")):
        return
    page = Path(path)
    cells = ["no" if case in failures else "yes" for case in CASES]
    cells.append("no" if "timeout" in failures else "yes" if has_timeout else "has none")
    row = f"| {name} | {' | '.join(cells)} |"
    text = page.read_text(encoding="utf-8")
    page.write_text(
        re.sub(rf"(?m)^\| {re.escape(name)} \|( (yes|no|has none|not run) \|)+$", row, text), encoding="utf-8"
    )
