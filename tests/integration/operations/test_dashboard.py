"""The dashboard: what each page shows, what each act does, and who is let in."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import psycopg
import pytest
from lxml import html
from psycopg import sql
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli import diagnosed_instance
from servicebroker.cli.main import app as command
from servicebroker.dashboard import Dashboard, People, Proxy, Role, snapshot_cache
from servicebroker.dashboard.actions import ACTIONS
from servicebroker.dashboard.bodies import shown
from servicebroker.dashboard.sign_in_limits import MAX_FAILURES_PER_NAME
from servicebroker.dashboard.snapshot_cache import shown_name
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.engine.diagnosis.findings import Finding
from servicebroker.engine.diagnosis.queue_counts import queue_depths
from servicebroker.model.names import END_DIALOG
from servicebroker.model.states import STATE_WORDS
from servicebroker.store.running import run
from support import (
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    eventually,
    far_handle,
    group_of,
    query,
    queue_number,
    state,
    together,
)

HERE = "http://127.0.0.1"
PAGES = ("", "i/0/queues", "i/0/conversations", "i/0/way", "i/0/dead-letters", "i/0/statements")
TROUBLE = ".//*[contains(concat(' ', @class, ' '), ' bad ')]"  # red elements
MARKUP = "<img src=x onerror=alert(1)>&\"'"


class Browser(TestClient):
    """A browser on a dashboard, with what a person does there."""

    def page(self, path: str, status: int = 200, **asked: object) -> html.HtmlElement:
        answer = self.get(f"/{path}", params={name: str(value) for name, value in asked.items()} or None)
        assert answer.status_code == status, answer.text
        return html.fromstring(answer.text)

    def text(self, path: str, status: int = 200, **asked: object) -> str:
        return words(self.page(path, status, **asked).xpath("//main")[0])

    def queue(self, database: sb.Database, queue: str = STOCK_QUEUE, **asked: object) -> str:
        return self.text("i/0/queue", database=database.name, queue=f"dbo.{queue}", **asked)

    def press(self, page: html.HtmlElement, act: str, number: int = 0, **typed: str) -> str:
        """Fill in and send a form of a page; what the next page says of it."""
        form = page.xpath(f"//form[substring(@action, string-length(@action) - {len(act)}) = '/{act}']")[number]
        answer = self.send_form(form.action, {**dict(form.form_values()), **typed})
        return words(html.fromstring(answer.text).xpath("//p[contains(@class, 'notice')]")[0])

    def send_form(self, path: str, fields: dict[str, str], **headers: str) -> Any:
        content = "application/x-www-form-urlencoded"
        return self.post(path, content=urlencode(fields), headers={"origin": HERE, "content-type": content, **headers})


def words(element: html.HtmlElement) -> str:
    """Return the text of an element in one line."""
    return " ".join(" ".join(element.itertext()).split())


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page is looked at anew."""
    monkeypatch.setattr(snapshot_cache, "FRESH_S", 0.0)
    monkeypatch.setattr(snapshot_cache, "RETRY_DELAY_S", 0.0)
    monkeypatch.setattr(snapshot_cache, "SLOW_S", float("inf"))


@pytest.fixture
def browse(database: sb.Database) -> Iterator[Callable[..., Browser]]:
    """Opens the dashboard of an instance, for somebody with a role, who needs no token unless one is given."""
    opened = []

    def browser(role: Role = Role.ACT, *, url: str = "", **signing_in: Any) -> Browser:
        dashboard = Dashboard([url or database.instance.url], role=role, **{"token": None, **signing_in})
        opened.append(dashboard)
        return Browser(dashboard, base_url=HERE)

    yield browser
    for dashboard in opened:
        dashboard.close()


@pytest.fixture
def browser(browse: Callable[..., Browser]) -> Browser:
    return browse()


def sent(database: sb.Database, *messages: tuple[str, bytes | str]) -> UUID:
    """A conversation with these messages in StockQueue."""
    handle = begin(database)
    for message_type, body in messages:
        database.send(handle, message_type, body)
    return handle


def test_the_overview_says_what_doctor_finds_and_how_much_there_is(database: sb.Database, browser: Browser) -> None:
    sent(database, (ORDER, b"1"), (ORDER, b"2"))
    database.alter_queue(ORDERS_QUEUE, status=False)
    text = browser.text("")
    assert f"queue {database.name}.dbo.{ORDERS_QUEUE} : It is OFF" in text
    found = int(re.findall(r"(\d+) problems?", text)[0])
    said = CliRunner().invoke(command, ["doctor", "--instance", database.instance.url]).output
    assert f"{found} found." in said
    (messages,) = re.findall(r"In queues ([\d,]+)", text)
    assert int(messages) >= 2


