"""The decision about a login, without a server: which refusal, in which order, and what an attempt leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, cast

import pytest

from servicebroker.api.instance import Instance
from servicebroker.engine.security.logins import PUBLIC_LOGIN_ID
from servicebroker.model.security.client_refusals import ClientRefusal
from servicebroker.model.security.permissions import Login as Principal
from servicebroker.overriding import override
from servicebroker.tds import sign_in
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.login import Login
from servicebroker.tds.server import TdsServer
from servicebroker.tds.sign_in import AuditRate, FailedAttempts, RightPasswords, SignIn, SignInError
from servicebroker.tsql import login_passwords
from servicebroker.tsql.login_passwords import StoredLogin

ADDRESS = "203.0.113.1"
STORED = {
    "app": StoredLogin("app", 7, "hash of right"),
    "off": StoredLogin("off", 8, "hash of right", is_disabled=True),
    "bare": StoredLogin("bare", 9, None),
    "sa": StoredLogin("sa", None, "hash of right"),
}


class Door(SignIn):
    """A sign-in whose logins are `STORED`, and that counts the hashes of passwords."""

    def __init__(self) -> None:
        super().__init__(cast(Instance, None), "server")
        self.hashed: list[str] = []
        self.audited: list[tuple[str, str]] = []

    @override
    def _find(self, name: str) -> StoredLogin | None:
        return STORED.get(name)

    @override
    def _open(self, login: Login, principal: Principal) -> Any:
        return principal

    @override
    def _audit(self, act: str, login: Login, address: str, reason: str) -> None:
        self.audited.append((act, reason))

    @override
    def tell(self, number: int, login: Login, text: str) -> None:
        """Tell nobody."""

    def try_to(self, user: str, password: str, has_gone: Callable[[], bool] = lambda: False, **changes: Any) -> Any:
        """Return the principal, or the kind of the refusal."""
        login = Login(Dialect.TDS_7_4, 4096, user, password)._replace(**changes)
        try:
            return self.open(login, ADDRESS, has_gone=has_gone)
        except SignInError as refused:
            return refused.kind


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    made = Door()

    def is_password(password: str, stored: str | None) -> bool:
        made.hashed.append(password)
        return stored == f"hash of {password}"

    monkeypatch.setattr(sign_in, "is_password", is_password)
    monkeypatch.setattr(sign_in, "_FAILURE_PAUSE_S", 0.0)
    return made


@pytest.mark.parametrize(
    ("user", "password", "changes", "result"),
    [
        ("app", "right", {}, Principal("app", 7)),
        ("sa", "right", {}, Principal("sa", None, is_administrator=True)),
        ("app", "wrong", {}, ClientRefusal.PASSWORD),
        ("app", "", {}, ClientRefusal.PASSWORD),
        ("bare", "", {}, ClientRefusal.PASSWORD),
        ("nobody", "right", {}, ClientRefusal.LOGIN),
        ("off", "right", {}, ClientRefusal.DISABLED),
        ("off", "wrong", {}, ClientRefusal.PASSWORD),  # a guesser does not learn that the login is disabled
        ("", "right", {}, ClientRefusal.METHOD),
        ("app", "right", {"is_integrated": True}, ClientRefusal.METHOD),
        ("app", "right", {"features": (2,)}, ClientRefusal.METHOD),
        ("app", "right", {"version": 0x70000000}, ClientRefusal.VERSION),
    ],
)
def test_each_login_has_its_verdict(door: Door, user: str, password: str, changes: dict[str, Any], result: Any) -> None:
    assert door.try_to(user, password, **changes) == result
    assert [act for act, _ in door.audited] == ["LOGIN" if isinstance(result, Principal) else "LOGIN FAILED"]
    assert bool(door.hashed) == (result not in (ClientRefusal.METHOD, ClientRefusal.VERSION))


def test_a_login_that_is_disabled_later_is_refused_though_its_password_is_known(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.try_to("app", "right") == door.try_to("app", "right") == Principal("app", 7)
    assert door.hashed == ["right"]
    monkeypatch.setitem(STORED, "app", STORED["app"]._replace(is_disabled=True))
    assert door.try_to("app", "right") == ClientRefusal.DISABLED


def test_a_blocked_login_is_told_from_neither_password(door: Door) -> None:
    assert door.try_to("app", "right") == Principal("app", 7)
    for _ in range(4):
        assert door.try_to("app", "wrong") == ClientRefusal.PASSWORD
    hashes = len(door.hashed)
    assert [door.try_to("app", password) for password in ("right", "wrong")] == [ClientRefusal.DELAY] * 2
    assert len(door.hashed) == hashes
    assert door.try_to("sa", "right") == Principal("sa", None, is_administrator=True)


def test_the_right_password_forgives_the_wrong_ones(door: Door) -> None:
    for _ in range(4):
        for _ in range(3):
            assert door.try_to("app", "wrong") == ClientRefusal.PASSWORD
        assert door.try_to("app", "right") == Principal("app", 7)


@pytest.mark.parametrize("what", ["blocked", "gone", "nothing"])
def test_events_while_an_attempt_waited_count(door: Door, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Attempts wait for their turn to hash. Meanwhile others may have failed, or the client has left."""
    at_the_end: list[bool] = []

    @contextmanager
    def turn() -> Any:
        if what == "blocked":
            for _ in range(4):
                door._attempts.note_failure("app", ADDRESS)
        yield
        at_the_end.append(bool(door._attempts._failures))

    monkeypatch.setattr(door, "_hashing", turn())
    kind = door.try_to("app", "wrong", lambda: what == "gone")
    assert kind == (ClientRefusal.PASSWORD if what == "nothing" else ClientRefusal.DELAY)
    assert door.hashed == (["wrong"] if what == "nothing" else [])
    assert at_the_end == ([True] if what == "nothing" else [])  # counted before the next attempt has its turn


