"""The login of a client: the check of its password, the delay after wrong ones, and the audit.

A wrong password costs a delay that doubles with each further one, for this login from this address. An attempt during
the delay fails without a look at the password. So guessing is slow, and costs the server nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from servicebroker.api.instance import Instance
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Login as Principal
from servicebroker.store.running import run
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps
from servicebroker.tds.client_session import ClientSession, SignedIn
from servicebroker.tds.login import VERSIONS, Login
from servicebroker.tsql.context import MASTER
from servicebroker.tsql.login_passwords import find_stored_login, is_password

SQL = SqlFile(__file__)
_log = logging.getLogger("servicebroker.tds")

_FREE_ATTEMPTS = 3  # wrong passwords without a delay
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
_MAX_REMEMBERED = 10_000  # pairs of login and address
_MAX_HASHES = 2  # at a time: each takes 16 MiB and a core


class SignInError(Exception):
    """A client is not let in.

    Attributes:
        reports: (number, level, text) of each error that the client gets.
        reason: why, for the log.
    """

    def __init__(self, reason: str, *reports: tuple[int, int, str]) -> None:
        super().__init__(reason)
        self.reason, self.reports = reason, reports


class _Failures(NamedTuple):
    number: int
    blocked_until: float


class FailedAttempts:
    """The wrong passwords of late, by login and address."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._lock = threading.Lock()

    def is_blocked(self, login: str, address: str) -> bool:
        """Return True during the delay after wrong passwords."""
        failures = self._failures.get((login.lower(), address))
        return failures is not None and time.monotonic() < failures.blocked_until

    def note_failure(self, login: str, address: str) -> None:
        """Count a wrong password."""
        key = (login.lower(), address)
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
            self._failures.pop((login.lower(), address), None)


class SignIn:
    """Lets clients of an instance in."""

    def __init__(self, instance: Instance, server: str) -> None:
        self._instance, self._server = instance, server
        self._attempts = FailedAttempts()
        self._hashing = threading.BoundedSemaphore(_MAX_HASHES)

    def open(self, login: Login, address: str) -> ClientSession:
        """Check the password and open the session.

        Raises:
            SignInError: the client is not let in.
            InstanceError: PostgreSQL cannot be reached.
        """
        try:
            principal = self._check(login, address)
            session = self._open(login, principal)
        except SignInError as refused:
            _log.warning("Login failed for user '%s'. %s [CLIENT: %s]", login.user, refused.reason, address)
            self._audit(_FAILED, login, address, refused.reason)
            raise
        _log.info("Login succeeded for user '%s'. [CLIENT: %s]", principal.name, address)
        self._audit(_SUCCEEDED, login, address, "")
        return session

    def _check(self, login: Login, address: str) -> Principal:
        if login.version not in VERSIONS:
            reason = f"The client speaks TDS 0x{login.version:08X}; TDS 7.3 and 7.4 are supported."
            raise SignInError(reason, (17828, 20, f"{reason} Use a newer driver, or set its TDS version."))
        if login.is_integrated or login.has_access_token or not login.user:
            reason = "Only SQL authentication is supported, with a login and its password."
            raise SignInError(reason, (18452, 14, f"Login failed. {reason}"))
        if self._attempts.is_blocked(login.user, address):
            raise SignInError("Too many wrong passwords; a later attempt is checked again.", failed_report(login.user))
        with self._instance.connection() as connection:
            stored = run(connection, find_stored_login(login.user))
        with self._hashing:
            is_right = is_password(login.password, stored.hash if stored else None)
        if stored is None or not is_right:
            self._attempts.note_failure(login.user, address)
            raise SignInError(
                "Could not find a login matching the name provided."
                if stored is None
                else "The login has no password."
                if stored.hash is None
                else "Password did not match that for the login provided.",
                failed_report(login.user),
            )
        if stored.is_disabled:
            raise SignInError("The account is disabled.", (18470, 14, _DISABLED.format(stored.name)))
        self._attempts.note_success(login.user, address)
        return Principal(stored.name, stored.login_id, is_administrator=stored.login_id is None)

    def _open(self, login: Login, principal: Principal) -> ClientSession:
        database = login.database or MASTER
        try:
            return ClientSession(self._instance, SignedIn(principal, database, login.program), self._server)
        except BrokerError as refused:
            if refused.number not in (911, 916):
                raise
            text = f'Cannot open database "{database}" requested by the login. The login failed.'
            raise SignInError(
                f"Failed to open the database '{database}'.", (4060, 11, text), failed_report(login.user)
            ) from None

    def _audit(self, act: str, login: Login, address: str, reason: str) -> None:
        """Write the attempt to the audit log. Attempts during a delay are only logged, since they may be many."""
        if act == _FAILED and self._attempts.is_blocked(login.user, address):
            return
        with self._instance.connection() as connection:
            run(connection, _write_audit(act, login, address, reason))


_SUCCEEDED, _FAILED = "LOGIN", "LOGIN FAILED"
_DISABLED = "Login failed for user '{}'. Reason: The account is disabled."


def failed_report(user: str) -> tuple[int, int, str]:
    """Return error 18456, which does not tell the client why."""
    return 18456, 14, f"Login failed for user '{user}'."


def _write_audit(act: str, login: Login, address: str, reason: str) -> Steps[None]:
    yield SQL("write_audit", (login.user, login.program, address, act, login.database, reason))
