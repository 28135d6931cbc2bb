"""Two instances that T-SQL scripts alone have introduced to each other, each served by a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from daemons import Served, free_port
from servicebroker.tsql.errors import TsqlError
from support import eventually, query

IDENTITY = """
    USE master
    CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'Pa55 of {me}'
    CREATE CERTIFICATE {me}Transport WITH SUBJECT = 'Transport of {me}', EXPIRY_DATE = '2030-12-31'
    BACKUP CERTIFICATE {me}Transport TO FILE = '{folder}/{me}.cer'
    CREATE ENDPOINT BrokerEndpoint STATE = STARTED
        AS TCP (LISTENER_PORT = {port}, LISTENER_IP = (127.0.0.1))
        FOR SERVICE_BROKER (AUTHENTICATION = CERTIFICATE {me}Transport, ENCRYPTION = REQUIRED ALGORITHM AES)
"""
PEER = """
    USE master
    CREATE LOGIN {peer}Login WITH PASSWORD = 'never used'
    CREATE USER {peer}User FOR LOGIN {peer}Login
    CREATE CERTIFICATE {peer}Transport AUTHORIZATION {peer}User FROM FILE = '{folder}/{peer}.cer'
"""
SERVICES = """
    CREATE DATABASE App
    GO
    USE App
    CREATE QUEUE Q
    CREATE SERVICE [//{me}] ON QUEUE Q ([DEFAULT])
    GRANT SEND ON SERVICE::[//{me}] TO public
    CREATE ROUTE Far WITH SERVICE_NAME = '//{peer}', ADDRESS = 'TCP://127.0.0.1:{peer_port}'
"""
SENDING = """
    DECLARE @h UNIQUEIDENTIFIER
    BEGIN DIALOG @h FROM SERVICE [//West] TO SERVICE '//East' WITH ENCRYPTION = OFF
    SEND ON CONVERSATION @h (N'from afar')
"""


class Side:
    """An instance, its daemon, and what its scripts say."""

    def __init__(self, me: str, peer: str, url: str, folder: Path) -> None:
        self.names = {"me": me, "peer": peer, "folder": str(folder), "port": free_port(), "peer_port": 0}
        self.keys = folder / f"keys of {me}"
        self.instance = sb.open(url, keys=self.keys)
        self.master = self.instance.database("master", create=True)
        self.daemon = Served(url, self.keys)

    def run(self, script: str) -> None:
        self.master.execute_tsql(script.format(**self.names))

    def close(self) -> None:
        self.daemon.kill()
        self.instance.close()


@pytest.fixture
def sides(make_url: Callable[[], str], tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    west, east = Side("West", "East", make_url(), tmp_path), Side("East", "West", make_url(), tmp_path)
    west.names["peer_port"], east.names["peer_port"] = east.names["port"], west.names["port"]
    yield west, east
    west.close()
    east.close()


def test_scripts_introduce_two_instances(sides: tuple[Side, Side]) -> None:
    """Certificates are exchanged by files; without CONNECT for its login a peer is refused, and its message waits."""
    west, east = sides
    for script in (IDENTITY, PEER, SERVICES):
        for side in sides:
            side.run(script)
    west.run("GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO [EastLogin]")
    app = east.instance.database("App")
    west.instance.database("App").execute_tsql(SENDING)
    eventually(lambda: query(app, "select sum(refused) from servicebroker.refused_connections") != [(None,)])
    assert app.receive("Q") == []
    east.run("GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO WestLogin")
    rows: list[tuple[object, ...]] = []
    script = "WAITFOR (RECEIVE CAST(message_body AS NVARCHAR(20)) AS body FROM Q), TIMEOUT 1000"
    eventually(lambda: rows.extend(app.execute_tsql(script).rows) or rows, 80)
    assert rows == [("from afar",)]


def test_what_master_has_and_what_it_refuses(sides: tuple[Side, Side]) -> None:
    west, east = sides
    west.run(IDENTITY)
    east.run(IDENTITY)
    east.run(PEER)
    shown = "SELECT name, pvt_key_encryption_type, subject FROM sys.certificates ORDER BY name"
    assert east.master.execute_tsql(shown).rows == [
        ("EastTransport", "MK", "CN=Transport of East"),
        ("WestTransport", "NA", "CN=Transport of West"),
    ]
    for script, number in [
        ("ALTER CERTIFICATE EastTransport WITH ACTIVE FOR BEGIN_DIALOG = OFF", 40515),
        ("CREATE CERTIFICATE c ENCRYPTION BY PASSWORD = 'Pa55 word!' WITH SUBJECT = 'c'", 40515),
        ("CREATE CERTIFICATE c WITH SUBJECT = 'c', START_DATE = '2090-01-01'", 40515),
        ("CREATE USER nobody WITHOUT LOGIN CREATE CERTIFICATE c AUTHORIZATION nobody FROM FILE = '{folder}/x'", 15151),
        ("DROP CERTIFICATE EastTransport", 3716),
        ("GRANT ALTER ON ENDPOINT::BrokerEndpoint TO WestLogin", 40515),
        ("GRANT CONNECT ON ENDPOINT::Other TO WestLogin", 15151),
        ("BEGIN TRANSACTION GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO WestLogin", 226),
    ]:
        with pytest.raises(TsqlError) as refused:
            east.run(script)
        assert refused.value.number == number, script
    east.run("DROP CERTIFICATE WestTransport; DROP CERTIFICATE IF EXISTS WestTransport")
    assert len(east.master.execute_tsql(shown).rows) == 1


@pytest.mark.feature(146)
@pytest.mark.parametrize("method", ["WINDOWS", "WINDOWS NTLM", "WINDOWS KERBEROS", "WINDOWS NEGOTIATE"])
def test_windows_authentication_is_refused_and_the_alternative_named(instance: sb.Instance, method: str) -> None:
    master = instance.database("master", create=True)
    with pytest.raises(TsqlError, match="Use AUTHENTICATION = CERTIFICATE name"):
        master.execute_tsql(
            "CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022) "
            f"FOR SERVICE_BROKER (AUTHENTICATION = {method})"
        )
    assert query(master, "select * from sys.service_broker_endpoints") == []


@pytest.mark.feature(146)
@pytest.mark.parametrize("method", ["CERTIFICATE", "WINDOWS KERBEROS CERTIFICATE", "CERTIFICATE WINDOWS"])
def test_of_two_methods_the_certificate_is_taken(instance: sb.Instance, method: str) -> None:
    """Both sides always show certificates, so there is no order to choose from."""
    master = instance.database("master", create=True)
    said = f"(AUTHENTICATION = {method})"
    master.execute_tsql(f"CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER {said}")
    shown = "select connection_auth_desc from sys.service_broker_endpoints"
    assert query(master, shown) == [("CERTIFICATE",)]
    instance.drop_endpoint("e")


def test_create_endpoint_says_that_nothing_is_proved_without_tls(fresh_instance: sb.Instance) -> None:
    said = fresh_instance.database("master", create=True).execute_tsql(
        "CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (ENCRYPTION = DISABLED)"
    )
    assert any("nothing proves who a peer is" in str(one) for one in said.messages)
