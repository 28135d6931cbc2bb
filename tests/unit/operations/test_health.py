"""Probes of a program over HTTP, without a database."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from urllib.error import HTTPError

import pytest

import servicebroker as sb
from servicebroker.api.instance import CONNECTION_TIMEOUT_S
from servicebroker.cli import health as module
from servicebroker.cli.commands.activator import TURN_TIMEOUT_S
from servicebroker.cli.health import Health, serve_health

NOWHERE = "postgresql://127.0.0.1:1/none"


def never() -> bool:
    return False


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def make_hang(health: Health) -> None:
    health.begin(None)
    health._heartbeat_at = -module.HEARTBEAT_TIMEOUT_S


def remove_processes(health: Health) -> None:
    health.begin(None)
    health.is_working = never


@pytest.mark.parametrize(
    ("prepare", "is_ending", "live", "ready"),
    [
        (lambda health: None, False, "", "has not begun"),
        (lambda health: health.begin(None), False, "", ""),
        (lambda health: health.begin(None), True, "", "is ending"),
        (lambda health: health.begin(NOWHERE), False, "", "PostgreSQL gives no answer: see the log"),
        (remove_processes, False, "", "are missing"),
        (make_hang, False, "has not completed a round", "has not completed a round"),
        (make_hang, True, "", "is ending"),
    ],
)
def test_probe_answers(prepare: Callable[[Health], None], is_ending: bool, live: str, ready: str) -> None:
    health = Health(lambda: is_ending)
    prepare(health)
    for answer, expected in ((health.liveness(), live), (health.readiness(), ready)):
        assert (expected in answer) if expected else (answer == "")


def test_a_loop_that_waits_for_connections_has_a_longer_timeout() -> None:
    health = Health(never, TURN_TIMEOUT_S)
    health._heartbeat_at = time.monotonic() - 2 * CONNECTION_TIMEOUT_S - 1
    assert health.liveness() == ""
    health._heartbeat_at = time.monotonic() - TURN_TIMEOUT_S - 1
    assert "has not completed a round" in health.liveness()


def test_postgres_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []
    monkeypatch.setattr(module, "_select_one", lambda url: urls.append(url) or "")
    health = Health(never)
    health.begin(NOWHERE)
    assert [health.readiness() for _ in range(10)] == [""] * 10
    assert urls == [NOWHERE]


def test_a_silent_postgres_holds_one_probe(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Other probes get an answer at once, so no liveness probe waits. Only the log has the reason, and only once."""
    silent = threading.Event()

    def ask_silent(url: str) -> str:
        silent.wait(10)
        return 'password authentication failed for role "shop"'

    monkeypatch.setattr(module, "_select_one", ask_silent)
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "REUSE_S", -1.0)
    health = Health(never)
    health.begin(NOWHERE)
    started_at = time.monotonic()
    assert {health.readiness() for _ in range(20)} == {module.NO_ANSWER}
    assert time.monotonic() - started_at < 1
    silent.set()
    while 'role "shop"' not in caplog.text:
        time.sleep(0.01)
    for _ in range(3):
        assert health.readiness() == module.NO_ANSWER
    assert caplog.text.count('role "shop"') == 1
    monkeypatch.setattr(module, "_select_one", lambda url: "")
    while health.readiness():
        time.sleep(0.01)


def test_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "servicebroker")
    with serve_health("127.0.0.1:0", never) as health:
        port = int(caplog.messages[-1].partition("/livez")[0].rpartition(":")[2])
        assert ask(port, "/livez") == (200, "ok\n")
        assert ask(port, "/readyz") == (503, "The program has not begun.\n")
        health.begin(None)
        assert ask(port, "/readyz?verbose") == (200, "ok\n")
        assert ask(port, "/metrics")[0] == 404


@pytest.mark.parametrize("address", ["everywhere", "127.0.0.1:70000"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(sb.BrokerError, match="--health"), serve_health(address, never):
        pass
