"""Sign-in at the dashboard under many attempts at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import httpx2 as httpx
import pytest

from servicebroker.cli import people_file
from servicebroker.dashboard import Dashboard, People, Role, access, sign_in_limits

HERE = "http://127.0.0.1"
HOST = "203.0.113.1"  # of a browser
PASSWORD = "a long secret"


class Hashing:
    """A stand-in for password hashing that counts calls and concurrent calls."""

    def __init__(self) -> None:
        self.times = self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self, password: str, salt: bytes) -> str:
        with self._lock:
            self.times += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.01)
        with self._lock:
            self.at_once -= 1
        return f"scrypt$AAAA${password}"


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Hashing:
    stand_in = Hashing()
    monkeypatch.setattr(people_file, "_hash", stand_in)
    monkeypatch.setattr(people_file, "_is_hash", bool)
    return stand_in


@pytest.fixture
def dashboard(hashing: Hashing, tmp_path: Path) -> Dashboard:
    file = tmp_path / "people"
    for name in ("ann", "bob"):
        people_file.add(file, name, Role.SEE, PASSWORD)
    hashing.times = hashing.most_at_once = 0
    return Dashboard([str(tmp_path / "nowhere")], token=None, people=People(file))


def sign_in(dashboard: Dashboard, attempts: Sequence[tuple[str, str]], hosts: Sequence[str] = (HOST,)) -> list[int]:
    """Send forms with these names and passwords at the same time, and return the answers. The hosts take turns."""

    async def all_at_once() -> list[int]:
        headers = {"origin": HERE, "content-type": "application/x-www-form-urlencoded"}
        forms = [urlencode({"name": name, "password": password}) for name, password in attempts]
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(
                        transport=httpx.ASGITransport(dashboard, client=(host, 1)), base_url=HERE, headers=headers
                    )
                )
                for host in hosts
            ]
            answers = await asyncio.gather(
                *(client.post("/login", content=form) for client, form in zip(cycle(clients), forms, strict=False))
            )
            return [answer.status_code for answer in answers]

    return asyncio.run(all_at_once())


def test_guesses_that_come_at_once_are_counted_before_they_are_judged(dashboard: Dashboard, hashing: Hashing) -> None:
    answers = sign_in(dashboard, [("ann", f"guess {number}") for number in range(150)])
    assert Counter(answers) == {403: 10, 429: 140}
    assert hashing.times == 10


def test_two_passwords_are_hashed_at_a_time(dashboard: Dashboard, hashing: Hashing) -> None:
    hosts = [f"203.0.113.{number}" for number in range(10)]
    answers = sign_in(dashboard, [(f"name {number}", "a guess") for number in range(150)], hosts)
    assert Counter(answers) == {403: 100, 429: 50}
    assert hashing.times == 100
    assert hashing.most_at_once == 2


def test_a_network_that_guesses_locks_nobody_else(dashboard: Dashboard) -> None:
    guesses = [("ann", f"guess {number}") for number in range(12)] + [(f"name {number}", "x") for number in range(40)]
    assert Counter(sign_in(dashboard, guesses, ["2001:db8::1", "2001:db8::2"])) == {403: 20, 429: 32}
    assert sign_in(dashboard, [("ann", PASSWORD)], ["2001:db8::3"]) == [429]
    assert sign_in(dashboard, [("ann", PASSWORD)], ["2001:db8:0:1::1"]) == [303]


def test_a_right_password_is_no_guess(dashboard: Dashboard) -> None:
    assert set(sign_in(dashboard, [("ann", "wrong")] * 9)) == {403}
    for _ in range(3):
        assert sign_in(dashboard, [("ann", PASSWORD)]) == [303]
    assert sign_in(dashboard, [("ann", "wrong")] * 2) == [403, 429]
    assert set(sign_in(dashboard, [("bob", PASSWORD)] * 10)) == {303}
    assert set(sign_in(dashboard, [("bob", PASSWORD)] * 10)) == {303}


def test_a_guess_that_could_not_be_judged_is_none(dashboard: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "people"
    file.chmod(0o640)
    file.touch()
    assert set(sign_in(dashboard, [("ann", PASSWORD)] * 10)) == {503}
    file.chmod(0o600)
    file.touch()
    assert sign_in(dashboard, [("ann", PASSWORD)]) == [303]


def test_impossible_names_are_counted_together(dashboard: Dashboard) -> None:
    answers = sign_in(dashboard, [(f"{'x' * 10_000}{number}", "a guess") for number in range(11)])
    assert Counter(answers) == {403: 10, 429: 1}


def test_a_session_ends_after_its_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = access.Sessions("a token")
    session = sessions.begin("anna")
    started_at = time.monotonic()
    for seconds, name in ((access.SESSION_LIFETIME_S - 60, "anna"), (access.SESSION_LIFETIME_S + 60, None)):
        monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda seconds=seconds: started_at + seconds))
        person = sessions.person(session)
        assert (person and person.name) == name


def test_a_program_that_keeps_no_cookie_ends_its_own_sessions_only() -> None:
    sessions = access.Sessions(None)
    others = sessions.begin("ann", is_from_proxy=True)
    own = [sessions.begin("monitor", is_from_proxy=True) for _ in range(access._MAX_SESSIONS + 1)]
    alive = [session in sessions._sessions for session in own]
    assert alive == [False] * (len(own) - access._MAX_SESSIONS_OF_PERSON) + [True] * access._MAX_SESSIONS_OF_PERSON
    assert others in sessions._sessions


def test_a_locked_name_may_try_again_after_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = sign_in_limits.SignInLimits()

    def try_at(seconds: float) -> bool:
        monkeypatch.setattr(sign_in_limits, "time", SimpleNamespace(monotonic=lambda: seconds))
        return asyncio.run(limits.check("ann", HOST, lambda: False))

    assert not any(try_at(1_000.0 + number) for number in range(sign_in_limits.MAX_FAILURES_PER_NAME))
    after = 1_000.0 + sign_in_limits.WINDOW_S
    for seconds, is_locked in ((after - 1, True), (after + 0.1, False), (after + 0.2, True)):
        with pytest.raises(sign_in_limits.TooManyFailures) if is_locked else nullcontext():
            assert not try_at(seconds)
