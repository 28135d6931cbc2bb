"""A test client for the pages of the dashboard."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from lxml import html
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from support import ORDER, STOCK_QUEUE, begin

HERE = "http://127.0.0.1"
PAGES = ("", "i/0/queues", "i/0/conversations", "i/0/way", "i/0/dead-letters", "i/0/statements")
TROUBLE = ".//*[contains(concat(' ', @class, ' '), ' bad ')]"  # red elements
MARKUP = "<img src=x onerror=alert(1)>&\"'"


class Browser(TestClient):
    """A client of a dashboard: opens pages, fills in forms and reads texts."""

    def page(self, path: str, status: int = 200, **parameters: object) -> html.HtmlElement:
        answer = self.get(f"/{path}", params={name: str(value) for name, value in parameters.items()} or None)
        assert answer.status_code == status, answer.text
        return html.fromstring(answer.text)

    def text(self, path: str, status: int = 200, **parameters: object) -> str:
        return words(self.page(path, status, **parameters).xpath("//main")[0])

    def queue(self, database: sb.Database, queue: str = STOCK_QUEUE, **parameters: object) -> str:
        return self.text("i/0/queue", database=database.name, queue=f"dbo.{queue}", **parameters)

    def press(self, page: html.HtmlElement, act: str, number: int = 0, **typed: str) -> str:
        """Fill in and send a form of a page. Returns the notice of the next page."""
        form = page.xpath(f"//form[substring(@action, string-length(@action) - {len(act)}) = '/{act}']")[number]
        answer = self.send_form(form.action, {**dict(form.form_values()), **typed})
        return words(html.fromstring(answer.text).xpath("//p[contains(@class, 'notice')]")[0])

    def send_form(self, path: str, fields: dict[str, str], **headers: str) -> Any:
        content = "application/x-www-form-urlencoded"
        return self.post(path, content=urlencode(fields), headers={"origin": HERE, "content-type": content, **headers})


def words(element: html.HtmlElement) -> str:
    """Return the text of an element in one line."""
    return " ".join(" ".join(element.itertext()).split())


def send_messages(database: sb.Database, *messages: tuple[str, bytes | str]) -> UUID:
    """Begin a conversation, and send these messages to StockQueue."""
    handle = begin(database)
    for message_type, body in messages:
        database.send(handle, message_type, body)
    return handle


def send_poison(database: sb.Database, body: bytes) -> None:
    """Send a message that becomes a dead letter."""
    send_messages(database, (ORDER, body))

    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError(f"cannot read {messages[0].message_body!r}")

    database.process(STOCK_QUEUE, fail, poison=lambda failure: sb.SetAside())


def run_people(*arguments: str, typed: str = "", code: int = 0) -> str:
    """Run `servicebroker people ...`, and return its output, or the error for another exit code."""
    result = CliRunner().invoke(command, ["people", *arguments], input=typed)
    assert result.exit_code == code, result.output
    return result.output if code == 0 else str(result.exception)
