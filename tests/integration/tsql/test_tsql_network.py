"""Two instances that T-SQL scripts alone have introduced to each other, each served by a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from daemons import ServeProcess, free_port
from servicebroker.engine.security.logins import find_connect
from servicebroker.store.running import run
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.statement_errors import TsqlError
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
SEND_SCRIPT = """
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
        self.daemon = ServeProcess(url, self.keys)

    def run(self, script: str) -> None:
        self.master.execute_tsql(script.format(**self.names))

    def close(self) -> None:
        self.daemon.kill()
        self.instance.close()


@pytest.fixture
def sides(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    west, east = (
        Side("West", "East", make_instance_url(), tmp_path),
        Side("East", "West", make_instance_url(), tmp_path),
    )
    west.names["peer_port"], east.names["peer_port"] = east.names["port"], west.names["port"]
    yield west, east
    west.close()
    east.close()


@pytest.fixture(scope="module")
def master(instance: sb.Instance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sb.Database]:
    with sb.open(instance.url, upkeep=None, keys=tmp_path_factory.mktemp("keys")) as opened:
        opened.create_certificate("Own One")
        yield opened.database("master", create=True)


def test_scripts_introduce_two_instances(sides: tuple[Side, Side]) -> None:
    """Certificates are exchanged by files; without CONNECT for its login a peer is refused, and its message waits."""
    let_in_late(sides, "", "GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO WestLogin")


def test_a_peer_whose_login_is_disabled_is_not_let_in(sides: tuple[Side, Side]) -> None:
    granted = "GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO WestLogin ALTER LOGIN WestLogin DISABLE"
    let_in_late(sides, granted, "ALTER LOGIN WestLogin ENABLE")


def let_in_late(sides: tuple[Side, Side], before: str, after: str) -> None:
    """A message waits while its peer is refused, `before`, and arrives when it is let in, `after`."""
    west, east = sides
    for script in (IDENTITY, PEER, SERVICES):
        for side in sides:
            side.run(script)
    west.run("GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO [EastLogin]")
    east.run(before)
    app = east.instance.database("App")
    west.instance.database("App").execute_tsql(SEND_SCRIPT)
    eventually(lambda: query(app, "select sum(refused) from servicebroker.refused_connections") != [(None,)])
    assert app.receive("Q") == []
    east.run(after)
    rows: list[tuple[object, ...]] = []
    script = "WAITFOR (RECEIVE CAST(message_body AS NVARCHAR(20)) AS body FROM Q), TIMEOUT 1000"
    eventually(lambda: rows.extend(app.execute_tsql(script).rows) or rows, 80)
    assert rows == [("from afar",)]


def test_certificates_of_master_and_refused_changes(sides: tuple[Side, Side]) -> None:
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
        ("CREATE USER nobody WITHOUT LOGIN CREATE CERTIFICATE c AUTHORIZATION nobody FROM FILE = '{folder}/x'", 15151),
        ("DROP CERTIFICATE EastTransport", 3716),
        ("GRANT ALTER ON ENDPOINT::BrokerEndpoint TO WestLogin", 40515),
        ("GRANT CONNECT ON ENDPOINT::Other TO WestLogin", 15151),
        ("BEGIN TRANSACTION GRANT CONNECT ON ENDPOINT::BrokerEndpoint TO WestLogin", 226),
    ]:
        with pytest.raises(TsqlError) as error:
            east.run(script)
        assert error.value.number == number, script
    east.run("DROP CERTIFICATE WestTransport; DROP CERTIFICATE IF EXISTS WestTransport")
    assert len(east.master.execute_tsql(shown).rows) == 1


