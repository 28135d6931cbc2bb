"""The dashboard in a real browser: its looks, use by keyboard, and markup in names shown as text."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from browsers import AXE, DESK, IN_A_BROWSER, PHONE, shown_in, violations
from servicebroker.cli.main import app as command
from servicebroker.dashboard import Dashboard, Role
from servicebroker.dashboard.server import Server, make_config
from support import ORDER, STOCK_QUEUE, begin, peer_handle

pytest.importorskip("uvicorn")
pytestmark = IN_A_BROWSER

TOKEN = "a-token-that-is-long-enough"
SCREENS = Path(__file__).parents[3] / "docs/screens"
HIT = "<img src=x onerror='window.hit=1'>"


@contextmanager
def serve_dashboard(url: str) -> Iterator[str]:
    """Serve the dashboard of an instance, and return its address."""
    app = Dashboard([url], token=TOKEN, role=Role.ACT)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(make_config(app, timeout_graceful_shutdown=1))
        running = threading.Thread(target=server.run, args=([listening],))
        running.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        running.join()


@pytest.fixture
def address(database: sb.Database) -> Iterator[str]:
    with serve_dashboard(database.instance.url) as there:
        yield there


def sign_in(chromium: Any, address: str) -> None:
    chromium.get(f"{address}/login#{TOKEN}")
    within(5, lambda: not chromium.current_url.partition("#")[0].endswith("/login"))


@pytest.fixture
def signed_in(chromium: Any, address: str) -> Any:
    sign_in(chromium, address)
    return chromium


@pytest.fixture
def pages(database: sb.Database) -> list[str]:
    """Return every page, with a conversation and a queue whose names and bodies contain markup."""
    database.create_queue(HIT)
    database.create_service(HIT, HIT)
    handle = begin(database)
    database.send(handle, ORDER, HIT.encode())
    queue = {"database": database.name, "queue": f"dbo.{STOCK_QUEUE}"}
    named = {"database": database.name, "queue": f"dbo.{HIT}"}
    return [
        "/",
        *(f"/i/0/{page}" for page in ("queues", "conversations", "way", "dead-letters", "statements", "audit")),
        f"/i/0/queue?{urlencode(queue)}",
        f"/i/0/queue?{urlencode(named)}",
        f"/i/0/conversation?{urlencode({'handle': str(peer_handle(database, handle))})}",
    ]


SHOP = {
    "message_types": {"//shop/Order": "NONE", "//shop/Confirmation": "NONE"},
    "contracts": {"//shop/Ordering": {"//shop/Order": "INITIATOR", "//shop/Confirmation": "TARGET"}},
    "queues": {"OrderQueue": {}, "StockQueue": {}, "ReturnsQueue": {}},
    "services": {
        "//shop/Orders": {"queue": "OrderQueue"},
        "//shop/Stock": {"queue": "StockQueue", "contracts": ["//shop/Ordering"]},
        "//shop/Returns": {"queue": "ReturnsQueue", "contracts": ["//shop/Ordering"]},
    },
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Create an instance in `./shop` with typical problems. Return its pages by the names of their pictures."""
    monkeypatch.chdir(tmp_path)
    with sb.open("shop") as instance:
        database = instance.database("Shop", create=True)
        database.define(SHOP)
        CliRunner().invoke(command, ["trail", "on", "--instance", "shop"], catch_exceptions=False)

        def order(to_service: str, *items: str) -> UUID:
            handle = database.begin_dialog("//shop/Orders", to_service, contract="//shop/Ordering", encryption=False)
            for item in items:
                database.send(handle, "//shop/Order", f'{{"item": "{item}", "pieces": 2}}')
            return handle

        def ship(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
            for message in messages:
                if b"saucer" in (message.message_body or b""):
                    raise LookupError("nobody knows what a saucer costs")
                transaction.send(message.conversation_handle, "//shop/Confirmation", '{"shipped": "today"}')

        handle = order("//shop/Stock", "teapot", "saucer", "cup")
        database.process("StockQueue", ship, poison=lambda failure: sb.SetAside())
        database.send(handle, "//shop/Order", '{"item": "spoon", "pieces": 6}')
        for number in range(40):
            order("//shop/Returns", f"cup {number}")
        order("//shop/Stok", "teapot")  # a service that does not exist
        database.alter_queue("ReturnsQueue", status=False)
        yield {
            "overview": "/",
            "queues": "/i/0/queues",
            "queue": f"/i/0/queue?{urlencode({'database': 'Shop', 'queue': 'dbo.StockQueue'})}",
            "conversation": f"/i/0/conversation?{urlencode({'handle': str(peer_handle(database, handle))})}",
            "way": "/i/0/way",
            "dead-letters": "/i/0/dead-letters",
        }


def test_pictures_of_the_documentation(chromium: Any, shop: dict[str, str]) -> None:
    """Write the pictures to docs/screens, from where tools/site_pages.py takes them."""
    SCREENS.mkdir(exist_ok=True)
    with serve_dashboard("./shop") as address:
        sign_in(chromium, address)
        for name, page in shop.items():
            shown_in(chromium, DESK, "light")
            chromium.get(address + page)
            for first in chromium.find_elements("css selector", "details.message > summary")[:1]:
                first.click()
            height = chromium.execute_script("return document.body.getBoundingClientRect().height")
            shown_in(chromium, (DESK[0], min(int(height) + 1, 1800)), "light")
            chromium.execute_script("scrollTo(0, 0)")
            assert chromium.save_screenshot(str(SCREENS / f"{name}.png"))


def within(seconds: float, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_each_page_fits_runs_no_markup_and_can_be_read_by_everybody(
    signed_in: Any, address: str, pages: list[str], size: tuple[int, int], scheme: str
) -> None:
    shown_in(signed_in, size, scheme)
    found = []
    for page in pages:
        signed_in.get(address + page)
        wide = signed_in.execute_script("return document.documentElement.scrollWidth")
        if wide > size[0]:
            found.append(f"{page} is {wide} wide")
        if signed_in.execute_script("return window.hit"):
            found.append(f"{page} ran markup")
        if AXE.exists():
            found += [f"{page}: {violation}" for violation in violations(signed_in)]
    assert found == []


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core")
def test_a_page_that_cannot_be_read_is_found(chromium: Any) -> None:
    chromium.get("data:text/html,<p style='color:lightgrey;background:white'>pale</p><img src=x>")
    assert {violation.partition(":")[0] for violation in violations(chromium)} >= {
        "color-contrast",
        "image-alt",
        "html-has-lang",
    }


def test_a_new_message_is_shown_within_two_seconds(signed_in: Any, address: str, database: sb.Database) -> None:
    signed_in.get(f"{address}/i/0/queue?{urlencode({'database': database.name, 'queue': f'dbo.{STOCK_QUEUE}'})}")
    text = "comes while somebody looks"
    assert text not in signed_in.find_element("tag name", "main").text
    database.send(begin(database), ORDER, text.encode())
    within(2.5, lambda: text in signed_in.find_element("tag name", "main").get_attribute("textContent"))


def test_the_values_of_a_chart_and_the_search_are_reached_by_keyboard(
    signed_in: Any, address: str, database: sb.Database
) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    with database.instance.connection() as connection:
        connection.execute(
            "insert into servicebroker.history_samples (slot, at, step) values (1, now() - interval '5 minutes', 600)"
        )
    signed_in.get(f"{address}/?span=hour")  # not the snapshot from the sign-in
    charts = signed_in.find_elements("css selector", "svg[data-chart]")
    assert charts, "no sample was taken"
    signed_in.execute_script("arguments[0].focus()", charts[0])
    ActionChains(signed_in).send_keys(Keys.ARROW_LEFT).perform()
    tip = signed_in.find_element("id", "tip")
    assert "UTC\nIn per second: " in tip.get_attribute("textContent")
    ActionChains(signed_in).send_keys("/stock").perform()
    assert signed_in.switch_to.active_element.get_attribute("value") == "stock"
    assert not tip.is_displayed()


def test_a_queue_is_switched_off_by_keyboard_alone(signed_in: Any, address: str, database: sb.Database) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    signed_in.get(f"{address}/i/0/queue?{urlencode({'database': database.name, 'queue': f'dbo.{STOCK_QUEUE}'})}")
    met: list[str] = []
    for _ in range(80):
        ActionChains(signed_in).send_keys(Keys.TAB).perform()
        here = signed_in.switch_to.active_element
        met.append(here.text)
        outline = signed_in.execute_script(
            "const s = getComputedStyle(document.activeElement);"
            "return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== 'none'"
        )
        assert outline, f"nobody sees that {here.text!r} has the focus"
        if here.tag_name == "summary" and here.text.startswith("Switch off"):
            ActionChains(signed_in).send_keys(Keys.ENTER).perform()  # asks for confirmation first
        form = (
            signed_in.execute_script("return document.activeElement.form && document.activeElement.form.action") or ""
        )
        if form.endswith("/switch") and here.tag_name == "button":
            break
    else:
        raise AssertionError(met)
    assert met[0] == "Skip to content"
    ActionChains(signed_in).send_keys(Keys.ENTER).perform()
    within(5, lambda: "is OFF" in signed_in.find_element("tag name", "body").text)
    with pytest.raises(sb.BrokerError):
        database.receive(STOCK_QUEUE)
