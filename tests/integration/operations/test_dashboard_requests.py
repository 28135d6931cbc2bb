"""Requests that no page sends: missing pages and objects, and long numbers."""

from __future__ import annotations

from uuid import uuid4

import pytest

import servicebroker as sb
from dashboard_support import HERE, MARKUP, Browser, send_messages
from support import ORDER

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_missing_pages_and_objects_are_reported(database: sb.Database, browser: Browser) -> None:
    assert "is not found" in browser.text("i/0/conversation", 404, handle=uuid4())
    assert "no such page" in browser.text("i/0/nothing", 404)
    assert "live" not in browser.get("/i/0/nothing").text.split("<main")[1]
    for beyond in (1, 7):  # only one instance is observed: number 0
        assert "no such page" in browser.text(f"i/{beyond}/queues", 404)
    assert "no such page" in browser.text("i/0/queue", 404, database=database.name)
    for nowhere in ("nowhere", "i/0", "i/x/queues", "i/0/queues/more"):
        assert "no such page" in browser.text(nowhere, 404)
    assert browser.get("/static/nothing.css").status_code == 404
    assert "must be a conversation handle (a UUID)" in browser.text("i/0/conversation", 404, handle="x' or 1=1")
    assert MARKUP in browser.text("i/0/queue", 404, database=database.name, queue=MARKUP)


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
@pytest.mark.sampled(3)
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
    shown = send_messages(database, (ORDER, b"1"))
    for act, field in (("timer", "seconds"), ("end-with-error", "code")):
        report = browser.press(browser.page("i/0/conversation", handle=shown), act, **{field: text, "text": "x"})
        assert "must be a number of at most 18 digits" in report
        assert len(report) < 300