@pytest.mark.feature(146)
@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("WINDOWS", "NEGOTIATE"),
        ("WINDOWS NTLM", "NTLM"),
        ("WINDOWS KERBEROS", "KERBEROS"),
        ("WINDOWS NEGOTIATE", "NEGOTIATE"),
        ("WINDOWS KERBEROS CERTIFICATE [Own One]", "KERBEROS, CERTIFICATE"),
        ("CERTIFICATE [Own One] WINDOWS", "CERTIFICATE, NEGOTIATE"),
        ("CERTIFICATE WINDOWS NTLM", "CERTIFICATE, NTLM"),
    ],
)
def test_create_endpoint_accepts_each_authentication_method(master: sb.Database, method: str, shown: str) -> None:
    statement = (
        "CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022) "
        f"FOR SERVICE_BROKER (AUTHENTICATION = {method}, ENCRYPTION = REQUIRED)"
    )
    assert [finding.verdict for finding in check(statement)] == [Verdict.DIFFERS]
    master.execute_tsql(statement)
    columns = "connection_auth_desc, CASE certificate_id WHEN 0 THEN NULL ELSE 1 END"
    certified = 1 if "CERTIFICATE" in method else None
    assert master.execute_tsql(f"SELECT {columns} FROM sys.service_broker_endpoints").rows == [(shown, certified)]
    master.execute_tsql("ALTER ENDPOINT e FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS) DROP ENDPOINT e")


@pytest.mark.feature(146)
@pytest.mark.parametrize("method", ["WINDOWS WINDOWS", "NTLM", "CERTIFICATE a CERTIFICATE b", "WINDOWS NTLM NTLM", ""])
def test_invalid_authentication_methods_are_refused(master: sb.Database, method: str) -> None:
    statement = (
        f"CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (AUTHENTICATION = {method}, "
        "ENCRYPTION = REQUIRED)"
    )
    with pytest.raises(TsqlError) as error:
        master.execute_tsql(statement)
    assert error.value.number == 102
    assert [finding.verdict for finding in check(statement)] == [Verdict.REFUSED]


@pytest.mark.feature(146)
def test_logins_from_windows_name_members_of_a_domain(master: sb.Database) -> None:
    script = """
        CREATE LOGIN [CORP\\Shop] FROM WINDOWS WITH DEFAULT_DATABASE = [master]
        CREATE LOGIN Plain WITH PASSWORD = 'never used'
    """
    master.execute_tsql(script)
    shown = """SELECT name, type, type_desc FROM sys.server_principals
    WHERE name NOT IN ('public', 'sa', SUSER_SNAME()) ORDER BY name"""
    assert master.execute_tsql(shown).rows == [
        ("CORP\\Shop", "U", "WINDOWS_LOGIN"),
        ("Plain", "S", "SQL_LOGIN"),
    ]
    assert [finding.verdict for finding in check(script)] == [Verdict.DIFFERS] * 2
    for name in ("Shop", "CORP\\", "\\Shop", "A\\B\\C"):
        statement = f"CREATE LOGIN [{name}] FROM WINDOWS"
        with pytest.raises(TsqlError) as refused:
            master.execute_tsql(statement)
        (found,) = check(statement)
        assert (refused.value.number, found.verdict) == (15407, Verdict.REFUSED)
        assert "15407" in found.note
    with pytest.raises(TsqlError) as error:
        master.execute_tsql("CREATE LOGIN [corp\\shop] FROM WINDOWS")
    assert error.value.number == 15025
    master.execute_tsql("DROP LOGIN [CORP\\Shop] DROP LOGIN Plain")


