"""Dead letters and poison messages on the dashboard: list, replay and discard, also by two people at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import servicebroker as sb
from dashboard_support import Browser, send_messages, send_poison, words
from servicebroker.cli.people_file import Role
from servicebroker.dashboard import export
from support import DOCUMENT, ORDER, STOCK_QUEUE, bodies, run_together

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_dead_letters_are_grouped_and_filtered(database: sb.Database, browser: Browser) -> None:
    for body in (b"1", b"2"):
        send_poison(database, body)
    send_messages(database, (DOCUMENT, b"<a/>"))
    database.process(STOCK_QUEUE, lambda tx, messages: {}["price"], poison=lambda failure: sb.SetAside())

    def groups(**asked: str) -> list[str]:
        page = browser.page("i/0/dead-letters", database=database.name, **asked)
        return [words(row)[:60] for row in page.xpath("//table//tr[contains(@data-key, 'database=')]")]

    kinds = ("KeyError: *", "ValueError: cannot read b'*'")
    assert [group.startswith(kind) for group, kind in zip(groups(), kinds, strict=True)] == [True, True]
    assert len(groups(kind=kinds[0])) == len(groups(error="CANNOT READ")) == len(groups(message_type=ORDER)) == 1
    assert groups(error="nothing like it") == []
    for letter in database.set_aside_messages():
        database.discard_message(letter.set_aside_id)


def test_poison_is_shown_replayed_and_discarded_once(database: sb.Database, browser: Browser) -> None:
    send_poison(database, b"bad")
    page = browser.page("i/0/dead-letters")
    text = page.text_content()
    assert "cannot read b'bad'" in text
    assert "raise ValueError" in text
    (letter,) = database.set_aside_messages()
    of_conversation = browser.text("i/0/conversation", handle=letter.conversation_handle)
    assert f"{letter.set_aside_id} {ORDER} number 0" in of_conversation
    assert "Doctor finds no problem" not in of_conversation
    assert "again" in browser.press(page, "replay")
    assert "No dead letters." in browser.text("i/0/dead-letters")
    assert "must be" in browser.press(page, "replay")  # a viewer who has loaded the page before the replay
    assert bodies(database.receive(STOCK_QUEUE)) == [b"bad"]
    send_poison(database, b"worse")
    page = browser.page("i/0/dead-letters")
    assert "is discarded" in browser.press(page, "discard")
    assert "must be" in browser.press(page, "discard")
    database.alter_queue(STOCK_QUEUE, status=False)
    assert f"{database.name}.dbo.{STOCK_QUEUE} with 0 messages" in browser.text("i/0/dead-letters")


def exported(browser: Browser, page: str, **asked: str) -> list[dict[str, Any]]:
    answer = browser.get(f"/i/0/export/{page}", params=asked)
    assert answer.status_code == 200, answer.text
    assert f'filename="{page}.jsonl"' in answer.headers["content-disposition"]
    return [json.loads(line) for line in answer.text.splitlines()]


def test_messages_and_dead_letters_are_exported_as_json_lines(
    database: sb.Database, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_BODY_BYTES", 4)
    monkeypatch.setattr(export, "MAX_EXPORT", 4)
    browser, of_all = browse(), {"database": database.name}
    of_queue = {**of_all, "queue": f"dbo.{STOCK_QUEUE}"}
    send_poison(database, b"bad")
    handle = send_messages(database, *((ORDER, body) for body in (b"tea", b"\xff\x00", b"teapot", b"", b"fifth")))
    messages = exported(browser, "queue", **of_queue)
    assert [message.get("body") for message in messages] == ["tea", None, "teap", None]
    assert [message.get("is_body_cut", False) for message in messages] == [False, False, True, False]
    assert messages[1]["body_hex"] == "ff00"
    (received_on,) = {message["conversation_handle"] for message in messages}
    assert received_on != str(handle), "messages are exported with the handle of their receiver"
    assert [message["number"] for message in exported(browser, "queue", **of_queue, text="tea")] == [0, 2]
    (letter,) = exported(browser, "dead-letters", **of_all)
    assert (letter["body"], letter["message_type"], letter["failures"]) == ("bad", ORDER, 1)
    assert "raise ValueError" in letter["traceback"]
    assert exported(browser, "dead-letters", **of_all, error="nothing like it") == []

    viewer = browse(Role.SEE)
    seen = exported(viewer, "dead-letters", **of_all) + exported(viewer, "queue", **of_queue, text="tea")
    assert len(seen) == 5, "a search must not tell what bodies are"
    assert not {"body", "body_hex", "traceback"} & {key for one in seen for key in one}
    for page, asked in {"queue": of_all, "statements": of_all}.items():
        browser.page(f"i/0/export/{page}", 404, **asked)
    assert "export/queue?" in browser.get("/i/0/queue", params=of_queue).text
    for letter in exported(browser, "dead-letters", **of_all):
        database.discard_message(letter["number"])


def test_a_message_is_replayed_after_an_edit(database: sb.Database, browser: Browser) -> None:
    send_poison(database, b"\n<b>bad</b>\nline")
    page = browser.page("i/0/dead-letters")
    assert page.xpath("//textarea/text()") == ["\n\n<b>bad</b>\nline"]  # a browser drops its first line end
    form = page.xpath("//form[contains(@action, '/replay-edited')]")[0]
    large = browser.send_form(form.action, {**dict(form.form_values()), "body": "x" * 70_000})
    assert (large.status_code, "The form is too large" in large.text) == (413, True)
    assert "with another body" in browser.press(page, "replay-edited", body="good\r\nline")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"good\nline"]
    assert "body edited" in browser.text("i/0/audit").replace(": ", " ")
    for body in (b"\x00", b"a\r\nb", b"\xff", b"x" * 5000):  # bodies that a form would change or truncate
        send_poison(database, body)
    assert browser.page("i/0/dead-letters").xpath("//textarea") == []


def test_many_messages_are_replayed_at_once(database: sb.Database, browser: Browser) -> None:
    for body in (b"1", b"2", b"3"):
        send_poison(database, body)
    page = browser.page("i/0/dead-letters")
    (handle,) = {letter.conversation_handle for letter in database.set_aside_messages()[:1]}
    database.end_conversation(handle)
    forms = page.xpath("//form[contains(@action, '/replay-chosen')]")
    ours = [form.fields["database"] for form in forms].index(database.name)
    assert "newest is 'x'; it must be a number" in browser.press(page, "replay-chosen", ours, newest="x")
    send_poison(database, b"4")  # after the page was loaded, whose button names three
    assert "3 messages are in their queues again." in browser.press(page, "replay-chosen", ours)
    received = sorted(str(body) for _ in range(3) for body in bodies(database.receive(STOCK_QUEUE)))
    assert received == ["b'1'", "b'2'", "b'3'"]
    page = browser.page("i/0/dead-letters", database=database.name)
    assert "1 message is discarded." in browser.press(page, "discard-chosen")
    assert database.set_aside_messages() == []


def by_two(browse: Callable[..., Browser], act: str, path: str, **asked: object) -> list[str]:
    """Let two people load a page and press the same button at the same time. Return both notices."""
    people = [browse(), browse()]
    pages = [answer.page(path, **asked) for answer in people]
    calls: list[str] = []
    run_together(*(partial(lambda who: calls.append(people[who].press(pages[who], act)), who) for who in (0, 1)))
    return calls


@pytest.mark.parametrize(
    ("act", "done", "left"), [("replay", "is in its queue again.", [b"bad"]), ("discard", "is discarded.", [])]
)
def test_only_one_of_two_concurrent_actions_on_a_dead_letter_succeeds(
    database: sb.Database, browse: Callable[..., Browser], act: str, done: str, left: list[bytes]
) -> None:
    send_poison(database, b"bad")
    said = by_two(browse, act, "i/0/dead-letters")
    assert [sum(text in answer for answer in said) for text in (done, "must be a number of")] == [
        1,
        1,
    ]
    assert bodies(database.receive(STOCK_QUEUE)) == left


def test_only_one_of_two_concurrent_ends_succeeds(database: sb.Database, browse: Callable[..., Browser]) -> None:
    said = by_two(browse, "end", "i/0/conversation", handle=send_messages(database, (ORDER, b"1")))
    assert [sum(text in answer for answer in said) for text in ("The conversation has ended", "is not found")] == [
        1,
        1,
    ], said
