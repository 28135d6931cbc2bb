"""A queue on the dashboard: its messages and their bodies, who holds its groups, and what is changed there."""

from __future__ import annotations

import re
import time

import psycopg
import pytest

import servicebroker as sb
from dashboard_support import MARKUP, PAGES, Browser, send_messages, words
from servicebroker.dashboard import snapshot_cache
from servicebroker.dashboard.bodies import render_body
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.model.names import END_DIALOG
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
    group_of,
    peer_handle,
    queue_number,
)

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_system_messages_have_short_names(database: sb.Database, browser: Browser) -> None:
    database.end_conversation(peer_handle(database, send_messages(database, (ORDER, b"1"))))
    (name,) = browser.page("i/0/queue", database=database.name, queue=f"dbo.{ORDERS_QUEUE}").xpath(
        "//table[@class='messages']//th/span[@class='system']"
    )
    assert (name.text, name.get("title")) == ("EndDialog", END_DIALOG)


def test_an_action_waits_for_a_lock_until_its_deadline(
    database: sb.Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_cache, "ACTION_LOCK_TIMEOUT_MS", 100)
    page = browser.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}")
    with psycopg.connect(database.instance.url) as holder:
        holder.execute("select from servicebroker.queues for update")
        assert "gave up waiting for a lock" in browser.press(page, "switch")
    assert "OFF" in browser.press(page, "switch")


def test_a_queue_shows_its_messages_by_their_kind_and_takes_none(database: sb.Database, browser: Browser) -> None:
    send_messages(database, (ORDER, b'{"a": [1, 2]}'), (ORDER, b"\x00\xff\x1b[31m"), (ORDER, "h\u00e9llo".encode()))
    send_messages(database, (DOCUMENT, b"<a><b/></a>"), (MARK, b""))
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
    send_messages(database, (ORDER, b"apples"), (ORDER, b"pears"), (DOCUMENT, b"<pears/>"))
    assert set(re.findall(r"apples|pears", browser.queue(database, type="order", text="ear"))) == {"pears"}
    assert "<pears/>" in browser.queue(database, type="DOCUM")
    assert "No matching messages." in browser.queue(database, text="plums")
    row = "//tr[contains(@data-key, 'Queue')]"
    assert len(browser.page("i/0/queues", name="stock").xpath(row)) < len(browser.page("i/0/queues").xpath(row))


def test_sessions_with_locked_groups_are_shown_without_waiting(database: sb.Database, browser: Browser) -> None:
    handle = peer_handle(database, send_messages(database, (ORDER, b"1")))
    assert "No group of the first" in browser.queue(database)
    with database.transaction() as transaction:
        transaction.receive(STOCK_QUEUE)
        text = browser.queue(database)
    assert str(group_of(database, handle)) in text
    assert "idle in transaction" in text


def test_looking_stops_no_reader(database: sb.Database) -> None:
    send_messages(database, (ORDER, b"1"))
    number = queue_number(database, STOCK_QUEUE)
    with psycopg.connect(database.instance.url) as looking:
        (head,) = run(looking, dashboard_queries.message_heads(number, "", ""))
        run(looking, dashboard_queries.group_locks(number))
        assert head.head == b"1"
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
        database.alter_queue(STOCK_QUEUE, status=False)


def test_a_queue_is_switched_off_and_on(database: sb.Database, browser: Browser) -> None:
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
    """Each such button appears after a first click, and its label names the object."""
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    database.process(STOCK_QUEUE, lambda tx, messages: 1 / 0, poison=lambda failure: sb.SetAside())
    (letter,) = database.set_aside_messages()
    pages = [
        browser.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}"),
        browser.page("i/0/conversation", handle=handle),
        browser.page("i/0/dead-letters"),
    ]
    asked = [words(element) for page in pages for element in page.xpath("//details[contains(@class, 'asks')]//button")]
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


def test_the_activation_of_a_queue_is_changed(database: sb.Database, browser: Browser) -> None:
    def press(**typed: str) -> str:
        page = browser.page("i/0/queue", database=database.name, queue=f"dbo.{STOCK_QUEUE}")
        return browser.press(page, "activation", **typed)

    assert "9614" in press(status="on")  # the procedure is missing
    assert "is ON" in press(status="on", procedure="usp_Stock", readers="3", execute_as="OWNER")
    assert "usp_Stock], at most 3 readers" in browser.queue(database)
    assert "is OFF" in press(status="off")
    assert "must be a number" in press(readers="many")


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
    far = peer_handle(database, handle)
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
        ):  # these pages list only some conversations, so the name may be missing
            assert MARKUP in page.text_content(), path
    assert MARKUP in browser.text("i/0/conversation", handle=far)
    # the form posts the name unescaped
    assert "ON" in browser.press(browser.page("i/0/queue", database=database.name, queue=f"dbo.{queue}"), "switch")


def test_only_the_beginning_of_a_large_body_is_fetched(database: sb.Database, browser: Browser) -> None:
    handle = send_messages(database, (ORDER, b"y" * 20_000_000))
    answer = browser.get("/i/0/conversation", params={"handle": str(peer_handle(database, handle))})
    assert "text, 20.0 MB, only the beginning is shown" in answer.text
    assert len(answer.content) < 20_000
    with database.instance.connection() as connection:
        (head,) = run(connection, dashboard_queries.message_heads(queue_number(database, STOCK_QUEUE), "", ""))
    assert (len(head.head or b""), head.size) == (dashboard_queries.SHOWN_BODY_BYTES, 20_000_000)


@pytest.mark.full
def test_only_the_beginning_of_a_body_of_500_mb_is_fetched(database: sb.Database, browser: Browser) -> None:
    handle = send_messages(database, (ORDER, b"y" * 500_000_000))
    far = str(peer_handle(database, handle))
    started_at = time.monotonic()
    for text in (browser.text("i/0/conversation", handle=far), browser.queue(database, text="yyy")):
        assert "text, 500.0 MB, only the beginning is shown" in text
        assert len(text) < 20_000
    assert time.monotonic() - started_at < 5  # the rest of the body is not read


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
def test_a_body_is_shown_by_its_kind(validation: str, head: bytes | None, size: int, kind: str, text: str) -> None:
    view = render_body(validation, head, size)
    assert (view.kind, view.omitted_bytes) == (kind, size - len(head or b""))
    assert text in view.text