@pytest.mark.feature(146)
def test_certificates_of_master_obey_their_dates_and_passwords(sides: tuple[Side, Side]) -> None:
    west, east = sides
    west.run("""
        CREATE CERTIFICATE Dated WITH SUBJECT = 'd', START_DATE = '2031-01-02', EXPIRY_DATE = '2032-03-04'
        CREATE CERTIFICATE Locked ENCRYPTION BY PASSWORD = 'Pa55 of Locked' WITH SUBJECT = 'l'
        BACKUP CERTIFICATE Locked TO FILE = '{folder}/locked.cer'
            WITH PRIVATE KEY (FILE = '{folder}/locked.pvk', ENCRYPTION BY PASSWORD = 'Pa55 of the file',
                              DECRYPTION BY PASSWORD = 'Pa55 of Locked')
    """)
    shown = "SELECT name, pvt_key_encryption_type FROM sys.certificates ORDER BY name"
    assert west.master.execute_tsql(shown).rows == [("Dated", "MK"), ("Locked", "PW")]
    dates = "SELECT start_date, expiry_date FROM sys.certificates WHERE name = 'Dated'"
    ((start, expiry),) = west.master.execute_tsql(dates).rows
    assert [f"{at:%Y-%m-%d %H:%M}" for at in (start, expiry)] == ["2031-01-02 00:00", "2032-03-04 00:00"]
    west.run("ALTER CERTIFICATE Locked WITH PRIVATE KEY (DECRYPTION BY PASSWORD = 'Pa55 of Locked')")
    assert west.master.execute_tsql(shown).rows == [("Dated", "MK"), ("Locked", "MK")]
    east.run("""
        CREATE CERTIFICATE Locked FROM FILE = '{folder}/locked.cer'
            WITH PRIVATE KEY (FILE = '{folder}/locked.pvk', DECRYPTION BY PASSWORD = 'Pa55 of the file',
                              ENCRYPTION BY PASSWORD = 'Pa55 of East')
    """)
    assert east.master.execute_tsql(shown).rows == [("Locked", "PW")]
    for script, number in [
        ("CREATE CERTIFICATE c WITH SUBJECT = 'c', EXPIRY_DATE = '2001-01-01'", 402),
        ("CREATE CERTIFICATE c WITH SUBJECT = 'c', START_DATE = '2041-01-01', EXPIRY_DATE = '2040-01-01'", 402),
        ("CREATE CERTIFICATE c ENCRYPTION BY PASSWORD = 'short' WITH SUBJECT = 'c'", 15116),
        ("ALTER CERTIFICATE Locked WITH PRIVATE KEY (DECRYPTION BY PASSWORD = 'Pa55 of West')", 15465),
        ("ALTER CERTIFICATE Locked REMOVE PRIVATE KEY", 40515),
        ("BACKUP CERTIFICATE Locked TO FILE = '{folder}/locked.cer'", 15240),
        (
            "CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (AUTHENTICATION = CERTIFICATE Locked)",
            28055,
        ),
    ]:
        with pytest.raises(TsqlError) as error:
            east.run(script)
        assert error.value.number == number, script
    assert east.master.execute_tsql(shown).rows == [("Locked", "PW")]


def test_create_endpoint_says_that_nothing_is_proved_without_tls(fresh_instance: sb.Instance) -> None:
    output = fresh_instance.database("master", create=True).execute_tsql(
        "CREATE ENDPOINT e AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (ENCRYPTION = DISABLED)"
    )
    assert any("nothing proves who a peer is" in str(message) for message in output.messages)


def test_a_login_that_is_disabled_is_shown_so(master: sb.Database) -> None:
    """Also a member of a domain is let in no longer, and a ROLLBACK takes it back."""
    master.execute_tsql("CREATE LOGIN [CORP\\Off] FROM WINDOWS ALTER LOGIN [CORP\\Off] DISABLE")
    shown = "SELECT is_disabled FROM sys.server_principals WHERE name = 'CORP\\Off'"
    assert master.execute_tsql(shown).rows == [(1,)]
    with master.instance.connection() as connection:
        assert not run(connection, find_connect()).of_member("CORP\\Off", is_ours=True)
    results = master.execute_tsql(f"BEGIN TRAN ALTER LOGIN [CORP\\Off] ENABLE {shown} ROLLBACK {shown}")
    assert [each.rows for each in results.sets] == [[(0,)], [(1,)]]
    master.execute_tsql("ALTER LOGIN [CORP\\Off] ENABLE")
    with master.instance.connection() as connection:
        assert run(connection, find_connect()).of_member("CORP\\Off", is_ours=True)
    for name in ("Nobody", "public"):
        with pytest.raises(TsqlError) as missing:
            master.execute_tsql(f"ALTER LOGIN {name} DISABLE")
        assert missing.value.number == 15151
    master.execute_tsql("DROP LOGIN [CORP\\Off]")
