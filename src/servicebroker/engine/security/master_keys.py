"""CREATE, ALTER and DROP MASTER KEY: the key of a database that encrypts its private keys and session keys.

The table has it encrypted only. A password or the service master key of the instance opens it
(`api/aio/master_keys.py`, `store/keys/opened_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from servicebroker.engine.security.authorization import demand
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import PRIVATE_KEY, SESSION_KEY
from servicebroker.model.security.permissions import User
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class MasterKey(NamedTuple):
    """The master key of a database, encrypted by a password, by the service master key, and by more passwords.

    `by_service_master_key` is None if only passwords can decrypt the key.
    """

    by_password: bytes
    by_service_master_key: bytes | None
    more_passwords: tuple[bytes, ...] = ()

    @property
    def by_passwords(self) -> tuple[bytes, ...]:
        """The key, encrypted by each of its passwords."""
        return self.by_password, *self.more_passwords


def create_master_key(user: User, key: MasterKey) -> Steps[None]:
    """CREATE MASTER KEY ENCRYPTION BY PASSWORD.

    Raises:
        BrokerError: 15578 the database already has a master key, 15247 no permission.
    """
    yield from demand(user, "MASTER KEY")
    rows = yield SQL("create_master_key", (user.database_id, key.by_password, key.by_service_master_key))
    if not rows:
        raise BrokerError(15578)


def find_master_key(database_id: int) -> Steps[MasterKey | None]:
    """Return the master key of a database, None without one."""
    rows = yield SQL("find_master_key", (database_id,))
    return MasterKey(rows[0][0], rows[0][1], tuple(rows[0][2])) if rows else None


def require_master_key(user: User) -> Steps[MasterKey]:
    """Return the master key of the user's database.

    Raises:
        BrokerError: 15581 the database has no master key, 15247 no permission.
    """
    yield from demand(user, "MASTER KEY")
    master_key = yield from find_master_key(user.database_id)
    if master_key is None:
        raise BrokerError(15581)
    return master_key


def set_service_encryption(user: User, by_service_master_key: bytes | None) -> Steps[None]:
    """ALTER MASTER KEY ADD (or, with None, DROP) ENCRYPTION BY SERVICE MASTER KEY."""
    yield SQL("set_service_encryption", (user.database_id, by_service_master_key))


def set_password_encryption(user: User, by_passwords: Sequence[bytes]) -> Steps[None]:
    """ALTER MASTER KEY ADD or DROP ENCRYPTION BY PASSWORD: store the remaining encryptions."""
    yield SQL("set_password_encryption", (user.database_id, by_passwords[0], list(by_passwords[1:])))


Renew = Callable[[bytes, str], bytes | None]


def regenerate_master_key(user: User, key: MasterKey, renew: Renew) -> Steps[None]:
    """ALTER MASTER KEY REGENERATE: store the new master key, and re-encrypt private keys and session keys with `renew`.

    `renew` returns None for a key that it cannot decrypt (FORCE). Such a key is deleted. A conversation without its
    session key cannot send any more.
    """
    yield SQL(
        "regenerate_master_key.update_master_keys", (user.database_id, key.by_password, key.by_service_master_key)
    )
    rows = yield SQL("regenerate_master_key.find_certificates", (user.database_id,))
    for certificate_id, private_key in rows:
        renewed = renew(private_key, PRIVATE_KEY)
        yield SQL("regenerate_master_key.update_certificates", (certificate_id, renewed))
    yield from _renew_session_keys(user.database_id, renew)


def _renew_session_keys(database_id: int, renew: Renew) -> Steps[None]:
    rows = yield SQL("renew_session_keys.find_keys", (database_id,))
    for handle, first, second in rows:
        renewed = [None if sealed is None else renew(sealed, SESSION_KEY) for sealed in (first, second)]
        if renewed[0] is None or (second is not None and renewed[1] is None):
            yield SQL("renew_session_keys.delete_keys", (handle,))
        else:
            yield SQL("renew_session_keys.update_keys", (handle, *renewed))


def drop_master_key(user: User) -> Steps[None]:
    """DROP MASTER KEY. Open conversations with dialog security lose their session keys and cannot send any more.

    Raises:
        BrokerError: 15151 no master key, 15580 it encrypts a certificate's private key, 15247 no permission.
    """
    yield from demand(user, "MASTER KEY")
    used = yield SQL("drop_master_key.find_certificates", (user.database_id,))
    if used:
        raise BrokerError(15580, "the master key", "certificate", used[0][0])
    rows = yield SQL("drop_master_key.delete_master_keys", (user.database_id,))
    if not rows:
        raise BrokerError(15151, "drop", "master key", user.database)
