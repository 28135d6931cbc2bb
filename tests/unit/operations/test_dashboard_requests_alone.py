"""Rules of the dashboard for requests, sessions, caches and connections, each without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from servicebroker.dashboard import Dashboard, Proxy, Role, access, readers, snapshot_cache
from servicebroker.dashboard.bodies import editable, preview
from servicebroker.dashboard.export import _exported
from servicebroker.dashboard.readers import MAX_IDLE, ReaderPool
from servicebroker.dashboard.snapshot_cache import CachedSource
from servicebroker.model.errors import InstanceError

HERE = "http://127.0.0.1"
PROXY = Proxy("x-user", (ip_network("10.1.0.0/16"),))
Headers = list[tuple[str, str]]


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (access, readers, snapshot_cache):
        monkeypatch.setattr(module, "time", made)
    return made


# ---------------------------------------------------------------- requests


def answer(application: Any, path: str, headers: Headers, *, client: str = "127.0.0.1", method: str = "GET") -> Any:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(application, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as browser:
            return await browser.request(method, path, headers=headers)

    return asyncio.run(ask())


@pytest.fixture
def two_instances(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("first", "second")]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 303) for path in ("/", "/nothing", "/i/0/queues", "/i/0/export/queue", "/pipelines")),
        ("/login", 200),
        *((path, 404) for path in ("/login2", "/login/x/y", "/static/nothing", "/static/")),
    ],
)
def test_a_stranger_sees_no_page_and_no_name_of_an_instance(two_instances: list[str], path: str, status: int) -> None:
    found = answer(Dashboard(two_instances, token="secret"), path, [])
    assert found.status_code == status
    assert found.headers.get("location") == ("/login" if status == 303 else None)
    assert "first" not in found.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "127.0.0.1")], 200),
        ([("host", "LOCALHOST:8080")], 200),
        ([("host", "[::1]:80")], 200),
        ([("host", "127.0.0.1"), ("host", "evil.example")], 421),
        ([("host", "evil.example"), ("host", "127.0.0.1")], 421),
        ([("host", "")], 421),
        ([("host", "127.0.0.1:80\n")], 421),
    ],
)
def test_the_host_of_a_request_is_one_name_of_the_dashboard(
    two_instances: list[str], headers: Headers, status: int
) -> None:
    assert answer(Dashboard(two_instances, token="secret"), "/login", headers).status_code == status


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("10.1.0.1", [("x-user", "ann")], 404),
        ("10.1.0.1", [("x-user", "ann"), ("x-user", "eve")], 403),
        ("10.1.0.1", [("x-user", "")], 403),
        ("10.1.0.1", [], 403),
        ("10.2.0.1", [("x-user", "ann")], 403),
    ],
)
def test_the_proxy_names_one_user(two_instances: list[str], client: str, headers: Headers, status: int) -> None:
    dashboard = Dashboard(two_instances, token=None, proxy=PROXY)
    found = answer(dashboard, "/nothing", headers, client=client)
    assert found.status_code == status
    assert bool(found.headers.get("set-cookie")) == (status == 404)


@pytest.mark.parametrize(
    ("client", "scheme", "is_secure"),
    [("10.1.0.1", "https", True), ("10.1.0.1", "http", False), ("127.0.0.1", "https", False)],
)
def test_only_the_proxy_says_that_the_browser_encrypts(
    two_instances: list[str], client: str, scheme: str, is_secure: bool
) -> None:
    dashboard = Dashboard(two_instances, token="secret", proxy=PROXY)
    headers = [("x-user", "ann"), ("x-forwarded-proto", scheme), ("origin", f"{scheme}://127.0.0.1")]
    found = answer(dashboard, "/logout", headers, client=client, method="POST")
    is_own_origin = is_secure or scheme == "http"
    assert ("does not belong" in found.text) == (not is_own_origin or client.startswith("10.1"))
    assert ("; Secure" in found.headers.get("set-cookie", "")) == is_secure


# ---------------------------------------------------------------- sessions


def test_a_new_session_ends_the_oldest_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_MAX_SESSIONS", 3)
    sessions = access.Sessions("secret")
    begun = [sessions.begin(name) for name in ("a", "b", "c", "d")]
    assert [sessions.person(session) is not None for session in begun] == [False, True, True, True]
    sessions.end(begun[1])
    sessions.end(begun[1])
    assert [sessions.person(session) is not None for session in begun] == [False, False, True, True]


@pytest.mark.parametrize(
    ("begun_by", "asked_by", "is_found"),
    [("ann", "ann", True), ("ann", "eve", False), ("ann", None, False), (None, None, True), (None, "ann", False)],
)
def test_a_cookie_of_the_proxy_counts_behind_the_proxy_for_its_user(
    begun_by: str | None, asked_by: str | None, is_found: bool
) -> None:
    sessions = access.Sessions("secret", proxy=PROXY)
    session = sessions.begin(begun_by or "", is_from_proxy=begun_by is not None)
    headers = access.Headers({"cookie": f"{sessions.cookie}={session}"})
    assert sessions.find(headers, asked_by) == (session if is_found else None)
    assert sessions.can_sign_out(session) == (begun_by is None)


def test_a_session_ends_at_its_time(clock: Clock) -> None:
    sessions = access.Sessions("secret")
    session = sessions.begin()
    clock.now += access.SESSION_LIFETIME_S
    assert sessions.person(session) is None


def test_a_form_is_of_one_session_and_one_dashboard() -> None:
    sessions, others = access.Sessions("secret"), access.Sessions("secret")
    first, second = sessions.begin(), sessions.begin()
    fields = {"form_token": sessions.form_token(first)}
    assert sessions.is_own_form(first, fields)
    assert not sessions.is_own_form(second, fields)
    assert not others.is_own_form(first, fields)
    assert not sessions.is_own_form(first, {})


# ---------------------------------------------------------------- the cache of pages


def ask(source: CachedSource, query: Callable[[], Any], page: str = "page", fresh: float = 1.0) -> tuple[Any, str]:
    found = source.snapshot(page, query, fresh)
    return found.facts, found.trouble


def fails(problem: Exception) -> Callable[[], Any]:
    def query() -> Any:
        raise problem

    return query


def test_a_page_is_read_again_when_it_is_not_fresh(clock: Clock) -> None:
    source = CachedSource("s")
    assert ask(source, lambda: "old") == ("old", "")
    clock.now += 0.9
    assert ask(source, lambda: "new") == ("old", "")
    clock.now += 0.1
    assert ask(source, lambda: "new") == ("new", "")


def test_a_page_that_timed_out_waits_alone_and_an_action_ends_the_wait(clock: Clock) -> None:
    source = CachedSource("s")
    locked = fails(psycopg.errors.LockNotAvailable("locked"))
    assert ask(source, lambda: "old") == ("old", "")
    clock.now += 10
    facts, trouble = ask(source, locked)
    assert (facts, "holds a lock" in trouble) == ("old", True)
    assert ask(source, lambda: "other", "another page") == ("other", "")
    assert ask(source, lambda: "new") == ("old", trouble)
    source.invalidate()
    assert ask(source, lambda: "new") == ("new", "")
    clock.now += 10
    assert ask(source, fails(psycopg.errors.QueryCanceled("late")))[0] == "new"
    clock.now += snapshot_cache.RETRY_DELAY_S
    assert ask(source, lambda: "newer") == ("newer", "")


@pytest.mark.parametrize(
    "problem",
    [InstanceError("down"), psycopg.OperationalError("down"), psycopg.InterfaceError("down"), OSError("down")],
)
def test_while_the_server_is_away_no_page_asks_it_again_at_once(clock: Clock, problem: Exception) -> None:
    source, asked = CachedSource("s"), []
    assert ask(source, lambda: "old") == ("old", "")
    clock.now += 10
    assert ask(source, fails(problem)) == ("old", "down")
    assert ask(source, lambda: asked.append(1), "another page") == (None, "down")
    assert asked == []
    clock.now += snapshot_cache.RETRY_DELAY_S
    assert ask(source, lambda: "new") == ("new", "")


@pytest.mark.parametrize(
    ("age_s", "is_waited_for"), [(snapshot_cache.MAX_AGE_S - 1, False), (snapshot_cache.MAX_AGE_S, True)]
)
def test_a_slow_page_is_shown_while_it_is_read_unless_it_is_too_old(
    clock: Clock, age_s: float, is_waited_for: bool
) -> None:
    source, readers_of_page = CachedSource("s"), []

    def slow() -> str:
        clock.now += 2 * snapshot_cache.SLOW_S
        readers_of_page.append(threading.current_thread())
        return "slow"

    assert ask(source, slow) == ("slow", "")
    clock.now += age_s
    ask(source, slow)
    for thread in threading.enumerate():
        if thread.name.endswith("(_read_in_background)"):
            thread.join()
    assert [reader is threading.current_thread() for reader in readers_of_page] == [True, is_waited_for]


def test_the_pages_that_were_asked_for_last_are_cached(clock: Clock) -> None:
    source = CachedSource("s")
    for number in range(snapshot_cache.MAX_PAGES):
        ask(source, lambda: "old", str(number))
    ask(source, lambda: "new", "0")
    ask(source, lambda: "old", "one more")
    assert ask(source, lambda: "new", "0") == ("old", "")
    assert ask(source, lambda: "new", "1") == ("new", "")


def test_deadlines_of_actions_yield_to_those_of_the_url() -> None:
    url = "postgresql://h/d?options=-c%20lock_timeout%3D7"
    options = str(conninfo_to_dict(snapshot_cache._with_deadlines(url))["options"])
    assert options.index("lock_timeout=5000") < options.index("lock_timeout=7")  # the last one counts
    assert "statement_timeout=60000" in options


# ---------------------------------------------------------------- connections


class StubReader(readers.Reader):
    """A reader without a server."""

    def __init__(self, url: str) -> None:
        self.instance: Any = SimpleNamespace(is_lost=False, closed=0, close=self._close)
        self._expires_at = readers.time.monotonic() + readers.LIFETIME_S

    def _close(self) -> None:
        self.instance.closed += 1


@pytest.fixture
def pool(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> ReaderPool:
    monkeypatch.setattr(readers, "Reader", StubReader)
    monkeypatch.setattr(readers, "check_exists", lambda target: None)
    return ReaderPool("postgresql://host/database")


@pytest.mark.parametrize(
    ("age_s", "is_lost", "is_kept"),
    [(0.0, False, True), (readers.LIFETIME_S, False, False), (0.0, True, False)],
)
@pytest.mark.parametrize("while_lent", [True, False])
def test_a_connection_is_used_again_until_it_is_lost_or_old(
    pool: ReaderPool, clock: Clock, age_s: float, is_lost: bool, is_kept: bool, while_lent: bool
) -> None:
    with pool.reader() as first:
        if while_lent:
            clock.now += age_s
            first.instance.is_lost = is_lost
    if not while_lent:
        clock.now += age_s
        first.instance.is_lost = is_lost
    with pool.reader() as second:
        assert (second is first) == is_kept
        assert first.instance.closed == (not is_kept)  # type: ignore[attr-defined]


def test_few_idle_connections_are_kept_and_all_are_closed_at_the_end(pool: ReaderPool) -> None:
    lent = [pool._take() for _ in range(MAX_IDLE + 2)]
    for reader in lent:
        pool._give_back(reader)
    closed: list[Any] = [reader.instance for reader in lent]
    assert [one.closed for one in closed] == [0] * MAX_IDLE + [1, 1]
    with pytest.raises(ZeroDivisionError), pool.reader():
        raise ZeroDivisionError
    pool.close()
    assert [one.closed for one in closed] == [1] * (MAX_IDLE + 2)


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("with_bodies", "head", "size", "expected"),
    [
        (True, b"abc", 3, {"body": "abc"}),
        (True, b"abc", 4, {"body": "abc", "is_body_cut": True}),
        (True, b"\xff", 1, {"body_hex": "ff"}),
        (True, None, 0, {"body": None}),
        (False, b"", 3, {}),
    ],
)
def test_an_exported_message_has_its_body_if_the_role_may_see_it(
    with_bodies: bool, head: bytes | None, size: int, expected: dict[str, Any]
) -> None:
    row = {"number": 1, "head": head, "size": size, "validation": "N", "traceback": "secret"}
    trace = {"traceback": "secret"} if with_bodies else {}
    assert _exported(row, with_bodies) == {"number": 1, "size": size, **trace, **expected}


@pytest.mark.parametrize(
    ("head", "size", "text"),
    [
        (b"a\n\tb", 4, "a\n\tb"),
        (b"ab", 3, None),
        (b"a\rb", 3, None),
        (b"a\x00", 2, None),
        (b"\xff", 1, None),
        (None, 0, ""),
    ],
)
def test_a_body_is_edited_if_a_form_can_hold_it_whole(head: bytes | None, size: int, text: str | None) -> None:
    assert editable(head, size) == text


@pytest.mark.parametrize("size", [120, 121])
def test_a_preview_says_that_it_is_cut(size: int) -> None:
    assert preview("N", b"x" * size, size) == "x" * 120 + "…" * (size > 120)


def test_roles_are_ordered() -> None:
    assert Role.SEE < Role.BODIES < Role.ACT
