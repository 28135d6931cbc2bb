"""The login of a client: the check of its password, the delay after wrong ones, and the audit.

A wrong password costs a delay that doubles with each further one, for this login from this network. An attempt during
the delay fails without a look at the password. So guessing is slow, and costs the server nothing.

The hash of a password takes much memory and time by intent. A right password is remembered by a fast hash with a key of
this process. So a pool of connections does not wait behind a flood of guesses.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from servicebroker.api.instance import Instance
from servicebroker.model.errors import BrokerError
from servicebroker.model.events import LOGIN_CLASS, LOGIN_FAILED_CLASS
from servicebroker.model.security.client_refusals import ClientRefusal
from servicebroker.model.security.permissions import Login as Principal
from servicebroker.model.wording import cleaned
from servicebroker.protocol.admission import network_of
from servicebroker.store.running import run
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps
from servicebroker.tds.client_session import ClientSession, SignedIn
from servicebroker.tds.dialect import find_dialect
from servicebroker.tds.login import Login
from servicebroker.tsql.context import MASTER
from servicebroker.tsql.login_passwords import StoredLogin, find_stored_login, is_password

SQL = SqlFile(__file__)
_log = logging.getLogger("servicebroker.tds")

_FREE_ATTEMPTS = 3  # wrong passwords without a delay
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
_MAX_REMEMBERED = 10_000  # pairs of login and network
_FAILURE_PAUSE_S = 0.25  # the pause before a refusal: a flood of wrong passwords then takes only a part of a core
_AUDIT_INTERVAL_S = 60.0
_MAX_AUDITED, _MAX_AUDITED_OF_NETWORK = 600, 60  # refusals that are written to the audit log in an interval
# Passwords that are hashed at the same time: each takes 16 MiB and a core
_MAX_HASHES = max(1, (os.cpu_count() or 1) // 4)


class SignInError(Exception):
    """A client is not let in.

    Attributes:
        reports: (number, level, text) of each error that the client gets.
        kind: the kind of the reason.
        reason: why, for the log.
    """

    def __init__(self, kind: ClientRefusal, reason: str, *reports: tuple[int, int, str]) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.reports = kind, reason, reports


class _Failures(NamedTuple):
    number: int
    blocked_until: float


class FailedAttempts:
    """The wrong passwords of late, by login and network (`network_of`: one subscriber owns many addresses of IPv6)."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._lock = threading.Lock()

    def is_blocked(self, login: str, address: str) -> bool:
        """Return True during the delay after wrong passwords."""
        failures = self._failures.get(_key(login, address))
        return failures is not None and time.monotonic() < failures.blocked_until

    def note_failure(self, login: str, address: str) -> None:
        """Count a wrong password."""
        key = _key(login, address)
        with self._lock:
            before = self._failures.pop(key, _Failures(0, 0.0))
            excess = before.number + 1 - _FREE_ATTEMPTS
            delay_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(excess - 1, 30)) if excess > 0 else 0.0
            self._failures[key] = _Failures(before.number + 1, time.monotonic() + delay_s)
            if len(self._failures) > _MAX_REMEMBERED:
                self._failures.popitem(last=False)

    def note_success(self, login: str, address: str) -> None:
        """Forget the wrong passwords before the right one."""
        with self._lock:
            self._failures.pop(_key(login, address), None)


def _key(login: str, address: str) -> tuple[str, str]:
    return login.lower(), network_of(address)


class AuditRate:
    """A limit on the refusals that are written to the audit log, so that a flood of them does not fill the disk."""

    def __init__(self) -> None:
        self._written: Counter[str] = Counter()  # lines that were written, by network
        self._began = 0.0
        self._lock = threading.Lock()

    def may_write(self, network: str) -> bool:
        """Return whether to write one more, and count it."""
        with self._lock:
            now = time.monotonic()
            if now - self._began > _AUDIT_INTERVAL_S:
                self._began = now
                self._written.clear()
            if self._written.total() >= _MAX_AUDITED or self._written[network] >= _MAX_AUDITED_OF_NETWORK:
                return False
            self._written[network] += 1
            return True


