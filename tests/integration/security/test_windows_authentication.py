"""AUTHENTICATION = WINDOWS between real daemons whose instances share a domain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from daemons import ServeProcess, Site, Two, free_port
from forked import run_command
from servicebroker.cli.main import app as command
from servicebroker.store.keys.domain_folder import Domain, own_name
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.membership import Membership, default_folder
from support import STOCK_QUEUE, eventually, query

WINDOWS = {"authentication": "WINDOWS"}
ONLINE = ("LOGGED_IN", "ONLINE")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def serve_both(two: Two, **clauses: str) -> None:
    for site in (two.west, two.east):
        site.endpoint(**(WINDOWS | clauses))
        site.serve()


def domain(site: Site, *arguments: str, code: int = 0) -> str:
    """Return the output of `servicebroker domain ...`."""
    environment = {"SERVICEBROKER_INSTANCE": site.url, "SERVICEBROKER_KEYS": str(site.keys), "COLUMNS": "200"}
    result = CliRunner().invoke(command, ["domain", *arguments], env=environment)
    assert result.exit_code == code, result.exception
    return result.stdout if not code else str(result.exception)


def authentications(site: Site) -> list[tuple[object, ...]]:
    text = "select authentication_method, principal_name, peer_certificate_id from sys.dm_broker_connections"
    return query(site.database, f"{text} where login_state_desc = 'ONLINE'")


# ---------------------------------------------------------------- the tutorial for two instances

ENDPOINT = """
    USE master
    GO
    IF EXISTS (SELECT * FROM master.sys.endpoints WHERE name = N'{me}Endpoint')
        DROP ENDPOINT {me}Endpoint
    GO
    CREATE ENDPOINT {me}Endpoint STATE = STARTED
        AS TCP (LISTENER_PORT = {port})
        FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS)
    GO
    CREATE DATABASE {me}DB
    GO
    USE {me}DB
    GO
    CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'A {me} password 1'
    GO
    CREATE USER {me}User WITHOUT LOGIN
    GO
    CREATE CERTIFICATE {me}Certificate AUTHORIZATION {me}User WITH SUBJECT = N'{me}', EXPIRY_DATE = N'12/31/2099'
    BACKUP CERTIFICATE {me}Certificate TO FILE = N'{folder}/{me}.cer'
    GO
    CREATE MESSAGE TYPE [//two/Request] VALIDATION = WELL_FORMED_XML
    CREATE MESSAGE TYPE [//two/Reply] VALIDATION = WELL_FORMED_XML
    CREATE CONTRACT [//two/Contract] ([//two/Request] SENT BY INITIATOR, [//two/Reply] SENT BY TARGET)
    CREATE QUEUE {me}Queue
    CREATE SERVICE [//two/{me}] AUTHORIZATION {me}User ON QUEUE {me}Queue {contract}
"""
PARTNER = """
    USE {me}DB
    GO
    CREATE USER {peer}User WITHOUT LOGIN
    CREATE CERTIFICATE {peer}Certificate AUTHORIZATION {peer}User FROM FILE = N'{folder}/{peer}.cer'
    GO
    DECLARE @Cmd NVARCHAR(4000)
    SET @Cmd = N'USE {me}DB
        CREATE ROUTE {peer}Route WITH SERVICE_NAME = N''//two/{peer}'', ADDRESS = N''TCP://127.0.0.1:{peer_port}'''
    EXEC (@Cmd)
    SET @Cmd = N'USE msdb
        CREATE ROUTE {me}Route WITH SERVICE_NAME = N''//two/{me}'', ADDRESS = N''LOCAL'''
    EXEC (@Cmd)
    GO
    CREATE REMOTE SERVICE BINDING {peer}Binding TO SERVICE N'//two/{peer}' WITH USER = {peer}User
"""
REQUEST = """
    USE InitiatorDB
    GO
    DECLARE @handle UNIQUEIDENTIFIER
    BEGIN TRANSACTION
    BEGIN DIALOG @handle FROM SERVICE [//two/Initiator] TO SERVICE N'//two/Target' ON CONTRACT [//two/Contract]
        WITH ENCRYPTION = ON;
    SEND ON CONVERSATION @handle MESSAGE TYPE [//two/Request] (N'<RequestMsg>Message for Target service.</RequestMsg>')
    COMMIT TRANSACTION
"""
REPLY = """
    USE TargetDB
    GO
    DECLARE @handle UNIQUEIDENTIFIER, @body XML, @type SYSNAME
    BEGIN TRANSACTION
    WAITFOR (RECEIVE TOP(1) @handle = conversation_handle, @body = message_body, @type = message_type_name
             FROM TargetQueue), TIMEOUT 60000
    IF @type = N'//two/Request'
    BEGIN
        SEND ON CONVERSATION @handle MESSAGE TYPE [//two/Reply] (N'<ReplyMsg>Message for Initiator.</ReplyMsg>')
        END CONVERSATION @handle
    END
    SELECT @body AS ReceivedRequestMsg
    COMMIT TRANSACTION
"""
END = """
    USE InitiatorDB
    GO
    DECLARE @handle UNIQUEIDENTIFIER, @body NVARCHAR(100)
    WAITFOR (RECEIVE TOP(1) @handle = conversation_handle, @body = message_body FROM InitiatorQueue), TIMEOUT 60000
    END CONVERSATION @handle
    SELECT @body AS ReceivedReplyMsg
"""


@pytest.mark.feature(146)
def test_a_conversation_between_two_instances_as_the_tutorial_begins_it(
    make_instance_url: Callable[[], str], tmp_path: Path
) -> None:
    """Scripts only: endpoints with just WINDOWS, users without logins, certificates as files."""
    sides, daemons = {}, []
    names = {"Initiator": "Target", "Target": "Initiator"}
    ports = {me: free_port() for me in names}
    try:
        for me in names:
            sides[me] = sb.open(make_instance_url(), keys=tmp_path / me)
            daemons.append(ServeProcess(sides[me].url, tmp_path / me))

        def run(me: str, script: str) -> list[tuple[object, ...]]:
            values = {"me": me, "peer": names[me], "port": ports[me], "peer_port": ports[names[me]]}
            contract = "([//two/Contract])" if me == "Target" else ""
            text = script.format(**values, folder=tmp_path, contract=contract)
            return sides[me].database("master", create=True).execute_tsql(text).rows

        for script in (ENDPOINT, PARTNER):
            for me in names:
                run(me, script)
        run("Target", "USE TargetDB\nGO\nGRANT SEND ON SERVICE::[//two/Target] TO InitiatorUser")
        run("Initiator", REQUEST)
        assert run("Target", REPLY) == [("<RequestMsg>Message for Target service.</RequestMsg>",)]
        assert run("Initiator", END) == [("<ReplyMsg>Message for Initiator.</ReplyMsg>",)]
        shown = "SELECT connection_auth_desc, certificate_id FROM sys.service_broker_endpoints"
        assert run("Target", shown) == [("NEGOTIATE", 0)]
        assert Domain(default_folder()).members().keys() == {own_name()}
    finally:
        for daemon in daemons:
            daemon.kill()
        for side in sides.values():
            side.close()


# ---------------------------------------------------------------- members


@pytest.mark.feature(146, 148)
def test_members_that_joined_with_a_token_need_connect_until_revoked(two: Two, tmp_path: Path) -> None:
    west, east = two.west, two.east
    corp = ("--folder", str(tmp_path / "corp"))
    domain(east, "create", *corp, "--name", "CORP")
    domain(east, "join", *corp)
    token = domain(east, "invite", "Shop", *corp).split("\n")[0]
    assert "CORP\\Shop" in domain(west, "join", token, *corp)
    serve_both(two)
    west.instance.create_login(f"corp\\{own_name()}", from_windows=True)
    west.instance.grant_connect("broker", f"corp\\{own_name()}")
    handle = two.send("a")
    east.daemon.wait_for_log("Audit Broker Login", subclass="Authorization Failure", error="'CORP\\Shop'")
    eventually(lambda: 28034 in east.refusal_counts())
    east.instance.create_login("corp\\shop", from_windows=True)
    east.instance.grant_connect("broker", "CORP\\SHOP")
    two.arrives("a")
    eventually(lambda: authentications(east) == [("NEGOTIATE", "CORP\\Shop", None)])
    east.daemon.wait_for_log("Audit Broker Login", subclass="Login Success", certificate="CORP\\Shop")
    master = east.instance.database("master", create=True)
    master.execute_tsql("ALTER LOGIN [corp\\shop] DISABLE")
    eventually(lambda: authentications(east) == [])
    master.execute_tsql("ALTER LOGIN [corp\\shop] ENABLE")
    eventually(lambda: authentications(east) == [("NEGOTIATE", "CORP\\Shop", None)])
    domain(east, "revoke", "shop", *corp)
    eventually(lambda: authentications(east) == [])
    west.daemon.wait_for_log("AUTHENTICATION = WINDOWS: CORP\\Shop was revoked.")
    two.send("b", handle=handle)
    west.waits("No certificate was found")  # west has read the list, too, and presents no certificate any more
    assert east.database.receive(STOCK_QUEUE) == []
    eventually(lambda: query(west.database, "select problem <> '' from servicebroker.domain_membership") == [(True,)])
    output = CliRunner().invoke(command, ["doctor", "--instance", west.url]).stdout
    assert "CORP\\Shop was revoked" in output


def test_a_certificate_that_is_renewed_is_shown_at_once_and_nothing_is_lost(two: Two, tmp_path: Path) -> None:
    """The certificate is a week old and has half a day left when the daemon starts."""
    for site in (two.west, two.east):
        early = datetime.now(UTC) - timedelta(days=6.5)
        Membership(KeyFolder(site.keys), site.instance.identifier()).look(early)
    before = (two.west.keys / "domain" / "identity.pem").read_bytes()
    serve_both(two)
    two.send("a")
    two.arrives("a")
    assert (two.west.keys / "domain" / "identity.pem").read_bytes() != before
    ((left,),) = query(two.west.database, "select expiry_date - now() from servicebroker.domain_membership")
    assert left > timedelta(days=6.9)


# ---------------------------------------------------------------- public, and the presented certificate


@pytest.mark.feature(148)
def test_connect_for_public_admits_certificates_that_are_not_imported(two: Two, tmp_path: Path) -> None:
    for site in (two.west, two.east):
        site.certificate("create", site.name)
        site.endpoint(authentication="CERTIFICATE")
        site.serve()
    two.send("a")
    two.west.waits("none of those that were imported")
    two.west.instance.grant_connect("broker", "public")
    two.west.waits("Authentication failed")
    output = CliRunner().invoke(command, ["doctor", "--instance", two.west.url]).stdout
    assert "CONNECT is granted to public" in output
    two.east.instance.grant_connect("broker", "PUBLIC")
    two.arrives("a")
    eventually(lambda: len(authentications(two.east)) == 1)
    ((method, name, number),) = authentications(two.east)
    assert (method, name.startswith("not imported "), number) == ("CERTIFICATE", True, None)
    two.east.instance.revoke_connect("broker", "public")
    eventually(lambda: authentications(two.east) == [])


def test_the_daemon_logs_which_certificate_it_presents(two: Two) -> None:
    for name in ("first", "second"):
        two.west.certificate("create", name)
    two.west.endpoint(authentication="CERTIFICATE")
    two.west.serve()
    two.west.daemon.wait_for_log("Peers are shown the certificate first, until ")
    two.west.daemon.wait_for_log("Valid too, and not shown: second.")


# ---------------------------------------------------------------- the command line


def test_domain_commands_create_invite_join_and_revoke(two: Two, tmp_path: Path) -> None:
    west, folder = two.west, str(tmp_path / "corp")
    assert "The domain CORP is in" in domain(west, "create", "--folder", folder, "--name", "CORP")
    assert "has no members yet" in domain(west, "show", "--folder", folder)
    token = domain(west, "invite", "shop", "--folder", folder, "--hours", "2").split("\n")[0]
    assert "invited until" in domain(west, "show", "--folder", folder)
    assert "The instance is CORP\\shop" in domain(west, "join", token, "--folder", folder)
    shown = domain(west, "show", "--folder", folder)
    assert str(west.instance.identifier()) in shown
    assert "was used already" in domain(two.east, "join", token, "--folder", folder, code=1)
    assert "is revoked" in domain(west, "revoke", "shop", "--folder", folder)
    assert "revoked 20" in domain(west, "show", "--folder", folder)
    report = domain(west, "show", "--folder", folder, "--json")
    assert '"CORP\\\\shop": "20' in report
    assert "0 answered." in domain(west, "answer", "--folder", folder)
    for arguments, words in [
        (("create", "--folder", folder), "There is a domain in"),
        (("show", "--folder", str(tmp_path / "nowhere")), "There is no domain in"),
        (("join", "00", "--folder", folder), "not a token"),
    ]:
        assert words in domain(west, *arguments, code=1)


def test_a_refusal_is_one_sentence(tmp_path: Path) -> None:
    result = run_command("domain", "invite", "shop", "--folder", tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("servicebroker: There is no domain in")
