"""The dashboard's overview: findings, search, links, several instances, and pages that change by themselves."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lxml import html
from psycopg import sql
from starlette.applications import Starlette
from starlette.routing import Mount
from typer.testing import CliRunner

import servicebroker as sb
from dashboard_support import MARKUP, TROUBLE, Browser, send_messages, words
from servicebroker.cli import diagnosed_instance
from servicebroker.cli.main import app as command
from servicebroker.dashboard import Dashboard, Role, snapshot_cache
from servicebroker.dashboard.snapshot_cache import shown_name
from servicebroker.engine.diagnosis import dashboard_queries, disk_usage
from servicebroker.engine.diagnosis.findings import Finding
from support import ORDER, ORDERS_QUEUE, STOCK, STOCK_QUEUE, bodies, eventually, peer_handle, query, queue_number

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_the_overview_shows_the_findings_of_doctor_and_counts(database: sb.Database, browser: Browser) -> None:
    send_messages(database, (ORDER, b"1"), (ORDER, b"2"))
    database.alter_queue(ORDERS_QUEUE, status=False)
    text = browser.text("")
    assert f"queue {database.name}.dbo.{ORDERS_QUEUE} : It is OFF" in text
    found = int(re.findall(r"(\d+) problems?", text)[0])
    result = CliRunner().invoke(command, ["doctor", "--instance", database.instance.url]).output
    assert f"{found} found." in result
    (messages,) = re.findall(r"In queues ([\d,]+)", text)
    assert int(messages) >= 2


def test_the_users_of_the_disk_are_named(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue, and a replication slot without a reader, in doctor and in the overview."""
    send_messages(database, *((ORDER, random.randbytes(100_000)) for _ in range(20)))
    monkeypatch.setattr(disk_usage, "LARGE_BYTES", 1_000_000)
    monkeypatch.setattr(disk_usage, "MAX_USERS", 100)
    slot = f"nobody_{os.getpid()}"
    with database.instance.connection() as connection:
        connection.execute("select pg_create_physical_replication_slot(%s, true)", (slot,))
        try:
            connection.execute("select pg_logical_emit_message(false, 'x', repeat('x', 2000000))")
            report = CliRunner().invoke(command, ["doctor", "--instance", database.instance.url]).stdout
            page = browser.text("")
        finally:
            connection.execute("select pg_drop_replication_slot(%s)", (slot,))
    for text in (report, page):
        assert re.search(rf"queue {database.name}.dbo.{STOCK_QUEUE}\W.*It uses \d+ MB of the disk", text), text
        assert "its owner is dbo" in text
        assert f"replication slot {slot}" in text
        assert "nobody reads it" in text