def test_a_network_of_ipv6_is_delayed_as_one_address(door: Door) -> None:
    for number in range(4):
        with pytest.raises(SignInError):
            door.open(Login(Dialect.TDS_7_4, 0, "app", "wrong"), f"2001:db8::{number}", has_gone=lambda: False)
    with pytest.raises(SignInError) as refused:
        door.open(Login(Dialect.TDS_7_4, 0, "app", "right"), "2001:db8::ffff", has_gone=lambda: False)
    assert refused.value.kind == ClientRefusal.DELAY
    door.open(Login(Dialect.TDS_7_4, 0, "app", "right"), "2001:db8:0:1::1", has_gone=lambda: False)


def test_refusals_are_audited_again_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(sign_in.time, "monotonic", lambda: now)
    rate = AuditRate()
    for _ in range(3):
        written = [rate.may_write("10.0.0.1") for _ in range(sign_in._MAX_AUDITED_OF_NETWORK + 1)]
        assert written == [True] * sign_in._MAX_AUDITED_OF_NETWORK + [False]
        now += sign_in._AUDIT_INTERVAL_S
        assert not rate.may_write("10.0.0.1")
        now += 0.1


def test_the_memory_of_attempts_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "_MAX_REMEMBERED", 3)
    attempts, known = FailedAttempts(), RightPasswords()
    for number in range(4):
        for _ in range(4):
            attempts.note_failure("app", f"10.0.0.{number}")
        known.note(StoredLogin("app", number, "hash"), "right")
    assert [attempts.is_blocked("app", f"10.0.0.{number}") for number in range(4)] == [False, True, True, True]
    found = [known.is_known(StoredLogin("app", number, "hash"), "right") for number in range(4)]
    assert found == [False, True, True, True]


@pytest.mark.parametrize(
    ("address", "is_required"),
    [("127.0.0.1", False), ("127.8.0.1", False), ("::1", False), ("::1%lo", False), ("local", False),
     ("10.0.0.1", True), ("203.0.113.1", True), ("::", True), ("fe80::1%eth0", True), ("2001:db8::1", True)],
)  # fmt: skip
def test_clients_of_other_machines_must_encrypt(address: str, is_required: bool) -> None:
    assert TdsServer.requires_encryption(cast(TdsServer, None), address) == is_required


# ---------------------------------------------------------------- stored passwords


def test_a_password_is_right_for_its_hash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_passwords, "_COST_N", 2)
    stored, other = login_passwords.hash_password("right"), login_passwords.hash_password("right")
    assert stored != other  # a salt of its own
    assert login_passwords.is_password("right", stored)
    assert login_passwords.is_password("right", other)
    for password in ("Right", "", "right "):
        assert not login_passwords.is_password(password, stored)
    assert not login_passwords.is_password("", login_passwords.hash_password(""))
    assert not login_passwords.is_password("", None)


@pytest.mark.parametrize(
    ("name", "statement", "rows", "found"),
    [
        ("SA", "find_sa", [("hash",)], StoredLogin("sa", None, "hash")),
        ("sa", "find_sa", [], StoredLogin("sa", None, None)),
        ("App", "find_stored_login", [("app", 7, "hash", True)], StoredLogin("app", 7, "hash", True)),
        ("App", "find_stored_login", [], None),
    ],
)
def test_a_login_is_found_by_its_name(name: str, statement: str, rows: list[Any], found: StoredLogin | None) -> None:
    steps = login_passwords.find_stored_login(name)
    asked = next(steps)
    assert asked.name.rpartition(".")[2] == statement
    assert asked.parameters == ((name, PUBLIC_LOGIN_ID) if statement != "find_sa" else ())
    with pytest.raises(StopIteration) as ended:
        steps.send(rows)
    assert ended.value.value == found
