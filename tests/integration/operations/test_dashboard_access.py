"""Access to the dashboard: roles, tokens, people with passwords, a proxy, and cross-site requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from lxml import html
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from typer.testing import CliRunner

import servicebroker as sb
from dashboard_support import HERE, PAGES, Browser, run_people, send_messages, send_poison
from servicebroker.cli.main import app as command
from servicebroker.dashboard import People, Proxy, Role
from servicebroker.dashboard.actions import ACTIONS
from servicebroker.dashboard.sign_in_limits import MAX_FAILURES_PER_NAME
from support import ORDER, ORDERS_QUEUE, STOCK_QUEUE, begin, group_of, peer_handle, state

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_without_the_role_nothing_is_done_and_no_body_shown(
    database: sb.Database, browse: Callable[..., Browser]
) -> None:
    far = peer_handle(database, send_messages(database, (ORDER, b"secret body")))
    send_poison(database, b"secret poison")
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
        # otherwise the search would reveal their content
        assert ("No matching messages." in found) == (role == Role.BODIES)
        assert any("secret reply" in page for page in pages) == (role == Role.BODIES)
        assert browser.page("i/0/conversation", handle=far).xpath("//form[contains(@action, '/act/')]") == []
        token = browser.page("").xpath("//input[@name='form_token']/@value")
        assert token == []  # without a sign-in and without rights there is no form
        assert browser.send_form(form.action, dict(form.form_values())).status_code == 403
    assert state(database, far) == "CO"


def test_pages_need_a_session_that_ends_with_sign_out(browse: Callable[..., Browser]) -> None:
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
        assert list(lines)[-1:] == [""]  # the stream has ended
    assert browser.get("/").url.path == "/login"


def test_failed_sign_ins_are_limited(browse: Callable[..., Browser]) -> None:
    browser = browse(Role.SEE, token="the token")
    statuses = [
        browser.send_form("/login", {"token": str(number)}).status_code for number in range(MAX_FAILURES_PER_NAME)
    ]
    assert set(statuses) == {403}
    assert browser.send_form("/login", {"token": "the token"}).status_code == 429


def test_users_sign_in_by_name_with_their_role_in_the_file(
    database: sb.Database, browse: Callable[..., Browser], people: Path
) -> None:
    file = ("--people", str(people))
    assert "ann is added: act." in run_people("add", "ann", "--role", "act", *file, typed="a long secret\n")
    assert "bob is added: see." in run_people("add", "bob", *file, typed="another secret\n")
    assert people.stat().st_mode & 0o777 == 0o600
    assert "secret" not in people.read_text()
    assert run_people("show", *file).splitlines() == ["ann: act", "bob: see"]
    browser, other = (browse(people=People(people)) for _ in range(2))
    for fields in (
        {"name": "ann", "password": "another secret"},
        {"name": "carl", "password": "a long secret"},
        {"name": "ann"},
        {"token": "a long secret"},
    ):
        assert "The name or the password is wrong." in browser.send_form("/login", fields).text
    assert browser.get("/", follow_redirects=False).headers["location"] == "/login"
    handle = send_messages(database, (ORDER, b"secret body"))
    assert browser.send_form("/login", {"name": "ann", "password": "a long secret"}).url.path == "/"
    assert other.send_form("/login", {"name": "bob", "password": "another secret"}).url.path == "/"
    assert "secret body" in browser.queue(database)
    assert "secret body" not in other.queue(database)
    page = browser.page("i/0/conversation", handle=handle)
    form = page.xpath("//form[contains(@action, '/end')]")[0]
    assert other.send_form(form.action, dict(form.form_values())).status_code == 403
    assert "ended" in browser.press(page, "end")
    assert "dashboard: ann" in browser.text("i/0/audit")

    assert "ann is changed: see." in run_people("add", "ann", *file, typed="a long secret\n")
    assert "secret body" not in browser.queue(database)
    assert "bob is removed." in run_people("remove", "bob", *file)
    assert other.get("/", follow_redirects=False).headers["location"] == "/login"
    people.chmod(0o644)
    assert "Other users can read" in browser.send_form("/login", {"name": "ann", "password": "a long secret"}).text


def test_guesses_of_one_name_close_the_door_for_that_name(browse: Callable[..., Browser], people: Path) -> None:
    for name in ("ann", "bob"):
        run_people("add", name, "--people", str(people), typed="a long secret\n")
    browser = browse(people=People(people))
    right = {"name": "ann", "password": "a long secret"}
    found = [
        browser.send_form("/login", {**right, "password": str(n)}).status_code for n in range(MAX_FAILURES_PER_NAME)
    ]
    assert set(found) == {403}
    assert browser.send_form("/login", right).status_code == 429
    assert browser.send_form("/login", {**right, "name": "bob"}).url.path == "/"


def test_invalid_users_and_files_are_refused(people: Path) -> None:
    file = ("--people", str(people))
    assert "create it by servicebroker people add" in run_people("show", *file, code=1)
    assert "Use a password of 10 to 1000 characters." in run_people("add", "ann", *file, typed="short\n", code=1)
    for name in ("", "a:b", " ann", "a\tb", "x" * 129):
        assert "is not a valid name" in run_people("add", "--proxied", *file, "--", name, code=1)
    assert not people.exists()
    run_people("add", "ann", "--proxied", *file)
    assert run_people("show", *file) == "ann: see, by a proxy only\n"
    assert json.loads(run_people("show", *file, "--json")) == {
        "people": [{"name": "ann", "role": "see", "password": False}]
    }
    assert "Nobody in" in run_people("remove", "bob", *file, code=1)
    for line in ("ann", "ann:boss:", "ann:see:scrypt$x", ":see:"):
        people.write_text(f"# ours\n\n{line}\n")
        assert "line 3, is not NAME:ROLE:PASSWORD_HASH" in run_people("show", *file, code=1)
    people.chmod(0o640)
    assert "chmod 600" in run_people("show", *file, code=1)


PROXY = Proxy("x-user", (ip_network("10.1.0.0/16"), ip_network("::1/128")))


def request_through_proxy(browser: Browser, address: str, name: str | None, path: str = "/", **headers: str) -> Any:
    """Send a request from an address, with a header that names a user."""
    client = TestClient(browser.app, base_url=HERE, client=(address, 1), cookies=browser.cookies)
    named = {} if name is None else {"x-user": name}
    answer = client.get(path, headers={**named, **headers}, follow_redirects=False)
    browser.cookies = client.cookies
    return answer


def test_only_the_proxy_may_name_the_user(database: sb.Database, browse: Callable[..., Browser], people: Path) -> None:
    run_people("add", "ann", "--proxied", "--role", "bodies", "--people", str(people))
    send_messages(database, (ORDER, b"secret body"))
    queue = f"/i/0/queue?{urlencode({'database': database.name, 'queue': f'dbo.{STOCK_QUEUE}'})}"
    anyone, listed = browse(Role.SEE, proxy=PROXY), browse(proxy=PROXY, people=People(people))
    assert request_through_proxy(anyone, "10.1.2.3", "whoever").status_code == 200
    assert "secret body" not in request_through_proxy(anyone, "::ffff:10.1.2.3", "whoever", queue).text
    assert "secret body" in request_through_proxy(listed, "::1", "ann", queue).text
    assert request_through_proxy(listed, "::1", "carl", queue).status_code == 403
    for address in (
        "10.2.2.3",
        "127.0.0.1",
        "testclient",
    ):  # also with the cookie of a user who signed in through the proxy
        assert "through its proxy" in request_through_proxy(anyone, address, "whoever").text
        assert request_through_proxy(listed, address, "ann", queue).headers["location"] == "/login"
    assert "does not name its user" in request_through_proxy(anyone, "10.1.2.3", None).text
    assert "does not name its user" in request_through_proxy(anyone, "10.1.2.3", "").text
    refused = listed.send_form("/login", {"name": "ann", "password": ""})
    # people without a password sign in through the proxy only
    assert "The name or the password is wrong." in refused.text
    spoken = request_through_proxy(browse(proxy=PROXY), "10.1.2.3", "ann", **{"x-forwarded-proto": "https"})
    assert "; Secure" in spoken.headers["set-cookie"]


def test_an_action_through_the_proxy_is_audited_for_the_named_user(
    database: sb.Database, browse: Callable[..., Browser]
) -> None:
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
    assert client.send_form(form.action, fields, **{"x-user": "eve"}).status_code == 403  # the form belongs to dora


def test_cross_site_requests_are_refused(database: sb.Database, browser: Browser) -> None:
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
    other = Browser(browser.app, base_url=HERE)  # the browser of another user
    other.get("/")
    assert other.send_form(form.action, fields).status_code == 403
    assert browser.get(form.action, params=fields).status_code == 405
    assert browser.put(form.action, headers={"origin": HERE}).status_code == 405
    assert browser.send_form(form.action, {"form_token": fields["form_token"]}).status_code == 400
    assert browser.send_form(form.action, {"x": "y" * 70_000}).status_code == 413
    assert database.receive(STOCK_QUEUE) == []  # its queue is still ON
    assert browser.send_form(form.action, fields).status_code == 200
    with pytest.raises(sb.BrokerError):
        database.receive(STOCK_QUEUE)


def test_every_response_has_a_strict_content_security_policy(browser: Browser) -> None:
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


def test_the_command_refuses_insecure_options() -> None:
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


def test_every_action_needs_the_role_to_act(
    database: sb.Database,
    browse: Callable[..., Browser],
    people: Path,
    pipeline_file: Path,
    request: pytest.FixtureRequest,
) -> None:
    """A person whose role was lowered sends a valid form token and valid fields; only the role is missing."""

    def dialog() -> dict[str, str]:
        return {"database": database.name, "handle": str(send_messages(database, (ORDER, b"1")))}

    def dead_letter() -> dict[str, str]:
        send_poison(database, b"bad")
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
    other_connection = psycopg.connect(database.instance.url)
    request.addfinalizer(other_connection.close)
    forms["/i/0/act/end-session"] = {"pid": str(other_connection.info.backend_pid)}
    assert {path.rpartition("/")[2] for path in forms if path.startswith("/i/")} == set(ACTIONS)

    def let_in(role: Role) -> None:
        run_people("add", "ann", "--proxied", "--role", role.name.lower(), "--people", str(people))

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
                assert (path, notices[:1]) == (path, ["notice good"])  # a second one names the missing object