def growing(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a queue whose messages have not been received for unusually long."""
    send_messages(database, (ORDER, b"1"))
    monkeypatch.setattr("servicebroker.engine.diagnosis.queue_findings.UNEXPLAINED_WAIT", timedelta(0))


def test_a_queue_without_readers_is_marked_as_by_doctor(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row() -> html.HtmlElement:
        return browser.page("i/0/queues").xpath(f"//tr[@data-key='{database.name}.dbo.{STOCK_QUEUE}']")[0]

    assert row().get("class") == "note"
    assert row().xpath(TROUBLE) == []
    growing(database, monkeypatch)
    assert row().get("class") == "trouble"
    assert "stuck Nobody receives: 1 message" in words(row())
    keys = [element.get("class") for element in browser.page("i/0/queues").xpath("//tbody/tr")]
    assert keys == sorted(keys, key=["trouble", "warning", "note"].index)
    assert "Nobody receives: 1 message" in browser.text("i/0/workers")
    query(database, "select servicebroker.take_place(%s, 0.05)", queue_number(database, STOCK_QUEUE))
    assert row().get("class") == "note"  # workers read the queue at this rate
    assert "Limits of all workers together: at most 20/s" in browser.text("i/0/workers")
    assert "Limits of all workers at most 20/s" in browser.queue(database)
    report = CliRunner().invoke(command, ["status", "--instance", database.instance.url]).output
    assert f"Limits of all workers of {database.name}.dbo.{STOCK_QUEUE}: at most 20/s" in report
    assert database.receive(STOCK_QUEUE)


def test_a_finding_has_a_button_for_its_remedy(
    database: sb.Database, browse: Callable[..., Browser], browser: Browser
) -> None:
    """Only a person with the role sees the button."""
    queue = f"dbo.{STOCK_QUEUE}"
    database.alter_queue(STOCK_QUEUE, status=False)
    label = f"Switch on {queue}, and retry"
    assert label not in browse(Role.SEE).text("")
    forms = [form for form in browser.page("").xpath("//form") if label in words(form)]
    mine = [form for form in forms if form.fields["database"] == database.name]
    answer = browser.send_form(mine[0].action, dict(mine[0].form_values()))
    assert f"The queue {queue} is ON" in answer.text
    database.alter(disable_broker=True)
    page = browser.page("")
    (form,) = [
        element for element in page.xpath("//form") if words(element).strip() == f"Enable the broker of {database.name}"
    ]
    assert "is enabled" in browser.send_form(form.action, dict(form.form_values())).text


def test_a_session_is_ended_after_a_question(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = peer_handle(database, send_messages(database, (ORDER, b"1")))
    monkeypatch.setattr("servicebroker.engine.diagnosis.session_findings.LONG_WAIT", timedelta(0))
    with (
        psycopg.connect(database.instance.url) as other_connection,
        pytest.raises(sb.InstanceError),
        database.transaction() as transaction,
    ):
        (message,) = transaction.receive(STOCK_QUEUE)
        ((pid,),) = transaction.connection.execute("select pg_backend_pid()").fetchall()
        text = browser.text("i/0/workers")
        assert re.search(rf"{pid} \S.* {ORDER} of {str(handle)[:8]}", text), text
        page = browser.page("")
        (form,) = [element for element in page.xpath("//form") if words(element).strip() == f"End session {pid}"]
        assert form.getparent().tag == "details"
        answer = browser.send_form(form.action, dict(form.form_values()))
        assert f"The session {pid} has ended." in words(html.fromstring(answer.text))
        assert other_connection.execute("select 1").fetchall() == [(1,)]  # another session goes on
        transaction.send(message.conversation_handle, "//test/Reply", b"")
    assert "has ended already" in browser.send_form(form.action, dict(form.form_values())).text
    assert f"END SESSION {pid}" in browser.text("i/0/audit")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_the_search_finds_queues_services_and_handles(database: sb.Database, browser: Browser) -> None:
    handle = send_messages(database, (ORDER, b"1"))
    for text, found in (
        (STOCK_QUEUE[2:].lower(), f"{database.name}.dbo.{STOCK_QUEUE}"),
        (STOCK[2:], STOCK),
        (str(handle)[:10], str(handle)),
        ("%", "No queue or service has % in its name"),
        (MARKUP, MARKUP),
        ("", "Type a part"),
        ("9" * 33, "No queue"),
    ):
        assert found in browser.text("i/0/search", q=text)
    assert browser.get("/i/0/search", params={"q": f" {handle} "}).url.path == "/i/0/conversation"


def test_a_page_ends_at_its_deadline_and_the_others_go_on(
    fresh_database: sb.Database, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosed_instance, "LOCK_TIMEOUT_MS", 50)
    monkeypatch.setattr(diagnosed_instance, "LATER_TIMEOUT_MS", 50)
    url = fresh_database.instance.url
    browser = browse(url=url)
    browser.page("i/0/dead-letters")
    with psycopg.connect(url) as other_connection:
        other_connection.execute("lock table servicebroker.set_aside_messages")
        text = browser.text("i/0/dead-letters")
        assert "another session holds a lock that this page needs" in text
        assert "The figures are from" in text
        assert "does not answer" not in browser.text("i/0/queues")
        other_connection.execute("lock table servicebroker.transmission_queue")
        text = browser.text("")
        assert "The query of messages that wait failed" in text
        assert "In queues" in text
    eventually(lambda: "does not answer" not in browser.text("i/0/dead-letters"))


def test_an_older_schema_is_shown_and_not_changed(
    make_instance_url: Callable[..., str], browse: Callable[..., Browser]
) -> None:
    url = make_instance_url(1)
    number = "select max(number) from servicebroker.migrations"
    with psycopg.connect(url, autocommit=True) as admin:
        ((newest,),) = admin.execute(number).fetchall()
        admin.execute("delete from servicebroker.migrations where number = %s", (newest,))
        browser = browse(url=url)
        assert "of an older servicebroker" in browser.text("")
        page = browser.page("i/0/queue", database="Test", queue=f"dbo.{STOCK_QUEUE}")
        assert "The dashboard can only show this instance" in browser.press(page, "switch")
        assert admin.execute(number).fetchall() != [(newest,)]


def test_the_overview_counts_links_to_peers(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def links() -> Generator[Any, Any, list[None]]:  # steps without a statement
        yield from ()
        return [None] * 3

    monkeypatch.setattr(dashboard_queries, "links", links)
    figure = browser.page("").xpath("//dt[.='Links to peers']/following-sibling::dd")[0]
    assert figure.text_content().strip() == "3"


def test_a_page_changes_by_itself_within_two_seconds(database: sb.Database, browser: Browser) -> None:
    with browser.stream("GET", "/i/0/queues", headers={"accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        seen = ""
        while "</table>" not in seen:
            seen += next(lines)
        send_messages(database, *[(ORDER, b"1")] * 7)
        begun, seen = time.monotonic(), ""
        while f"{STOCK_QUEUE}" not in seen or 'class="n">7</td>' not in seen:
            seen += next(lines)
        assert time.monotonic() - begun < 2


def test_while_the_database_is_down_the_last_figures_stay(
    fresh_database: sb.Database, browse: Callable[..., Browser], server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "RETRY_DELAY_S", 1.0)
    send_messages(fresh_database, (ORDER, b"1"))
    url = fresh_database.instance.url
    name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
    browser = browse(url=url)
    assert "does not answer" not in browser.queue(fresh_database)
    assert "does not answer" not in browser.text("")
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} allow_connections false").format(name))
        try:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [*name._obj])
            text = browser.queue(fresh_database)
            assert "does not answer" in text
            assert "The figures are from" in text
            assert f"Services {STOCK}" in text
            assert "does not answer" in browser.text("")
            assert "No figures yet" in browser.text("i/0/statements")
        finally:
            admin.execute(sql.SQL("alter database {} allow_connections true").format(name))
    deadline = time.monotonic() + 15
    while "does not answer" in browser.queue(fresh_database):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_an_unreachable_instance_is_reported(browse: Callable[..., Browser], tmp_path: Any) -> None:
    browser = browse(url=f"{tmp_path}/nothing")
    assert "does not answer" in browser.text("")
    assert not (tmp_path / "nothing").exists()
    browser = browse(url="postgresql://somebody:secret@127.0.0.1:1/none")
    page = browser.text("i/0/queues")
    assert "none at 127.0.0.1:1 does not answer" in page
    assert "secret" not in page


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("postgresql://u:secret@db.example:5433/shop", "shop at db.example:5433"),
        ("host=db.example user=u password=secret dbname=shop", "shop at db.example"),
        ("postgresql://u:secret@/", "u at localhost"),
        ("some folder", "some folder"),
    ],
)
def test_an_instance_is_named_without_its_password(target: str, name: str) -> None:
    assert shown_name(target) == name


def test_an_application_mounts_a_dashboard_of_several_instances(
    database: sb.Database, make_instance_url: Callable[..., str]
) -> None:
    dashboard = Dashboard(
        [make_instance_url(), database.instance.url], token=None, role=Role.ACT, hosts=["shop.example"]
    )
    outer = Starlette(routes=[Mount("/broker", dashboard)])
    browser = Browser(outer, base_url="http://shop.example")
    page = browser.page("broker/")
    assert len(page.xpath("//section[@class='instance']")) == 2
    assert [link for link in page.xpath("//@href | //@src") if not str(link).startswith(("/broker/", "#"))] == []
    send_messages(database, (ORDER, b"1"))
    page = browser.page("broker/i/1/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}")
    form = page.xpath("//form[contains(@action, 'switch')]")[0]
    answer = browser.send_form(form.action, dict(form.form_values()), origin="http://shop.example")
    assert answer.status_code == 200
    assert answer.url.path == "/broker/i/1/queue"
    assert "is OFF" in answer.text
    assert browser.get("/broker/static/dashboard.js").status_code == 200
    dashboard.close()


def test_a_pipeline_stands_there_and_quarantine_is_read_again(
    database: sb.Database, browse: Callable[..., Browser], pipeline_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servicebroker.dashboard.pipeline_page.FRESH_S", 0.0)
    send_messages(database, (ORDER, b"1"), (ORDER, b"2"))
    browser, looking = (browse(role, pipelines=[pipeline_file]) for role in (Role.ACT, Role.SEE))
    text = looking.text("pipelines")
    assert "shop" in text
    assert "There was no run yet." in text
    assert f"{database.name}.{STOCK_QUEUE} \u2013 2" in text  # no batch of Spark's, two behind
    assert "bronze 3 1" in text
    assert "orders 1 1" in text
    assert "Order: missing field: 1" in text
    assert looking.page("pipelines").xpath("//form[contains(@action, 'replay')]") == []
    page = browser.page("pipelines")
    assert page.xpath("//nav//a[@aria-current='page']")[0].text == "Pipelines"
    assert "0 messages of Order written, 1 still in quarantine." in browser.press(page, "replay")
    pipeline_file.write_text(pipeline_file.read_text().replace('note = "string"', 'note = "string?"'))
    assert "1 message of Order written, 0 still in quarantine." in browser.press(page, "replay")
    assert "orders 2" in browser.text("pipelines")
    form = page.xpath("//form[contains(@action, 'replay')]")[0]
    fields = dict(form.form_values())
    assert looking.send_form(form.action, fields).status_code == 403
    assert browser.send_form(form.action, {**fields, "form_token": "0" * 64}).status_code == 403
    assert browser.send_form("/pipelines/1/replay", fields).status_code == 404
    assert "has no rule for" in browser.send_form(form.action, {**fields, "type": MARKUP}).text
    shutil.rmtree(pipeline_file.parent / "tables" / "quarantine")
    assert "0 messages of Order written, 0 still in quarantine." in browser.send_form(form.action, fields).text
    assert "Empty." in browser.text("pipelines")
    output = pipeline_file.read_text()
    monkeypatch.setenv("A_QUEUE", "Nowhere4711")
    pipeline_file.write_text(output.replace(f'queue = "{STOCK_QUEUE}"', 'queue = "${A_QUEUE}"'))
    text = browser.text("pipelines")
    assert f"{database.name}.${{A_QUEUE}} \u2013 \u2013 \u2013" in text
    assert f"{database.name}.${{A_QUEUE}}: " in text
    assert "Nowhere4711" not in browser.get("/pipelines").text
    assert "orders 2" in text
    pipeline_file.write_text("[pipeline]\n")
    text = browser.text("pipelines")
    assert "does not answer" in text
    assert "orders 2" in text  # unchanged
    assert "--pipeline" in browse().text("pipelines", status=404)


def test_the_overview_uses_the_judgement_of_doctor(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servicebroker.cli.examination.judge", lambda facts: [Finding("the moon", "is full", "wait")])
    assert "1 problem" in browser.text("")
    assert "the moon : is full wait" in browser.text("")
    monkeypatch.setattr("servicebroker.cli.examination.judge", lambda facts: [])
    assert "All is well" in browser.text("")
