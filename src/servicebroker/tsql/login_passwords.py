"""Passwords of logins, for clients of SQL Server: stored as scrypt hashes, which cost memory to guess.

The login sa has no row among the logins. It is disabled until it has a password.
"""

from __future__ import annotations

import hmac
import os
from typing import NamedTuple

from servicebroker.engine.security.logins import PUBLIC_LOGIN_ID
from servicebroker.model.errors import BrokerError
from servicebroker.store.keys.sealing import SALT_BYTES, SCRYPT_BLOCK, derive_key
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)

SA = "sa"
_COST_N = 2**14  # 16 MiB and about 40 ms of a core: every connection of a client costs one hash
_DUMMY_HASH = f"scrypt${_COST_N}${SCRYPT_BLOCK}$1${'0' * 32}$"  # costs as much as a real hash, and never matches


class StoredLogin(NamedTuple):
    """A login as it is stored.

    Attributes:
        name: its name.
        login_id: its number, None for sa.
        hash: the hash of its password, None without one.
        is_disabled: True after ALTER LOGIN DISABLE.
    """

    name: str
    login_id: int | None
    hash: str | None
    is_disabled: bool = False


def hash_password(password: str) -> str:
    """Return the hash of a password, with a new salt."""
    return _hash(password, _COST_N, os.urandom(SALT_BYTES))


def is_password(password: str, stored: str | None) -> bool:
    """Check a password. Without a stored hash this takes as long, and returns False."""
    _, cost, _, _, salt, _ = (stored or _DUMMY_HASH).split("$")
    password_hash = _hash(password, int(cost), bytes.fromhex(salt))
    return hmac.compare_digest(password_hash, stored or "") and bool(password)


def _hash(password: str, cost: int, salt: bytes) -> str:
    """Return the hash with scrypt's parameters n, r and p, as other programs write it."""
    return f"scrypt${cost}${SCRYPT_BLOCK}$1${salt.hex()}${derive_key(password, salt, cost).hex()}"


def set_password(name: str, password: str) -> Steps[None]:
    """Store the password of a login, or of sa.

    Raises:
        BrokerError: 15151 there is no such login, for instance because another session has dropped it.
    """
    if name.lower() == SA:
        yield SQL("set_password.set_sa", (hash_password(password),))
        return
    rows = yield SQL("set_password", (name, hash_password(password)))
    if not rows:
        raise BrokerError(15151, "alter", "login", name)


def forget_password_of_sa() -> Steps[None]:
    """Delete the password of sa, so that it cannot sign in."""
    yield SQL("forget_password_of_sa")


def find_stored_login(name: str) -> Steps[StoredLogin | None]:
    """Return a login by its name, or None. Logins of domain members and public are not found."""
    if name.lower() == SA:
        rows = yield SQL("find_stored_login.find_sa")
        return StoredLogin(SA, None, rows[0][0] if rows else None)
    rows = yield SQL("find_stored_login", (name, PUBLIC_LOGIN_ID))
    return StoredLogin(*rows[0]) if rows else None