class RightPasswords:
    """The passwords of logins that were right, as fast hashes with a key of this process.

    A password counts as long as the login has the stored hash that it was compared with.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[int | None, tuple[str, bytes]] = OrderedDict()  # login -> its stored hash, a fast one
        self._lock = threading.Lock()

    def is_known(self, stored: StoredLogin, password: str) -> bool:
        """Return True if this password of the login was right before."""
        known_for, fast = self._known.get(stored.login_id, ("", b""))
        return known_for == stored.hash and hmac.compare_digest(fast, self._fast_hash(password))

    def note(self, stored: StoredLogin, password: str) -> None:
        """Remember a password that is right."""
        with self._lock:
            self._known[stored.login_id] = stored.hash or "", self._fast_hash(password)
            self._known.move_to_end(stored.login_id)
            if len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)

    def _fast_hash(self, password: str) -> bytes:
        return hashlib.blake2b(password.encode("utf-8", "surrogatepass"), key=self._key, digest_size=32).digest()


class SignIn:
    """Lets clients of an instance in."""

    def __init__(self, instance: Instance, server: str) -> None:
        self._instance, self._server = instance, server
        self._attempts, self._right, self._audited = FailedAttempts(), RightPasswords(), AuditRate()
        self._hashing = threading.BoundedSemaphore(_MAX_HASHES)
        # threads of their own, as the allocator keeps the memory of a hash for each thread that has taken it
        self._hashers = ThreadPoolExecutor(_MAX_HASHES, thread_name_prefix="servicebroker tds passwords")

    def open(self, login: Login, address: str, *, has_gone: Callable[[], bool]) -> ClientSession:
        """Check the password and open the session. Any thread may call this.

        Args:
            login: the client's login.
            address: the client's address.
            has_gone: returns True once the client has left, so that no more time is spent on it.

        Raises:
            SignInError: the client is not let in.
            InstanceError: PostgreSQL cannot be reached.
        """
        try:
            principal = self._check(login, address, has_gone)
            session = self._open(login, principal)
        except SignInError as refused:
            text = f"Login failed for user '{cleaned(login.user)}'. {refused.reason} [CLIENT: {address}]"
            _log.warning("%s", text, extra=_fields("Audit Login Failed", address))
            self.tell(LOGIN_FAILED_CLASS, login, text)
            if self._audited.may_write(network_of(address)):
                self._audit(_FAILED, login, address, refused.reason)
            time.sleep(_FAILURE_PAUSE_S)
            raise
        text = f"Login succeeded for user '{principal.name}'. [CLIENT: {address}]"
        self.tell(LOGIN_CLASS, login, text)
        _log.info("%s", text, extra=_fields("Audit Login", address))
        self._audit(_SUCCEEDED, login, address, "")
        return session

    def close(self) -> None:
        """End the threads that hash passwords, once no sign-in runs."""
        self._hashers.shutdown()

    def tell(self, number: int, login: Login, text: str) -> None:
        """Call the program's handlers of Audit Login, Audit Logout or Audit Login Failed."""
        names = map(cleaned, (login.user, login.host, login.program, login.database))
        columns = dict(zip(("LoginName", "HostName", "ApplicationName", "DatabaseName"), names, strict=True))
        self._instance.events.tell(number, self._instance.clock(), 0, text, "", columns)

    def _check(self, login: Login, address: str, has_gone: Callable[[], bool]) -> Principal:
        if find_dialect(login.version) is None:
            reason = f"The client speaks TDS 0x{login.version:08X}; TDS 7.1 to 7.4 and 8.0 are supported."
            raise SignInError(
                ClientRefusal.VERSION, reason, (17828, 20, f"{reason} Use a newer driver, or set its TDS version.")
            )
        if login.is_integrated or login.has_access_token or not login.user:
            reason = "Only SQL authentication is supported, with a login and its password."
            raise SignInError(ClientRefusal.METHOD, reason, (18452, 14, f"Login failed. {reason}"))
        if self._attempts.is_blocked(login.user, address):  # a right password is not told from a wrong one
            raise SignInError(ClientRefusal.DELAY, _BLOCKED, failed_report(login.user))
        stored = self._find(login.user)
        is_right = stored is not None and self._right.is_known(stored, login.password)
        if not is_right:
            with self._hashing:
                if self._attempts.is_blocked(login.user, address):
                    raise SignInError(ClientRefusal.DELAY, _BLOCKED, failed_report(login.user))
                if has_gone():
                    raise SignInError(ClientRefusal.DELAY, "The client has left.")
                is_right = self._hashers.submit(is_password, login.password, stored.hash if stored else None).result()
                if not is_right:  # before the next attempt is checked
                    self._attempts.note_failure(login.user, address)
        if stored is None or not is_right:
            raise SignInError(
                ClientRefusal.LOGIN if stored is None else ClientRefusal.PASSWORD,
                "Could not find a login matching the name provided."
                if stored is None
                else "The login has no password."
                if stored.hash is None
                else "Password did not match that for the login provided.",
                failed_report(login.user),
            )
        if stored.is_disabled:
            raise SignInError(
                ClientRefusal.DISABLED, "The account is disabled.", (18470, 14, _DISABLED.format(stored.name))
            )
        self._right.note(stored, login.password)
        self._attempts.note_success(login.user, address)
        return Principal(stored.name, stored.login_id, is_administrator=stored.login_id is None)

    def _find(self, name: str) -> StoredLogin | None:
        """Return the login of that name. A name that PostgreSQL cannot hold is that of no login."""
        if cleaned(name) != name:
            return None
        with self._instance.connection() as connection:
            return run(connection, find_stored_login(name))

    def _open(self, login: Login, principal: Principal) -> ClientSession:
        database = cleaned(login.database) or MASTER
        try:
            client = SignedIn(principal, database, cleaned(login.program), login.dialect)
            return ClientSession(self._instance, client, self._server)
        except BrokerError as refused:
            if refused.number not in (911, 916):
                raise
            text = f'Cannot open database "{database}" requested by the login. The login failed.'
            kind = ClientRefusal.DATABASE if refused.number == 911 else ClientRefusal.USER
            raise SignInError(
                kind, f"Failed to open the database '{database}'.", (4060, 11, text), failed_report(login.user)
            ) from None

    def _audit(self, act: str, login: Login, address: str, reason: str) -> None:
        """Write the attempt to the audit log."""
        with self._instance.connection() as connection:
            run(connection, _write_audit(act, login, address, reason))


_SUCCEEDED, _FAILED = "LOGIN", "LOGIN FAILED"
_BLOCKED = "Too many wrong passwords; a later attempt is checked again."
_DISABLED = "Login failed for user '{}'. Reason: The account is disabled."


def failed_report(user: str) -> tuple[int, int, str]:
    """Return error 18456, which does not tell the client why."""
    return 18456, 14, f"Login failed for user '{user}'."


def _fields(event: str, address: str) -> dict[str, dict[str, str]]:
    """Return the fields of a line of the log, by which the lines of a client are limited."""
    return {"fields": {"event": event, "peer": f"{address}:"}}


def _write_audit(act: str, login: Login, address: str, reason: str) -> Steps[None]:
    names = login.user, login.program, address, act, login.database, reason
    yield SQL("write_audit", tuple(map(cleaned, names)))