def growing(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with messages that nobody receives, for longer than is natural."""
    sent(database, (ORDER, b"1"))
    monkeypatch.setattr("servicebroker.engine.diagnosis.queue_findings.UNEXPLAINED_WAIT", timedelta(0))


def test_a_queue_that_nobody_reads_stands_out_as_doctor_judges(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row() -> html.HtmlElement:
        return browser.page("i/0/queues").xpath(f"//tr[@data-key='{database.name}.dbo.{STOCK_QUEUE}']")[0]

    assert row().get("class") == "note"
    assert row().xpath(TROUBLE) == []
    growing(database, monkeypatch)
    assert row().get("class") == "trouble"
    assert "stuck Nobody receives: 1 message" in words(row())
    keys = [one.get("class") for one in browser.page("i/0/queues").xpath("//tbody/tr")]
    assert keys == sorted(keys, key=["trouble", "warning", "note"].index)
    assert "Nobody receives: 1 message" in browser.text("i/0/workers")
    assert database.receive(STOCK_QUEUE)
    assert row().get("class") == "note"


def test_a_finding_has_a_button_for_what_it_advises(
    database: sb.Database, browse: Callable[..., Browser], browser: Browser
) -> None:
    """And only for a person who may press it."""
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
    (form,) = [one for one in page.xpath("//form") if words(one).strip() == f"Enable the broker of {database.name}"]
    assert "is enabled" in browser.send_form(form.action, dict(form.form_values())).text


def test_a_session_is_ended_after_a_question(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = far_handle(database, sent(database, (ORDER, b"1")))
    monkeypatch.setattr("servicebroker.engine.diagnosis.session_findings.LONG_WAIT", timedelta(0))
    with (
        psycopg.connect(database.instance.url) as other,
        pytest.raises(sb.InstanceError),
        database.transaction() as transaction,
    ):
        (message,) = transaction.receive(STOCK_QUEUE)
        ((pid,),) = transaction.connection.execute("select pg_backend_pid()").fetchall()
        text = browser.text("i/0/workers")
        assert re.search(rf"{pid} \S.* {ORDER} of {str(handle)[:8]}", text), text
        page = browser.page("")
        (form,) = [one for one in page.xpath("//form") if words(one).strip() == f"End session {pid}"]
        assert form.getparent().tag == "details"
        answer = browser.send_form(form.action, dict(form.form_values()))
        assert f"The session {pid} has ended." in words(html.fromstring(answer.text))
        assert other.execute("select 1").fetchall() == [(1,)]  # another session goes on
        transaction.send(message.conversation_handle, "//test/Reply", b"")
    assert "There is no session" in browser.send_form(form.action, dict(form.form_values())).text
    assert f"END SESSION {pid}" in browser.text("i/0/audit")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_closed_conversation_is_no_trouble(database: sb.Database, browser: Browser) -> None:
    handle = sent(database, (ORDER, b"1"))
    far = far_handle(database, handle)
    database.end_conversation(far)
    for page, severity in ((handle, "warning"), (far, "note")):
        shown_findings = browser.page("i/0/conversation", handle=page).xpath("//ul[@class='findings']/li")
        assert [one.get("class") for one in shown_findings] == [severity]
    assert browser.page("i/0/conversation", handle=far).xpath(f"//main{TROUBLE[1:]}") == []
    said = CliRunner().invoke(
        command,
        ["doctor", "--instance", database.instance.url, "--database", database.name, "--conversation", str(far)],
    )
    assert (said.exit_code, "It is closed." in said.output) == (0, True)


def test_the_search_finds_queues_services_and_handles(database: sb.Database, browser: Browser) -> None:
    handle = sent(database, (ORDER, b"1"))
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


def test_conversations_are_listed_by_age_active_ones_first(database: sb.Database, browser: Browser) -> None:
    first, second, third = (sent(database, (ORDER, b"1")) for _ in range(3))
    database.end_conversation(far_handle(database, first))

    def handles(**asked: str) -> list[str]:
        page = browser.page("i/0/conversations", service=STOCK, **asked)
        shown_handles = page.xpath("//tbody//th//a/@title")
        return [one for one in shown_handles if one in {str(first), str(second), str(third)}]

    active = [str(second), str(third)]
    assert [one for one in handles() if one in active] == active
    assert [one for one in handles(order="newest") if one in active] == active[::-1]
    page = browser.page("i/0/conversations", service=STOCK)
    states = [words(one) for one in page.xpath("//td[@data-label='State']")]
    assert set(states) <= set(STATE_WORDS.values())
    assert states.index("conversing") == 0


def test_delayed_messages_and_schedules_are_no_trouble(database: sb.Database, browser: Browser) -> None:
    handle = begin(database)
    for second in (3600, 7200):
        database.send(handle, ORDER, b"later", delay=second)
    row = browser.page("i/0/way").xpath(f"//tr[@data-key='delayed {STOCK}']")[0]
    assert int(row.xpath("td[@data-label='Messages']")[0].text) >= 2
    assert browser.page("i/0/way").xpath(f"//tr[starts-with(@data-key, '{STOCK} ')]") == []
    page = browser.page("i/0/conversation", handle=handle)
    assert words(page).count("delayed until") == 2
    assert "2 delayed messages are cancelled." in browser.press(page, "cancel-delayed")
    assert "CANCEL DELAYED MESSAGES" in browser.text("i/0/audit")
    assert "delayed until" not in browser.text("i/0/conversation", handle=handle)
    worker = sb.Worker(STOCK_QUEUE)

    @worker.every("0 3 * * *", name="nightly")
    def nightly(tx: sb.Transaction, at: datetime) -> None: ...

    @worker.on()
    def other(tx: sb.Transaction, message: sb.Message) -> None: ...

    with database.working(worker):
        eventually(lambda: "nightly 0 3 * * * UTC" in browser.text("i/0/workers"))


def test_a_mistyped_target_is_removed_by_a_button(database: sb.Database, browser: Browser) -> None:
    handle = begin(database, f"{STOCK}s")
    database.send(handle, ORDER, b"1")
    (form,) = [one for one in browser.page("").xpath("//form") if words(one) == f"Remove conversation {handle}"]
    answer = browser.send_form(form.action, dict(form.form_values()))
    assert "is removed" in answer.text
    assert state(database, handle) is None


def test_a_trail_begins_with_a_button(database: sb.Database, browser: Browser) -> None:
    handle, other = sent(database, (ORDER, b"1")), sent(database, (ORDER, b"1"))
    for one in (handle, other):
        page = browser.page("i/0/conversation", handle=one)
        assert "are recorded from now on" in browser.press(page, "record-trail")
    database.send(handle, ORDER, b"2")
    (row,) = browser.page("i/0/conversation", handle=handle).xpath("//ol[@class='life']/li")
    assert (row.get("class"), f"message 1 of type {ORDER}: arrived" in words(row)) == ("far in", True)
    CliRunner().invoke(command, ["trail", "off", "--instance", database.instance.url], catch_exceptions=False)


def test_dead_letters_are_grouped_and_filtered(database: sb.Database, browser: Browser) -> None:
    for body in (b"1", b"2"):
        poisoned(database, body)
    sent(database, (DOCUMENT, b"<a/>"))
    database.process(STOCK_QUEUE, lambda tx, messages: {}["price"], poison=lambda failure: sb.SetAside())

    def groups(**asked: str) -> list[str]:
        page = browser.page("i/0/dead-letters", database=database.name, **asked)
        return [words(row)[:60] for row in page.xpath("//table//tr[contains(@data-key, 'database=')]")]

    kinds = ("KeyError: *", "ValueError: cannot read b'*'")
    assert [one.startswith(kind) for one, kind in zip(groups(), kinds, strict=True)] == [True, True]
    assert len(groups(kind=kinds[0])) == len(groups(error="CANNOT READ")) == len(groups(message_type=ORDER)) == 1
    assert groups(error="nothing like it") == []
    for letter in database.set_aside_messages():
        database.discard_message(letter.set_aside_id)


def test_system_messages_have_short_names(database: sb.Database, browser: Browser) -> None:
    database.end_conversation(far_handle(database, sent(database, (ORDER, b"1"))))
    (name,) = browser.page("i/0/queue", database=database.name, queue=f"dbo.{ORDERS_QUEUE}").xpath(
        "//table[@class='messages']//th/span[@class='system']"
    )
    assert (name.text, name.get("title")) == ("EndDialog", END_DIALOG)


def test_a_page_ends_at_its_deadline_and_the_others_go_on(
    fresh_database: sb.Database, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosed_instance, "LOCK_TIMEOUT_MS", 50)
    monkeypatch.setattr(diagnosed_instance, "LATER_TIMEOUT_MS", 50)
    url = fresh_database.instance.url
    browser = browse(url=url)
    browser.page("i/0/dead-letters")
    with psycopg.connect(url) as other:
        other.execute("lock table servicebroker.set_aside_messages")
        text = browser.text("i/0/dead-letters")
        assert "another session holds a lock that this page needs" in text
        assert "The figures are from" in text
        assert "does not answer" not in browser.text("i/0/queues")
        other.execute("lock table servicebroker.transmission_queue")
        text = browser.text("")
        assert "It could not see messages that wait" in text
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
        assert "No action can be taken here" in browser.press(page, "switch")
        assert admin.execute(number).fetchall() != [(newest,)]


def test_the_overview_counts_links_to_peers(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def links() -> Generator[Any, Any, list[None]]:  # steps without a statement
        yield from ()
        return [None] * 3

    monkeypatch.setattr(dashboard_queries, "links", links)
    figure = browser.page("").xpath("//dt[.='Links to peers']/following-sibling::dd")[0]
    assert figure.text_content().strip() == "3"


def test_rates_are_of_the_last_seconds(database: sb.Database, browser: Browser) -> None:
    def counted() -> None:  # PostgreSQL counts what a session did when it has a moment, which may be 10 s later
        query(database, "select pg_stat_force_next_flush()")

    counted()
    browser.page("i/0/queues")
    sent(database, *[(ORDER, b"x")] * 50)
    counted()
    row = browser.page("i/0/queues").xpath(f"//tr[@data-key='{database.name}.dbo.{STOCK_QUEUE}']")[0]
    assert float(row.xpath("td[@data-label='In/s']")[0].text_content().replace(",", "")) > 0
    assert row.xpath("td[@data-label='Messages']")[0].text_content() == "50"


def test_a_rate_is_what_has_risen_by_the_time_that_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 102.0, 111.0, 200.0])
    monkeypatch.setattr(snapshot_cache.time, "monotonic", lambda: next(times))
    rates = snapshot_cache.Rates()
    assert rates.update({("a",): 1000}) == {("a",): 0.0}
    assert rates.update({("a",): 1020, ("b",): 5}) == {("a",): 10.0, ("b",): 0.0}
    assert rates.update({("a",): 1110})[("a",)] == 10.0
    assert rates.update({("a",): 90}) == {("a",): 0.0}  # the server has begun to count anew


def test_many_viewers_are_one_question(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "FRESH_S", 60.0)
    one, looks_ = snapshot_cache.ObservedInstance(database.instance.url), []
    for _ in range(5):
        assert one.read("page", lambda instance: looks_.append(1) or {"n": len(looks_)}).facts == {"n": 1}
    one.invalidate()
    assert one.read("page", lambda instance: {"n": 2}).facts == {"n": 2}
    one.close()


def test_what_is_slow_to_see_is_shown_as_it_was_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look takes a sixth of the time at most; a failure is reported to the next viewer."""
    monkeypatch.setattr(snapshot_cache, "SLOW_S", 0.01)
    watched, going, asked = snapshot_cache.CachedSource("slow"), threading.Event(), []

    def ask() -> int:
        asked.append(time.monotonic())
        going.wait(0.05 if len(asked) == 1 else 20)
        if len(asked) == 3:
            raise sb.BrokerError(8426, "x")
        return len(asked)

    assert watched.snapshot("page", ask, 0.0).facts == 1
    assert watched.snapshot("page", ask, 0.0).facts == 1
    assert len(asked) == 1, "it rests"
    time.sleep(0.05 * (snapshot_cache.MIN_IDLE_FACTOR + 1))
    begun = time.monotonic()
    assert [watched.snapshot("page", ask, 0.0).facts for _ in range(10)] == [1] * 10
    assert time.monotonic() - begun < 5, "nobody waits for it"
    assert len(asked) <= 2
    going.set()
    eventually(lambda: watched.snapshot("page", lambda: 2, 0.0).facts == 2)
    watched.invalidate()
    asked[:] = [0.0, 0.0]
    with pytest.raises(sb.BrokerError):  # after an act nobody is shown what was before
        watched.snapshot("page", ask, 0.0)


def test_a_look_that_was_asked_before_an_act_is_not_of_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in (0.0, 60.0):  # beside the page, and by who asks
        monkeypatch.setattr(snapshot_cache, "SLOW_S", slow)
        watched, asked, going = snapshot_cache.CachedSource("acted on"), threading.Event(), threading.Event()
        watched.snapshot("page", lambda: "old", 0.0)

        def ask(asked: threading.Event = asked, going: threading.Event = going) -> str:
            asked.set()
            assert going.wait(20)
            return "before the act"

        monkeypatch.setattr(snapshot_cache, "MIN_IDLE_FACTOR", 0)
        other = threading.Thread(target=watched.snapshot, args=("page", ask, 0.0))
        other.start()
        assert asked.wait(20)
        watched.invalidate()
        after = threading.Timer(0.1, going.set)
        after.start()
        assert watched.snapshot("page", lambda: "after the act", 60.0).facts == "after the act"
        assert watched.snapshot("page", lambda: "later", 60.0).facts == "after the act", "it is fresh"
        for thread in (other, after):
            thread.join()


def test_trouble_is_over_when_a_look_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "SLOW_S", 0.0)
    watched = snapshot_cache.CachedSource("down for a while")

    def down() -> str:
        raise psycopg.OperationalError("it is down")

    assert watched.snapshot("page", lambda: "old", 0.0).trouble == ""
    monkeypatch.setattr(snapshot_cache, "MIN_IDLE_FACTOR", 0)
    eventually(lambda: watched.snapshot("page", down, 0.0)[::2] == ("old", "it is down"))  # by a look beside the page
    watched.invalidate()
    assert watched.snapshot("page", down, 0.0)[::2] == ("old", "it is down")
    assert watched.snapshot("page", lambda: "new", 0.0)[::2] == ("new", "")
    assert watched.snapshot("page", lambda: "newer", 60.0)[::2] == ("new", ""), "it is fresh, and there is no trouble"


