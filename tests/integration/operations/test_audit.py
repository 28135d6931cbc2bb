"""The audit records every definition, from whichever API, and the acts of operators."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from lxml import html
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app
from servicebroker.dashboard import Dashboard, Role
from servicebroker.engine.diagnosis.audit import AuditRecord, delete_old_audit_rows, find_records
from servicebroker.store.running import run, run_alone
from servicebroker.tsql.session import Session
from support import ORDER, STOCK_QUEUE, begin, group_of, open_dialog

HERE = "http://127.0.0.1"


@pytest.fixture
def instance(make_instance_url: Callable[..., str]) -> Iterator[sb.Instance]:
    with sb.open(make_instance_url(1), upkeep=None) as opened:
        yield opened


@pytest.fixture
def database(instance: sb.Instance) -> sb.Database:
    return instance.database("Test")


def acts(database: sb.Database, text: str = "", who: str = "") -> list[AuditRecord]:
    with database.instance.connection() as connection:
        return run(connection, find_records(None, who, text, 1000))


def run_audit(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["audit", "--json", *arguments], catch_exceptions=False)
    return json.loads(result.stdout)["audit"]


def test_no_definition_is_without_a_face(database: sb.Database) -> None:
    before = {entry.number for entry in acts(database)}  # acts of the fixture, in transactions of one statement
    database.instance.database("Two", create=True)
    with Session(database) as session:
        for text in (
            "CREATE SCHEMA s", "CREATE TYPE dbo.amount FROM decimal(9, 2)", "CREATE PROCEDURE p AS SELECT 1",
            "ALTER PROCEDURE p AS SELECT 2", "CREATE TABLE t (x int)", "CREATE TRIGGER r ON t AFTER INSERT AS PRINT 1",
            "DISABLE TRIGGER r ON t", "DROP TRIGGER r", "DROP PROCEDURE p", "DROP TYPE dbo.amount", "DROP SCHEMA s",
            "CREATE DATABASE Three", "ALTER DATABASE Test SET TRUSTWORTHY ON", "DROP DATABASE Three",
            "CREATE LOGIN l WITH PASSWORD = 'Xy1!Xy1!Xy1!'", "CREATE USER u FOR LOGIN l", "GRANT CREATE QUEUE TO u",
        ):  # fmt: skip
            session.execute(text)
    entries = [entry for entry in acts(database) if entry.number not in before]
    assert {"CREATE SCHEMA", "DROP SCHEMA", "CREATE TYPE", "ALTER MODULE", "DROP MODULE"} <= {
        entry.act for entry in entries
    }
    assert [entry for entry in entries if not entry.client_kind] == []
    assert {entry.principal for entry in entries if entry.act.endswith((" MODULE", " TYPE", " SCHEMA"))} == {"dbo"}
    assert [one.client_kind for one in entries if one.subject == "Two" and one.act == "CREATE DATABASE"] == ["Python"]


def test_every_face_is_known(database: sb.Database) -> None:
    url = database.instance.url
    database.create_queue("ByPython")
    with Session(database) as session:
        session.execute("CREATE QUEUE ByTsql; ALTER QUEUE ByTsql WITH STATUS = OFF")
    CliRunner().invoke(app, ["queue", "alter", "ByTsql", "--on", "-d", "Test", "--instance", url])
    with psycopg.connect(url) as connection:
        connection.execute("update servicebroker.queues set max_readers = 7 where name = 'ByPython'")
    dashboard = Dashboard([url], token=None, role=Role.ACT)
    with TestClient(dashboard, base_url=HERE) as browser:
        page = html.fromstring(browser.get("/i/0/queue?database=Test&queue=dbo.ByPython").text)
        (form,) = page.xpath("//form[contains(@action, '/act/switch')]")
        answer = browser.post(form.action, data=dict(form.form_values()), headers={"origin": HERE})
        assert "OFF" in answer.text
        output = browser.get("/i/0/audit", params={"what": "bypython"}).text
        assert "max_readers nothing -&gt; 7" in output, html.fromstring(output).text_content()
    (made,) = acts(database, "CREATE QUEUE dbo.ByPython") or acts(database, "ByPython")[-1:]
    assert (made.act, made.client_kind, made.principal, made.before) == ("CREATE QUEUE", "Python", "dbo", None)
    assert made.after is not None
    assert made.after["name"] == "ByPython"
    changes = {
        (entry.act, entry.client_kind, entry.subject): (entry.before, entry.after) for entry in acts(database, "ALTER")
    }
    off = {"is_receive_enabled": False, "is_enqueue_enabled": False}
    on = {"is_receive_enabled": True, "is_enqueue_enabled": True}
    assert changes["ALTER QUEUE", "T-SQL", "dbo.ByTsql"] == (on, off)
    assert changes["ALTER QUEUE", "dashboard", "dbo.ByPython"] == (on, off)
    assert changes["ALTER QUEUE", "", "dbo.ByPython"][1] == {"max_readers": 7}


def test_each_definition_is_noted_with_names(database: sb.Database) -> None:
    last = acts(database)[0].number
    database.create_message_type("M")
    database.create_contract("C", {"M": "ANY"})
    database.create_queue("Q")
    database.create_service("S", "Q", ["C"])
    database.create_route("R", address="LOCAL", service_name="S")
    database.create_user("U")
    database.create_role("Readers")
    database.add_role_member("Readers", "U")
    database.grant("RECEIVE", "U", queue="Q")
    database.create_broker_priority("P", priority_level=3)
    database.drop_broker_priority("P")
    database.revoke("RECEIVE", "U", queue="Q")
    database.drop_service("S")
    database.alter(honor_broker_priority=True)
    entries = [(entry.act, entry.subject) for entry in reversed(acts(database)) if entry.number > last]
    others = ("ALTER DATABASE", "DROP SERVICE", "DROP CONTRACT OF SERVICE")
    assert [change for change in entries if change[0] not in others and "CONNECT" not in change[1]] == [
        ("CREATE MESSAGE TYPE", "M"),
        ("CREATE CONTRACT", "C"),
        ("CREATE MESSAGE TYPE OF CONTRACT", "C M"),
        ("CREATE QUEUE", "dbo.Q"),
        ("CREATE SERVICE", "S"),
        ("CREATE CONTRACT OF SERVICE", "S C"),
        ("CREATE ROUTE", "R"),
        ("CREATE PRINCIPAL", "U"),
        ("CREATE PRINCIPAL", "Readers"),
        ("CREATE ROLE MEMBER", "U Readers"),
        ("CREATE PERMISSION", "RECEIVE U"),
        ("CREATE BROKER PRIORITY", "P"),
        ("DROP BROKER PRIORITY", "P"),
        ("DROP PERMISSION", "RECEIVE U"),
    ]
    assert ("ALTER DATABASE", "Test") in entries
    assert ("DROP SERVICE", "S") in entries
    assert {entry.principal for entry in acts(database) if entry.number > last} == {"dbo"}


def test_rolled_back_and_refused_actions_are_not_audited(database: sb.Database) -> None:
    with pytest.raises(ZeroDivisionError), database.defining() as defining:
        defining.create_queue("Never")
        raise ZeroDivisionError
    with pytest.raises(sb.BrokerError):
        database.drop_queue("Nowhere")
    assert acts(database, "Never") == []


def test_the_audit_contains_no_secrets(database: sb.Database) -> None:
    with Session(database) as session:
        session.execute("CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'sesame-1-open'")
        session.execute("CREATE PROCEDURE MakesKeys AS CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'sesame-2-open'")
        session.execute(
            "CREATE USER Anna WITHOUT LOGIN; CREATE CERTIFICATE MyCert AUTHORIZATION Anna WITH SUBJECT = 'x'"
        )
    written = json.dumps([entry._asdict() for entry in acts(database)], default=str)
    assert "MakesKeys" in written
    assert "sesame" not in written
    assert "\\x" not in written
    (key,) = acts(database, "MASTER KEY")[-1:]
    assert key.after is not None
    assert key.after["by_password"] == "***"
    assert {entry.act for entry in acts(database, "MyCert")} == {"CREATE CERTIFICATE"}


def test_actions_of_operators_are_audited(database: sb.Database) -> None:
    url = database.instance.url
    handle, _ = open_dialog(database)
    group = group_of(database, begin(database))
    fields = {"database": "Test", "handle": str(handle)}
    with TestClient(Dashboard([url], token=None, role=Role.ACT), base_url=HERE) as browser:
        page = html.fromstring(browser.get(f"/i/0/conversation?handle={handle}").text)
        token = page.xpath("//input[@name='form_token']")[0].value
        for act, more in (
            ("timer", {"seconds": "60"}),
            ("move", {"group": str(group)}),
            ("end-with-error", {"code": "7", "text": "enough"}),
            ("end", {}),
        ):
            browser.post(f"/i/0/act/{act}", data={**fields, **more, "form_token": token}, headers={"origin": HERE})
    other, _ = open_dialog(database)
    ended = CliRunner().invoke(app, ["poison", "end", str(other), "--database", "Test", "--instance", url])
    assert ended.exit_code == 0, ended.output
    entries = [(entry.act, entry.client_kind, entry.after) for entry in reversed(acts(database, str(handle)))]
    assert entries == [
        ("BEGIN CONVERSATION TIMER", "dashboard", {"seconds": "60"}),
        ("MOVE CONVERSATION", "dashboard", {"group": str(group)}),
        ("END CONVERSATION WITH ERROR", "dashboard", {"code": "7", "text": "enough"}),
    ], "what was refused (the second end) is not there"
    assert [entry.act for entry in acts(database, str(other))] == ["END CONVERSATION WITH ERROR"]


def test_the_audit_of_replayed_and_discarded_messages_has_no_bodies(database: sb.Database) -> None:
    handle = begin(database)
    for body in (b"secret one", b"secret two"):
        database.send(handle, ORDER, body)

    def refuse(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    database.process(STOCK_QUEUE, refuse, poison=lambda failure: sb.SetAside())
    first, second = (letter.set_aside_id for letter in database.set_aside_messages())
    database.replay_message(first)
    database.discard_message(second)
    entries = {entry.act: entry for entry in acts(database, "MESSAGE") if entry.act.endswith("MESSAGE")}
    assert set(entries) == {"REPLAY MESSAGE", "DISCARD MESSAGE"}
    assert entries["REPLAY MESSAGE"].after is not None
    assert entries["REPLAY MESSAGE"].after["conversation_handle"]
    assert "secret" not in json.dumps([entry._asdict() for entry in entries.values()], default=str)


def test_the_audit_can_be_searched_and_shown(database: sb.Database) -> None:
    url = database.instance.url
    database.create_queue("<b>Marked</b>")
    database.drop_queue("<b>Marked</b>")
    assert [row["act"] for row in run_audit("--instance", url, "--text", "marked")] == ["DROP QUEUE", "CREATE QUEUE"]
    assert run_audit("--instance", url, "--who", "nobody at all") == []
    assert len(run_audit("--instance", url, "--since", "1h", "--top", "1")) == 1
    result = CliRunner().invoke(app, ["audit", "--instance", url, "--text", "MARKED"], catch_exceptions=False)
    assert "dbo" in result.stdout
    assert "DROP QUEUE dbo.<b>Marked</b> in Test" in result.stdout
    with TestClient(Dashboard([url], token=None), base_url=HERE) as browser:
        page = browser.get("/i/0/audit").text
        assert "&lt;b&gt;Marked" in page
        assert "<b>Marked" not in page


def test_rows_are_added_and_go_by_age(database: sb.Database) -> None:
    database.create_queue("Q")
    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        for statement in (
            "update servicebroker.audit set principal = 'somebody else'",
            "delete from servicebroker.audit",
            "truncate servicebroker.audit",
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="are added"):
                connection.execute(statement)
        connection.execute(
            "insert into servicebroker.audit (at, principal, face, act, broker_database, subject) "
            "select now() - interval '400 days', '', '', 'OLD', '', '' from generate_series(1, 3)"
        )
    with database.instance.connection() as connection:
        assert run_alone(connection, delete_old_audit_rows(datetime.now().astimezone() + timedelta(days=1))) == 3
        assert run_alone(connection, delete_old_audit_rows(datetime.now().astimezone() + timedelta(days=3650))) == 0
    assert acts(database, "CREATE QUEUE")
