"""Conversations on the dashboard: the list, both sides of a conversation, and each action on it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from dashboard_support import TROUBLE, Browser, send_messages, words
from servicebroker.cli.main import app as command
from servicebroker.model.states import STATE_WORDS
from support import ORDER, STOCK, STOCK_QUEUE, begin, eventually, group_of, peer_handle, query, state

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_a_closed_conversation_is_no_trouble(database: sb.Database, browser: Browser) -> None:
    handle = send_messages(database, (ORDER, b"1"))
    far = peer_handle(database, handle)
    database.end_conversation(far)
    for page, severity in ((handle, "warning"), (far, "note")):
        shown_findings = browser.page("i/0/conversation", handle=page).xpath("//ul[@class='findings']/li")
        assert [finding.get("class") for finding in shown_findings] == [severity]
    assert browser.page("i/0/conversation", handle=far).xpath(f"//main{TROUBLE[1:]}") == []
    result = CliRunner().invoke(
        command,
        ["doctor", "--instance", database.instance.url, "--database", database.name, "--conversation", str(far)],
    )
    assert (result.exit_code, "It is closed." in result.output) == (0, True)


def test_conversations_are_listed_by_age_active_ones_first(database: sb.Database, browser: Browser) -> None:
    first, second, third = (send_messages(database, (ORDER, b"1")) for _ in range(3))
    database.end_conversation(peer_handle(database, first))

    def handles(**asked: str) -> list[str]:
        page = browser.page("i/0/conversations", service=STOCK, **asked)
        shown_handles = page.xpath("//tbody//th//a/@title")
        return [handle for handle in shown_handles if handle in {str(first), str(second), str(third)}]

    active = [str(second), str(third)]
    assert [handle for handle in handles() if handle in active] == active
    assert [handle for handle in handles(order="newest") if handle in active] == active[::-1]
    page = browser.page("i/0/conversations", service=STOCK)
    states = [words(element) for element in page.xpath("//td[@data-label='State']")]
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
    assert words(page).count("delayed until") == 3  # two rows, and the findings of doctor
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
    (form,) = [
        element for element in browser.page("").xpath("//form") if words(element) == f"Remove conversation {handle}"
    ]
    answer = browser.send_form(form.action, dict(form.form_values()))
    assert "is removed" in answer.text
    assert state(database, handle) is None


def test_a_trail_begins_with_a_button(database: sb.Database, browser: Browser) -> None:
    handle, other = send_messages(database, (ORDER, b"1")), send_messages(database, (ORDER, b"1"))
    for each_handle in (handle, other):
        page = browser.page("i/0/conversation", handle=each_handle)
        assert "are recorded from now on" in browser.press(page, "record-trail")
    database.send(handle, ORDER, b"2")
    (row,) = browser.page("i/0/conversation", handle=handle).xpath("//ol[@class='life']/li")
    assert (row.get("class"), f"message 1 of type {ORDER}: arrived" in words(row)) == ("far in", True)
    CliRunner().invoke(command, ["trail", "off", "--instance", database.instance.url], catch_exceptions=False)


def test_a_conversation_shows_both_sides_and_the_judgement(database: sb.Database, browser: Browser) -> None:
    handle = send_messages(database, (ORDER, b"first"), (ORDER, b"second"))
    far = peer_handle(database, handle)
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
    elements = browser.page("i/0/conversations", service="nowhere").xpath("//tbody//th")
    assert [str(sent_too)] == [title for row in elements for title in row.xpath(".//@title")]
    assert "No matching conversations." in browser.text("i/0/conversations", service="nowhere", state="ER")


def test_each_action_on_a_conversation_does_what_its_button_says(database: sb.Database, browser: Browser) -> None:
    def press(shown: UUID, act: str, **typed: str) -> str:
        return browser.press(browser.page("i/0/conversation", handle=shown), act, **typed)

    handle, other_handle = send_messages(database, (ORDER, b"1")), begin(database)
    group = group_of(database, other_handle)
    assert str(group) in press(handle, "move", group=str(group))
    assert group_of(database, handle) == group
    assert "in 60 seconds" in press(handle, "timer")
    assert query(
        database,
        "select count(dialog_timer) from servicebroker.conversation_endpoints where conversation_handle = %s",
        handle,
    ) == [(1,)]
    far = peer_handle(database, handle)
    assert "the error 12" in press(far, "end-with-error", code="12", text="It's <b>bad</b>")
    assert state(database, handle) == "ER"
    assert "has ended" in press(handle, "end")
    removed = send_messages(database, (ORDER, b"1"))
    press(removed, "clean-up")
    assert state(database, removed) is None
    assert f'"{removed}" is not found' in press(other_handle, "move", group=str(uuid4()), handle=str(removed))
    assert "must be a number" in press(other_handle, "timer", seconds="soon")
    assert "must be a UUID" in press(other_handle, "move", group="x")


def test_waiting_messages_are_shown_with_their_reason(database: sb.Database, browser: Browser) -> None:
    database.send(begin(database, "//nowhere/Stock"), ORDER, b"1")
    text = browser.text("i/0/way")
    assert "//nowhere/Stock" in text
    assert "AutoCreatedLocal" in text
    (link,) = browser.page("i/0/way").xpath("//tr[contains(., '//nowhere/Stock')]//a[text()='explain the route']/@href")
    assert "A conversation from database" in browser.text(link[1:])
