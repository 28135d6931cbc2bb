"""Bounds on what floods of clients cost: turns of sign-ins, memory of requests, rows of the audit log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servicebroker.tds import request_memory, sign_in
from servicebroker.tds.request_memory import RequestMemory
from servicebroker.tds.sign_in import AuditRate, FailedAttempts, RightPasswords
from servicebroker.tds.sign_in_queue import MAX_RUNNING, MAX_RUNNING_OF_NETWORK, SignInQueue
from servicebroker.tsql.login_passwords import StoredLogin


class Workers:
    """Worker threads that work when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.done: list[str] = []
        self.queue: SignInQueue[str] = SignInQueue(self.waiting.append, lambda work: work())

    def add(self, client: str, address: str) -> None:
        self.queue.add(client, address, lambda: self.done.append(client))

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def test_networks_sign_in_by_turns() -> None:
    workers = Workers()
    for number in range(20):
        workers.add(f"flood {number}", "10.0.0.1")
    workers.add("honest", "10.0.0.2")
    assert len(workers.waiting) == MAX_RUNNING_OF_NETWORK + 1
    workers.work()
    assert workers.done.index("honest") == MAX_RUNNING_OF_NETWORK
    assert len(workers.done) == 21


def test_many_networks_have_a_limit_together() -> None:
    workers = Workers()
    for number in range(2 * MAX_RUNNING):
        workers.add(str(number), f"10.0.0.{number}")
    assert len(workers.waiting) == MAX_RUNNING
    workers.work()
    assert len(workers.done) == 2 * MAX_RUNNING


def test_a_client_that_has_left_has_no_turn() -> None:
    workers = Workers()
    for number in range(MAX_RUNNING_OF_NETWORK + 2):
        workers.add(str(number), "10.0.0.1")
    workers.queue.leave(str(MAX_RUNNING_OF_NETWORK))
    workers.queue.leave("0")  # runs already
    workers.work()
    assert workers.done == [*map(str, range(MAX_RUNNING_OF_NETWORK)), str(MAX_RUNNING_OF_NETWORK + 1)]


def test_requests_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "MAX_BYTES", 300_000)
    memory = RequestMemory()
    assert memory.charge(200_000, 200_000)
    assert memory.charge(60_000, 60_000)
    assert not memory.charge(70_000, 70_000)  # beyond the bytes that nobody is refused
    assert memory.charge(-70_000, 0)
    assert memory.charge(40_000, 240_000)
    assert memory.charge(50_000, 50_000)  # beyond all, and little


def test_refusals_fill_no_audit_log() -> None:
    rate = AuditRate()
    assert sum(rate.may_write("10.0.0.1") for _ in range(1_000)) == sign_in._MAX_AUDITED_OF_NETWORK
    assert sum(rate.may_write(f"10.0.0.{number}") for number in range(2_000)) < sign_in._MAX_AUDITED


def test_a_right_password_is_known_until_it_changes() -> None:
    known, stored = RightPasswords(), StoredLogin("sa", None, "hash 1")
    assert not known.is_known(stored, "right")
    known.note(stored, "right")
    assert known.is_known(stored, "right")
    assert not known.is_known(stored, "wrong")
    assert not known.is_known(stored._replace(hash="hash 2"), "right")
    assert not known.is_known(stored._replace(login_id=5), "right")
    assert not RightPasswords().is_known(stored._replace(hash=None), "")


def test_each_wrong_password_doubles_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(sign_in.time, "monotonic", lambda: now)
    attempts = FailedAttempts()
    for delay_s in (0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        attempts.note_failure("SA", "10.0.0.1")
        assert attempts.is_blocked("sa", "10.0.0.1") == (delay_s > 0)
        assert not attempts.is_blocked("sa", "10.0.0.2")
        now += delay_s
        assert not attempts.is_blocked("sa", "10.0.0.1")
    attempts.note_success("sa", "10.0.0.1")
    attempts.note_failure("sa", "10.0.0.1")
    assert not attempts.is_blocked("sa", "10.0.0.1")