def test_many_messages_are_told_by_the_statistics(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that polls each second counts a part of a queue; smaller counts are exact."""
    database.send_batch(begin(database), ORDER, [b"x"] * 300)
    number = queue_number(database, STOCK_QUEUE)
    counted = "select pg_stat_force_next_flush(), pg_stat_get_tuples_inserted(%s::regclass)"
    # else untold counts of the sender would be added to those of VACUUM
    eventually(lambda: query(database, counted, f"servicebroker.queue_{number}")[0][1] == 300)
    with database.instance.connection() as connection:
        connection.execute(f"vacuum analyze servicebroker.queue_{number}")  # type: ignore[call-overload]
        told = {most: run(connection, queue_depths([number], most))[number].messages for most in (100, 301, 100_000)}
    assert told == {100: 300, 301: 300, 100_000: 300}


def test_a_queue_shows_its_messages_by_their_kind_and_takes_none(database: sb.Database, browser: Browser) -> None:
    sent(database, (ORDER, b'{"a": [1, 2]}'), (ORDER, b"\x00\xff\x1b[31m"), (ORDER, "h\u00e9llo".encode()))
    sent(database, (DOCUMENT, b"<a><b/></a>"), (MARK, b""))
    text = browser.queue(database)
    for said in (
        'JSON, 13 bytes { "a": [ 1, 2 ] }',
        "hexadecimal, 7 bytes",
        "00ff1b5b33316d",
        "text, 6 bytes h\u00e9llo",
    ):
        assert said in text
    for said in (
        "XML, 11 bytes <a><b/></a>",
        "Empty body.",
        "Messages 5",
        "Conversations 2 conversing",
        f"Services {STOCK}",
    ):
        assert said in text
    assert "\x1b" not in browser.get("/i/0/queue", params={"database": database.name, "queue": "dbo.StockQueue"}).text
    assert len(database.receive(STOCK_QUEUE, top=10)) == 3


def test_a_queue_is_searched_by_type_and_text(database: sb.Database, browser: Browser) -> None:
    sent(database, (ORDER, b"apples"), (ORDER, b"pears"), (DOCUMENT, b"<pears/>"))
    assert set(re.findall(r"apples|pears", browser.queue(database, type="order", text="ear"))) == {"pears"}
    assert "<pears/>" in browser.queue(database, type="DOCUM")
    assert "No matching messages." in browser.queue(database, text="plums")
    row = "//tr[contains(@data-key, 'Queue')]"
    assert len(browser.page("i/0/queues", name="stock").xpath(row)) < len(browser.page("i/0/queues").xpath(row))


def test_who_has_locked_groups_is_shown_and_does_not_stop_the_page(database: sb.Database, browser: Browser) -> None:
    handle = far_handle(database, sent(database, (ORDER, b"1")))
    assert "No group of the first" in browser.queue(database)
    with database.transaction() as transaction:
        transaction.receive(STOCK_QUEUE)
        text = browser.queue(database)
    assert str(group_of(database, handle)) in text
    assert "idle in transaction" in text


def test_looking_stops_no_reader(database: sb.Database) -> None:
    sent(database, (ORDER, b"1"))
    number = queue_number(database, STOCK_QUEUE)
    with psycopg.connect(database.instance.url) as looking:
        (head,) = run(looking, dashboard_queries.message_heads(number, "", ""))
        run(looking, dashboard_queries.group_locks(number))
        assert head.head == b"1"
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
        database.alter_queue(STOCK_QUEUE, status=False)


def test_switching_a_queue(database: sb.Database, browser: Browser) -> None:
    name = {"database": database.name, "queue": f"dbo.{STOCK_QUEUE}"}
    assert "OFF" in browser.press(browser.page("i/0/queue", **name), "switch")
    with pytest.raises(sb.BrokerError):
        database.receive(STOCK_QUEUE)
    assert "ON" in browser.press(browser.page("i/0/queue", **name), "switch")
    assert database.receive(STOCK_QUEUE) == []
    database.alter_queue(STOCK_QUEUE, status=False)
    assert "0 messages that had failed are tried again" in browser.press(browser.page("i/0/queue", **name), "retry")
    assert database.receive(STOCK_QUEUE) == []


def test_acts_that_cannot_be_undone_ask_first(database: sb.Database, browser: Browser) -> None:
    """The button is below a second press, and names the object."""
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    database.process(STOCK_QUEUE, lambda tx, messages: 1 / 0, poison=lambda failure: sb.SetAside())
    (letter,) = database.set_aside_messages()
    pages = [
        browser.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}"),
        browser.page("i/0/conversation", handle=handle),
        browser.page("i/0/dead-letters"),
    ]
    asked = [words(one) for page in pages for one in page.xpath("//details[contains(@class, 'asks')]//button")]
    assert asked == [
        f"Switch off dbo.{STOCK_QUEUE}",
        f"End {handle}",
        f"End {handle} with this error",
        f"Remove {handle}",
        f"Replay 1 dead letter of {ORDER} with ZeroDivisionError: division by zero",
        f"Discard 1 dead letter of {ORDER} with ZeroDivisionError: division by zero",
        f"Discard message {letter.set_aside_id}",
    ]
    database.discard_message(letter.set_aside_id)  # the page shows those of all tests


def test_a_conversation_shows_both_sides_and_the_judgement(database: sb.Database, browser: Browser) -> None:
    handle = sent(database, (ORDER, b"first"), (ORDER, b"second"))
    far = far_handle(database, handle)
    text = browser.text("i/0/conversation", handle=far)
    assert [
        said
        for said in ("first", "second", str(handle), "conversing , target", "conversing , initiator")
        if said not in text
    ] == []
    assert "Next number to receive 2" in text
    database.alter_queue(STOCK_QUEUE, status=False)
    sent_too = begin(database, "//nowhere/Service")
    database.send(sent_too, ORDER, b"waits")
    assert f"Its queue {database.name}.dbo.{STOCK_QUEUE} is OFF" in browser.text("i/0/conversation", handle=far)
    text = browser.text("i/0/conversation", handle=sent_too)
    assert "Undelivered messages" in text
    assert "//nowhere/Service" in text
    found = browser.page("i/0/conversations", service="nowhere").xpath("//tbody//th")
    assert [str(sent_too)] == [title for row in found for title in row.xpath(".//@title")]
    assert "No matching conversations." in browser.text("i/0/conversations", service="nowhere", state="ER")


def test_each_act_on_a_conversation(database: sb.Database, browser: Browser) -> None:
    def press(shown: UUID, act: str, **typed: str) -> str:
        return browser.press(browser.page("i/0/conversation", handle=shown), act, **typed)

    handle, other = sent(database, (ORDER, b"1")), begin(database)
    group = group_of(database, other)
    assert str(group) in press(handle, "move", group=str(group))
    assert group_of(database, handle) == group
    assert "in 60 seconds" in press(handle, "timer")
    assert query(
        database,
        "select count(dialog_timer) from servicebroker.conversation_endpoints where conversation_handle = %s",
        handle,
    ) == [(1,)]
    far = far_handle(database, handle)
    assert "the error 12" in press(far, "end-with-error", code="12", text="It's <b>bad</b>")
    assert state(database, handle) == "ER"
    assert "has ended" in press(handle, "end")
    removed = sent(database, (ORDER, b"1"))
    press(removed, "clean-up")
    assert state(database, removed) is None
    assert f'"{removed}" is not found' in press(other, "move", group=str(uuid4()), handle=str(removed))
    assert "must be a number" in press(other, "timer", seconds="soon")
    assert "must be an identifier" in press(other, "move", group="x")


def poisoned(database: sb.Database, body: bytes) -> None:
    """A message is set aside."""
    sent(database, (ORDER, body))

    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError(f"cannot read {messages[0].message_body!r}")

    database.process(STOCK_QUEUE, fail, poison=lambda failure: sb.SetAside())


def test_poison_is_shown_replayed_and_discarded_once(database: sb.Database, browser: Browser) -> None:
    poisoned(database, b"bad")
    page = browser.page("i/0/dead-letters")
    text = page.text_content()
    assert "cannot read b'bad'" in text
    assert "raise ValueError" in text
    assert "again" in browser.press(page, "replay")
    assert "No dead letters." in browser.text("i/0/dead-letters")
    assert "must be" in browser.press(page, "replay")  # somebody who has looked before it was replayed
    assert bodies(database.receive(STOCK_QUEUE)) == [b"bad"]
    poisoned(database, b"worse")
    page = browser.page("i/0/dead-letters")
    assert "is discarded" in browser.press(page, "discard")
    assert "must be" in browser.press(page, "discard")
    database.alter_queue(STOCK_QUEUE, status=False)
    assert f"{database.name}.dbo.{STOCK_QUEUE} with 0 messages" in browser.text("i/0/dead-letters")


def test_a_message_is_replayed_after_an_edit(database: sb.Database, browser: Browser) -> None:
    poisoned(database, b"\n<b>bad</b>\nline")
    page = browser.page("i/0/dead-letters")
    assert page.xpath("//textarea/text()") == ["\n\n<b>bad</b>\nline"]  # of which a browser drops the first line end
    form = page.xpath("//form[contains(@action, '/replay-edited')]")[0]
    large = browser.send_form(form.action, {**dict(form.form_values()), "body": "x" * 70_000})
    assert (large.status_code, "The form is too large" in large.text) == (413, True)
    assert "with another body" in browser.press(page, "replay-edited", body="good\r\nline")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"good\nline"]
    assert "body edited" in browser.text("i/0/audit").replace(": ", " ")
    for body in (b"\x00", b"a\r\nb", b"\xff", b"x" * 5000):  # bodies that a form would change, or does not have whole
        poisoned(database, body)
    assert browser.page("i/0/dead-letters").xpath("//textarea") == []


def test_many_messages_are_replayed_at_once(database: sb.Database, browser: Browser) -> None:
    for body in (b"1", b"2", b"3"):
        poisoned(database, body)
    page = browser.page("i/0/dead-letters")
    (handle,) = {one.conversation_handle for one in database.set_aside_messages()[:1]}
    database.end_conversation(handle)
    forms = page.xpath("//form[contains(@action, '/replay-chosen')]")
    ours = [form.fields["database"] for form in forms].index(database.name)
    assert "newest is 'x'; it must be a number" in browser.press(page, "replay-chosen", ours, newest="x")
    poisoned(database, b"4")  # after the page, whose button names three
    assert "3 messages are in their queues again." in browser.press(page, "replay-chosen", ours)
    found = sorted(str(one) for _ in range(3) for one in bodies(database.receive(STOCK_QUEUE)))
    assert found == ["b'1'", "b'2'", "b'3'"]
    page = browser.page("i/0/dead-letters", database=database.name)
    assert "1 message is discarded." in browser.press(page, "discard-chosen")
    assert database.set_aside_messages() == []


def test_the_activation_of_a_queue_is_changed(database: sb.Database, browser: Browser) -> None:
    def press(**typed: str) -> str:
        page = browser.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}")
        return browser.press(page, "activation", **typed)

    assert "9614" in press(status="on")  # the procedure is missing
    assert "is ON" in press(status="on", procedure="usp_Stock", readers="3", execute_as="OWNER")
    assert "usp_Stock], at most 3 readers" in browser.queue(database)
    assert "is OFF" in press(status="off")
    assert "must be a number" in press(readers="many")


def by_two(browse: Callable[..., Browser], act: str, path: str, **asked: object) -> list[str]:
    """Two people look at a page, and both press the same at once; what each is told."""
    people = [browse(), browse()]
    pages = [one.page(path, **asked) for one in people]
    said: list[str] = []
    together(*(partial(lambda who: said.append(people[who].press(pages[who], act)), who) for who in (0, 1)))
    return said


@pytest.mark.parametrize(
    ("act", "done", "left"), [("replay", "is in its queue again.", [b"bad"]), ("discard", "is discarded.", [])]
)
def test_of_two_people_who_act_on_one_message_one_does(
    database: sb.Database, browse: Callable[..., Browser], act: str, done: str, left: list[bytes]
) -> None:
    poisoned(database, b"bad")
    said = by_two(browse, act, "i/0/dead-letters")
    assert [sum(text in one for one in said) for text in (done, "must be that of a message that is set aside")] == [
        1,
        1,
    ]
    assert bodies(database.receive(STOCK_QUEUE)) == left


def test_of_two_people_who_end_a_conversation_one_does(database: sb.Database, browse: Callable[..., Browser]) -> None:
    said = by_two(browse, "end", "i/0/conversation", handle=sent(database, (ORDER, b"1")))
    assert [sum(text in one for one in said) for text in ("has ended on this side", "is not found")] == [
        1,
        1,
    ], said


def test_what_is_on_the_way_and_why(database: sb.Database, browser: Browser) -> None:
    database.send(begin(database, "//nowhere/Stock"), ORDER, b"1")
    text = browser.text("i/0/way")
    assert "//nowhere/Stock" in text
    assert "AutoCreatedLocal" in text
    (link,) = browser.page("i/0/way").xpath("//tr[contains(., '//nowhere/Stock')]//a[text()='explain the route']/@href")
    assert "A conversation from database" in browser.text(link[1:])


def test_statements_are_told_by_name(database: sb.Database, browser: Browser) -> None:
    sent(database, (ORDER, b"1"))
    with sb.open(database.instance.url, upkeep=None) as other:
        other.database(database.name).receive(STOCK_QUEUE)
    assert re.search(
        r"RECEIVE conversation\.receive \d+ % \d+ % [\d,]+ [\d.]+ [\d.]+", browser.text("i/0/statements", all="1")
    )


def test_markup_in_every_name_and_body_is_text(database: sb.Database, browser: Browser) -> None:
    queue = f"Q{MARKUP}"
    database.create_queue(queue)
    database.create_message_type(f"T{MARKUP}")
    database.create_contract(f"C{MARKUP}", {f"T{MARKUP}": "ANY"})
    database.create_service(f"S{MARKUP}", queue, [f"C{MARKUP}"])
    handle = database.begin_dialog(f"S{MARKUP}", f"S{MARKUP}", contract=f"C{MARKUP}")
    database.send(handle, f"T{MARKUP}", MARKUP.encode())
    database.send(database.begin_dialog(f"S{MARKUP}", f"E{MARKUP}", contract=f"C{MARKUP}"), f"T{MARKUP}", b"1")
    database.create_route(f"R{MARKUP}", service_name=f"E{MARKUP}", address="LOCAL")
    database.alter_queue(queue, status=False)
    far = far_handle(database, handle)
    asked: list[tuple[str, dict[str, object]]] = [(path, {}) for path in PAGES]
    asked += [
        ("i/0/queue", {"database": database.name, "queue": f"dbo.{queue}", "type": "T<", "text": "<img"}),
        ("i/0/conversation", {"handle": far}),
        ("i/0/conversations", {"service": f"S{MARKUP}"}),
        ("i/0/way", {"database": database.name, "service": f"E{MARKUP}"}),
    ]
    for path, query_ in asked:
        page = browser.page(path, **query_)
        assert page.xpath("//img | //*[@onerror] | //main//script | //style") == [], path
        if query_ or path not in (
            "",
            "i/0/conversations",
            "i/0/statements",
            "i/0/dead-letters",
        ):  # some of all conversations
            assert MARKUP in page.text_content(), path
    assert MARKUP in browser.text("i/0/conversation", handle=far)
    assert "ON" in browser.press(
        browser.page("i/0/queue", database=database.name, queue=f"dbo.{queue}"), "switch"
    )  # a form carries the name as it is


def test_of_a_large_body_the_beginning_is_fetched(database: sb.Database, browser: Browser) -> None:
    handle = sent(database, (ORDER, b"y" * 20_000_000))
    answer = browser.get("/i/0/conversation", params={"handle": str(far_handle(database, handle))})
    assert "text, 20.0 MB, only the beginning is shown" in answer.text
    assert len(answer.content) < 20_000
    with database.instance.connection() as connection:
        (head,) = run(connection, dashboard_queries.message_heads(queue_number(database, STOCK_QUEUE), "", ""))
    assert (len(head.head or b""), head.size) == (dashboard_queries.SHOWN_BODY_BYTES, 20_000_000)


@pytest.mark.full
def test_of_a_body_of_500_mb_too(database: sb.Database, browser: Browser) -> None:
    handle = sent(database, (ORDER, b"y" * 500_000_000))
    far = str(far_handle(database, handle))
    begun = time.monotonic()
    for text in (browser.text("i/0/conversation", handle=far), browser.queue(database, text="yyy")):
        assert "text, 500.0 MB, only the beginning is shown" in text
        assert len(text) < 20_000
    assert time.monotonic() - begun < 5  # the rest of the body is not read


def test_bodies_of_a_multicast_are_shown(database: sb.Database, browser: Browser) -> None:
    database.send([begin(database), begin(database)], ORDER, b"z" * 5000)
    assert browser.queue(database).count("5,000 bytes, only the beginning is shown zzz") == 2


@pytest.mark.parametrize(
    ("validation", "head", "size", "kind", "text"),
    [
        ("N", None, 0, "empty", ""),
        ("N", "a\u00e9".encode()[:2], 9, "text", "a"),
        ("N", "a\u00e9".encode()[:2], 2, "hexadecimal", "61c3"),
        ("N", b"[" * 4000, 4000, "text", "[["),
        ("N", b'{"a": NaN', 4000, "text", '{"a"'),
        ("N", "\u202egpj.exe".encode(), 10, "text", "\ufffdgpj.exe"),
        ("X", "<a/>".encode("utf-16"), 10, "XML", "<a/>"),
        ("X", b"\x1b<a/>", 5, "XML", "\ufffd<a/>"),
    ],
)
def test_how_a_body_is_shown(validation: str, head: bytes | None, size: int, kind: str, text: str) -> None:
    one = shown(validation, head, size)
    assert (one.kind, one.more) == (kind, size - len(head or b""))
    assert text in one.text


def test_what_is_not_there_is_said(database: sb.Database, browser: Browser) -> None:
    assert "is not found" in browser.text("i/0/conversation", 404, handle=uuid4())
    assert "no such page" in browser.text("i/0/nothing", 404)
    for beyond in (1, 7):  # one instance is observed, of the number 0
        assert "no such page" in browser.text(f"i/{beyond}/queues", 404)
    assert "no such page" in browser.text("i/0/queue", 404, database=database.name)
    for nowhere in ("nowhere", "i/0", "i/x/queues", "i/0/queues/more"):
        assert "no such page" in browser.text(nowhere, 404)
    assert browser.get("/static/nothing.css").status_code == 404
    assert "must be an identifier" in browser.text("i/0/conversation", 404, handle="x' or 1=1")
    assert MARKUP in browser.text("i/0/queue", 404, database=database.name, queue=MARKUP)


def test_without_the_role_nothing_is_done_and_no_body_shown(
    database: sb.Database, browse: Callable[..., Browser]
) -> None:
    far = far_handle(database, sent(database, (ORDER, b"secret body")))
    poisoned(database, b"secret poison")
    database.send(far, "//test/Reply", b"secret reply")
    acting = browse(Role.ACT)
    form = acting.page("i/0/conversation", handle=far).xpath("//form[contains(@action, '/end')]")[0]
    for role in (Role.SEE, Role.BODIES):
        browser = browse(role)
        pages = [
            browser.text("i/0/conversation", handle=far),
            browser.queue(database),
            browser.text("i/0/dead-letters"),
        ]
        pages.append(browser.queue(database, ORDERS_QUEUE, text="secret"))
        found = browser.queue(database, ORDERS_QUEUE, text="not in any body")
        assert ("No matching messages." in found) == (role == Role.BODIES)  # else the search would tell what is in them
        assert any("secret reply" in page for page in pages) == (role == Role.BODIES)
        assert browser.page("i/0/conversation", handle=far).xpath("//form[contains(@action, '/act/')]") == []
        token = browser.page("").xpath("//input[@name='form_token']/@value")
        assert token == []  # without a sign-in and without rights there is no form
        assert browser.send_form(form.action, dict(form.form_values())).status_code == 403
    assert state(database, far) == "CO"


def test_signing_in(browse: Callable[..., Browser]) -> None:
    browser = browse(Role.SEE, token="the token")
    for path in PAGES:
        answer = browser.get(f"/{path}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert browser.get("/", headers={"accept": "text/event-stream"}).status_code == 401
    assert browser.post("/i/0/act/end", headers={"origin": HERE}).status_code == 401
    assert browser.send_form("/login", {"token": "another"}).status_code == 403
    answer = browser.send_form("/login", {"token": " the token "})
    assert answer.url.path == "/"
    cookie = answer.history[0].headers["set-cookie"]
    assert [flag for flag in ("HttpOnly", "SameSite=Strict", "Path=/") if flag not in cookie] == []
    assert "the token" not in cookie
    assert "All is well" in answer.text or "problem" in answer.text
    assert browser.get("/login", headers={"cookie": "x=y"}).status_code == 200
    signing_out = html.fromstring(answer.text).xpath("//form[@action='/logout']")[0]
    assert browser.send_form("/logout", {"form_token": "0" * 64}).status_code == 403
    with browser.stream("GET", "/", headers={"accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert browser.send_form("/logout", dict(signing_out.form_values())).url.path == "/login"
        assert list(lines)[-1:] == [""]  # the stream is over
    assert browser.get("/").url.path == "/login"


def test_who_guesses_has_to_wait(browse: Callable[..., Browser]) -> None:
    browser = browse(Role.SEE, token="the token")
    found = [browser.send_form("/login", {"token": str(number)}).status_code for number in range(MAX_FAILURES_PER_NAME)]
    assert set(found) == {403}
    assert browser.send_form("/login", {"token": "the token"}).status_code == 429


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return tmp_path / "people"


def told(*arguments: str, typed: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(command, ["people", *arguments], input=typed)
    assert done.exit_code == code, done.output
    return done.output if code == 0 else str(done.exception)


def test_each_signs_in_by_name_and_may_what_the_file_says_now(
    database: sb.Database, browse: Callable[..., Browser], people: Path
) -> None:
    file = ("--people", str(people))
    assert "ann is let in: act." in told("add", "ann", "--role", "act", *file, typed="a long secret\n")
    assert "bob is let in: see." in told("add", "bob", *file, typed="another secret\n")
    assert people.stat().st_mode & 0o777 == 0o600
    assert "secret" not in people.read_text()
    assert told("show", *file).splitlines() == ["ann: act", "bob: see"]
    browser, other = (browse(people=People(people)) for _ in range(2))
    for fields in (
        {"name": "ann", "password": "another secret"},
        {"name": "carl", "password": "a long secret"},
        {"name": "ann"},
        {"token": "a long secret"},
    ):
        assert "The name or the password is wrong." in browser.send_form("/login", fields).text
    assert browser.get("/", follow_redirects=False).headers["location"] == "/login"
    handle = sent(database, (ORDER, b"secret body"))
    assert browser.send_form("/login", {"name": "ann", "password": "a long secret"}).url.path == "/"
    assert other.send_form("/login", {"name": "bob", "password": "another secret"}).url.path == "/"
    assert "secret body" in browser.queue(database)
    assert "secret body" not in other.queue(database)
    page = browser.page("i/0/conversation", handle=handle)
    form = page.xpath("//form[contains(@action, '/end')]")[0]
    assert other.send_form(form.action, dict(form.form_values())).status_code == 403
    assert "ended" in browser.press(page, "end")
    assert "dashboard: ann" in browser.text("i/0/audit")

    assert "ann is changed: see." in told("add", "ann", *file, typed="a long secret\n")
    assert "secret body" not in browser.queue(database)
    assert "bob is not let in any more." in told("remove", "bob", *file)
    assert other.get("/", follow_redirects=False).headers["location"] == "/login"
    people.chmod(0o644)
    assert "is open to others" in browser.send_form("/login", {"name": "ann", "password": "a long secret"}).text


def test_guesses_of_one_name_close_the_door_for_that_name(browse: Callable[..., Browser], people: Path) -> None:
    for name in ("ann", "bob"):
        told("add", name, "--people", str(people), typed="a long secret\n")
    browser = browse(people=People(people))
    right = {"name": "ann", "password": "a long secret"}
    found = [
        browser.send_form("/login", {**right, "password": str(n)}).status_code for n in range(MAX_FAILURES_PER_NAME)
    ]
    assert set(found) == {403}
    assert browser.send_form("/login", right).status_code == 429
    assert browser.send_form("/login", {**right, "name": "bob"}).url.path == "/"


def test_what_is_wrong_with_people_is_said(people: Path) -> None:
    file = ("--people", str(people))
    assert "make it with servicebroker people add" in told("show", *file, code=1)
    assert "A password has 10 to 1000 characters." in told("add", "ann", *file, typed="short\n", code=1)
    for name in ("", "a:b", " ann", "a\tb", "x" * 129):
        assert "is no name" in told("add", "--proxied", *file, "--", name, code=1)
    assert not people.exists()
    told("add", "ann", "--proxied", *file)
    assert told("show", *file) == "ann: see, by a proxy only\n"
    assert json.loads(told("show", *file, "--json")) == {"people": [{"name": "ann", "role": "see", "password": False}]}
    assert "Nobody in" in told("remove", "bob", *file, code=1)
    for line in ("ann", "ann:boss:", "ann:see:scrypt$x", ":see:"):
        people.write_text(f"# ours\n\n{line}\n")
        assert "line 3, is not NAME:ROLE:SEAL" in told("show", *file, code=1)
    people.chmod(0o640)
    assert "chmod 600" in told("show", *file, code=1)


PROXY = Proxy("x-user", (ip_network("10.1.0.0/16"), ip_network("::1/128")))


def proxied(browser: Browser, address: str, name: str | None, path: str = "/", **headers: str) -> Any:
    """A request that comes from an address, with a header that names somebody."""
    client = TestClient(browser.app, base_url=HERE, client=(address, 1), cookies=browser.cookies)
    named = {} if name is None else {"x-user": name}
    answer = client.get(path, headers={**named, **headers}, follow_redirects=False)
    browser.cookies = client.cookies
    return answer


def test_a_proxy_says_who_it_is_and_nobody_else_does(
    database: sb.Database, browse: Callable[..., Browser], people: Path
) -> None:
    told("add", "ann", "--proxied", "--role", "bodies", "--people", str(people))
    sent(database, (ORDER, b"secret body"))
    queue = f"/i/0/queue?{urlencode({'database': database.name, 'queue': f'dbo.{STOCK_QUEUE}'})}"
    anyone, listed = browse(Role.SEE, proxy=PROXY), browse(proxy=PROXY, people=People(people))
    assert proxied(anyone, "10.1.2.3", "whoever").status_code == 200
    assert "secret body" not in proxied(anyone, "::ffff:10.1.2.3", "whoever", queue).text
    assert "secret body" in proxied(listed, "::1", "ann", queue).text
    assert proxied(listed, "::1", "carl", queue).status_code == 403
    for address in ("10.2.2.3", "127.0.0.1", "testclient"):  # also with the cookie of who was let in by the proxy
        assert "through its proxy" in proxied(anyone, address, "whoever").text
        assert proxied(listed, address, "ann", queue).headers["location"] == "/login"
    assert "does not name its user" in proxied(anyone, "10.1.2.3", None).text
    assert "does not name its user" in proxied(anyone, "10.1.2.3", "").text
    refused = listed.send_form("/login", {"name": "ann", "password": ""})
    assert "The name or the password is wrong." in refused.text  # people without a password sign in by the proxy alone
    spoken = proxied(browse(proxy=PROXY), "10.1.2.3", "ann", **{"x-forwarded-proto": "https"})
    assert "; Secure" in spoken.headers["set-cookie"]


def test_an_act_by_the_proxy_is_of_who_it_names(database: sb.Database, browse: Callable[..., Browser]) -> None:
    browser = browse(Role.ACT, proxy=PROXY)
    client = Browser(browser.app, base_url=HERE, client=("10.1.2.3", 1), headers={"x-user": "dora"})
    assert "is OFF" in client.press(
        client.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}"), "switch"
    )
    assert "dashboard: dora" in client.text("i/0/audit")
    form = client.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}").xpath(
        "//form[contains(@action, 'switch')]"
    )[0]
    fields = dict(form.form_values())
    assert client.send_form(form.action, fields, **{"x-user": "eve"}).status_code == 403  # the form is dora's


def test_what_other_sites_make_a_browser_ask_is_refused(database: sb.Database, browser: Browser) -> None:
    form = browser.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}").xpath(
        "//form[contains(@action, 'switch')]"
    )[0]
    fields = dict(form.form_values())
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:127", "127.0.0.1:80@evil.example"):
        assert browser.get("/", headers={"host": host}).status_code == 421
    for origin in ("http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:81", ""):
        assert browser.send_form(form.action, fields, origin=origin).status_code == 403
    for token in ("", "0" * 64, "\u00e9"):
        assert browser.send_form(form.action, {**fields, "form_token": token}).status_code == 403
    other = Browser(browser.app, base_url=HERE)  # somebody else's browser
    other.get("/")
    assert other.send_form(form.action, fields).status_code == 403
    assert browser.get(form.action, params=fields).status_code == 405
    assert browser.put(form.action, headers={"origin": HERE}).status_code == 405
    assert browser.send_form(form.action, {"form_token": fields["form_token"]}).status_code == 400
    assert browser.send_form(form.action, {"x": "y" * 70_000}).status_code == 413
    assert database.receive(STOCK_QUEUE) == []  # its queue is ON still
    assert browser.send_form(form.action, fields).status_code == 200
    with pytest.raises(sb.BrokerError):
        database.receive(STOCK_QUEUE)


def test_every_answer_forbids_what_is_not_ours(browser: Browser) -> None:
    for path in (*PAGES, "static/dashboard.css", "static/dashboard.js", "static/icon.svg", "nothing"):
        headers = browser.get(f"/{path}").headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    for path in PAGES:
        page = browser.page(path)
        assert [link for link in page.xpath("//@src | //@href") if not str(link).startswith(("/", "#"))] == []
        assert page.xpath("//@style | //@onclick") == []
    with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/"):
        pass


def test_a_page_changes_by_itself_within_two_seconds(database: sb.Database, browser: Browser) -> None:
    with browser.stream("GET", "/i/0/queues", headers={"accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        seen = ""
        while "</table>" not in seen:
            seen += next(lines)
        sent(database, *[(ORDER, b"1")] * 7)
        begun, seen = time.monotonic(), ""
        while f"{STOCK_QUEUE}" not in seen or 'class="n">7</td>' not in seen:
            seen += next(lines)
        assert time.monotonic() - begun < 2


def test_while_the_database_is_down_the_last_figures_stay(
    fresh_database: sb.Database, browse: Callable[..., Browser], server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "RETRY_DELAY_S", 1.0)
    sent(fresh_database, (ORDER, b"1"))
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


def test_an_instance_that_is_not_there_is_said(browse: Callable[..., Browser], tmp_path: Any) -> None:
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


def test_several_instances_and_an_application_that_mounts_them(
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
    sent(database, (ORDER, b"1"))
    page = browser.page("broker/i/1/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}")
    form = page.xpath("//form[contains(@action, 'switch')]")[0]
    answer = browser.send_form(form.action, dict(form.form_values()), origin="http://shop.example")
    assert answer.status_code == 200
    assert answer.url.path == "/broker/i/1/queue"
    assert "is OFF" in answer.text
    assert browser.get("/broker/static/dashboard.js").status_code == 200
    dashboard.close()


@pytest.fixture
def pipeline_file(database: sb.Database, tmp_path: Path) -> Path:
    """A pipeline of StockQueue that has landed an order, and has two messages in quarantine."""
    pytest.importorskip("deltalake")
    from pipeline_tables import batch as batch_of
    from pipeline_tables import land, message, order
    from servicebroker.pipeline.file import read_pipeline

    path = tmp_path / "shop.toml"
    path.write_text(
        f'[pipeline]\nname = "shop"\nwarehouse = "tables"\n[[queue]]\ninstance = "{database.instance.url}"\n'
        f'database = "{database.name}"\nqueue = "{STOCK_QUEUE}"\n[[message]]\ntype = "Order"\nformat = "json"\n'
        'table = "orders"\n[message.columns]\nid = "long"\nnote = "string"\n'
    )
    land(read_pipeline(path), "q", 0, batch_of(order(1), order(2, note=None), message(3, b"?", MARKUP)))
    return path


def test_a_pipeline_stands_there_and_quarantine_is_read_again(
    database: sb.Database, browse: Callable[..., Browser], pipeline_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servicebroker.dashboard.pipeline_page.FRESH_S", 0.0)
    sent(database, (ORDER, b"1"), (ORDER, b"2"))
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
    assert "0 messages of Order landed, 1 still in quarantine." in browser.press(page, "replay")
    pipeline_file.write_text(pipeline_file.read_text().replace('note = "string"', 'note = "string?"'))
    assert "1 message of Order landed, 0 still in quarantine." in browser.press(page, "replay")
    assert "orders 2" in browser.text("pipelines")
    form = page.xpath("//form[contains(@action, 'replay')]")[0]
    fields = dict(form.form_values())
    assert looking.send_form(form.action, fields).status_code == 403
    assert browser.send_form(form.action, {**fields, "form_token": "0" * 64}).status_code == 403
    assert browser.send_form("/pipelines/1/replay", fields).status_code == 404
    assert "has no rule for" in browser.send_form(form.action, {**fields, "type": MARKUP}).text
    shutil.rmtree(pipeline_file.parent / "tables" / "quarantine")
    assert "0 messages of Order landed, 0 still in quarantine." in browser.send_form(form.action, fields).text
    assert "Empty." in browser.text("pipelines")
    there = pipeline_file.read_text()
    monkeypatch.setenv("A_QUEUE", "Nowhere4711")
    pipeline_file.write_text(there.replace(f'queue = "{STOCK_QUEUE}"', 'queue = "${A_QUEUE}"'))
    text = browser.text("pipelines")
    assert f"{database.name}.${{A_QUEUE}} \u2013 \u2013 \u2013" in text
    assert f"{database.name}.${{A_QUEUE}}: " in text
    assert "Nowhere4711" not in browser.get("/pipelines").text
    assert "orders 2" in text
    pipeline_file.write_text("[pipeline]\n")
    text = browser.text("pipelines")
    assert "does not answer" in text
    assert "orders 2" in text  # as they were
    assert "--pipeline" in browse().text("pipelines", status=404)


def test_it_judges_as_doctor_does(database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servicebroker.cli.examination.judge", lambda facts: [Finding("the moon", "is full", "wait")])
    assert "1 problem" in browser.text("")
    assert "the moon : is full wait" in browser.text("")
    monkeypatch.setattr("servicebroker.cli.examination.judge", lambda facts: [])
    assert "All is well" in browser.text("")


def test_the_command_refuses_what_others_could_read() -> None:
    for options in (
        ("--host", "0.0.0.0"),
        ("--host", "::"),
        ("--certificate", __file__),
        ("--role", "admin"),
        ("--proxy-header", "x-user"),
        ("--proxy-address", "::1"),
        ("--proxy-header", "x-user", "--proxy-address", "moon"),
    ):
        refused = CliRunner().invoke(command, ["dashboard", *options])
        assert refused.exit_code == 2, refused.output


LONG = "9" * 5000  # digits; Python reads 4,300


@pytest.mark.parametrize(
    "path",
    [f"/i/{LONG}/queues", f"/i/{LONG}/act/switch", f"/pipelines/{LONG}/replay", "/i/9999999/queues", "/i/-1/queues"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_place_that_no_list_has_is_not_found(browser: Browser, path: str, method: str) -> None:
    assert browser.request(method, path.replace("{n}", LONG), headers={"origin": HERE}).status_code in (404, 405)


@pytest.mark.parametrize(
    "path",
    [
        "/i/0/{n}",
        "/i/0/queues?span={n}&name={n}",
        "/i/0/queue?database={n}&queue={n}",
        "/i/0/conversation?handle={n}",
        "/i/0/conversations?service={n}&state={n}",
        "/i/0/way?service={n}&database={n}&broker={n}",
        "/i/0/audit?who={n}&what={n}",
        "/i/0/dead-letters?before={n}&kind={n}",
        "/static/{n}",
    ],
)
def test_a_long_number_in_a_question_is_no_fault_of_the_server(browser: Browser, path: str) -> None:
    assert browser.get(path.replace("{n}", LONG)).status_code in (200, 404)


@pytest.mark.parametrize(
    "name", ["range", "if-modified-since", "if-none-match", "content-length", "cookie", "x-forwarded-for", "accept"]
)
def test_a_long_number_in_a_header_is_no_fault_of_the_server(browser: Browser, name: str) -> None:
    for value in (LONG, f"bytes={LONG}-{LONG}", f"Mon, {LONG} Jan 2020 00:00:00 +{LONG}"):
        for path in ("/", "/static/dashboard.css"):
            assert browser.get(path, headers={name: value}).status_code in (200, 304, 400, 416)


@pytest.mark.parametrize(
    "text",
    [LONG, "9" * 4000, "9" * 19, "1_0", "\u0663", "5.5", ""],
    ids=["5000", "4000", "19", "_", "arabic", "5.5", ""],
)
def test_a_number_of_a_form_has_18_digits(database: sb.Database, browser: Browser, text: str) -> None:
    shown = sent(database, (ORDER, b"1"))
    for act, field in (("timer", "seconds"), ("end-with-error", "code")):
        said = browser.press(browser.page("i/0/conversation", handle=shown), act, **{field: text, "text": "x"})
        assert "must be a number of at most 18 digits" in said
        assert len(said) < 300


def test_every_action_needs_the_role_to_act(
    database: sb.Database,
    browse: Callable[..., Browser],
    people: Path,
    pipeline_file: Path,
    request: pytest.FixtureRequest,
) -> None:
    """A person whose role was lowered has a form token that is right, and fields that are: only the role is missing."""

    def dialog() -> dict[str, str]:
        return {"database": database.name, "handle": str(sent(database, (ORDER, b"1")))}

    def dead_letter() -> dict[str, str]:
        poisoned(database, b"bad")
        return {"database": database.name, "number": str(database.set_aside_messages()[-1].set_aside_id)}

    queue = {"database": database.name, "queue": f"dbo.{STOCK_QUEUE}"}
    dead = {act: dead_letter() for act in ("replay", "replay-edited", "discard")}
    newest = str(max(int(fields["number"]) for fields in dead.values()))
    forms = {
        **{f"/i/0/act/{act}": fields for act, fields in dead.items()},
        "/i/0/act/end": dialog(),
        "/i/0/act/end-with-error": {**dialog(), "code": "5", "text": "no"},
        "/i/0/act/clean-up": dialog(),
        "/i/0/act/move": {**dialog(), "group": str(group_of(database, begin(database)))},
        "/i/0/act/timer": {**dialog(), "seconds": "60"},
        "/i/0/act/activation": {
            **queue,
            "procedure": "usp_Stock",
            "readers": "1",
            "execute_as": "OWNER",
            "status": "on",
        },
        "/i/0/act/switch": {**queue, "status": "off"},
        "/i/0/act/retry": queue,
        "/i/0/act/restart-activation": queue,
        "/i/0/act/enable-broker": {"database": database.name},
        "/i/0/act/record-trail": dialog(),
        "/i/0/act/cancel-delayed": dialog(),
        "/i/0/act/replay-chosen": {**queue, "newest": newest},
        "/i/0/act/discard-chosen": {**queue, "newest": newest},
        "/pipelines/0/replay": {"type": "Order"},
    }
    forms["/i/0/act/replay-edited"]["body"] = "good"
    other = psycopg.connect(database.instance.url)
    request.addfinalizer(other.close)
    forms["/i/0/act/end-session"] = {"pid": str(other.info.backend_pid)}
    assert {path.rpartition("/")[2] for path in forms if path.startswith("/i/")} == set(ACTIONS)

    def let_in(role: Role) -> None:
        told("add", "ann", "--proxied", "--role", role.name.lower(), "--people", str(people))

    let_in(Role.ACT)
    app = browse(proxy=PROXY, people=People(people), pipelines=[pipeline_file]).app
    browser = Browser(app, base_url=HERE, client=("10.1.2.3", 1), headers={"x-user": "ann"})
    (token, *_) = browser.page("i/0/queue", **queue).xpath("//input[@name='form_token']/@value")
    for role in Role:
        let_in(role)
        for path, fields in forms.items():
            answer = browser.send_form(path, {**fields, "form_token": str(token)})
            if role < Role.ACT:
                assert (path, answer.status_code) == (path, 403)
                assert "Your role may not act" in answer.text
            else:
                notices = html.fromstring(answer.text).xpath("//p[contains(@class, 'notice') and not(@hidden)]/@class")
                assert (path, notices[:1]) == (path, ["notice good"])  # a second one: what is gone now
