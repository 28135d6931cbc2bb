"""CREATE, ALTER and DROP MASTER KEY: the key of a database under which its private keys and session keys are kept.

Here it is always encrypted; who opens it has the password, or the service master key of the instance
(`api/aio/master_keys.py`, `store/keys/opened_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from servicebroker.engine.security.authorization import demand
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import PRIVATE_KEY, SESSION_KEY
from servicebroker.model.security.permissions import User
from servicebroker.store.statements import Statement, Steps


class MasterKey(NamedTuple):
    """The key of a database, encrypted; `by_service_master_key` is None when only passwords open it."""

    by_password: bytes
    by_service_master_key: bytes | None
    more_passwords: tuple[bytes, ...] = ()

    @property
    def by_passwords(self) -> tuple[bytes, ...]:
        """As each of its passwords opens it."""
        return self.by_password, *self.more_passwords


def create_master_key(user: User, key: MasterKey) -> Steps[None]:
    """CREATE MASTER KEY ENCRYPTION BY PASSWORD.

    Raises:
        BrokerError: 15578 there is one already, 15247.
    """
    yield from demand(user, "MASTER KEY")
    rows = yield Statement(
        "master_keys.create_master_key",
        "insert into servicebroker.master_keys (database_id, by_password, by_service_master_key) values ($1, $2, $3) "
        "on conflict do nothing returning 1",
        (user.database_id, key.by_password, key.by_service_master_key),
    )
    if not rows:
        raise BrokerError(15578)


def find_master_key(database_id: int) -> Steps[MasterKey | None]:
    """The master key of a database, None when it has none."""
    rows = yield Statement(
        "master_keys.find_master_key",
        "select by_password, by_service_master_key, more_passwords from servicebroker.master_keys "
        "where database_id = $1",
        (database_id,),
    )
    return MasterKey(rows[0][0], rows[0][1], tuple(rows[0][2])) if rows else None


def require_master_key(user: User) -> Steps[MasterKey]:
    """The master key of the database where the user works.

    Raises:
        BrokerError: 15581 there is none, 15247.
    """
    yield from demand(user, "MASTER KEY")
    found = yield from find_master_key(user.database_id)
    if found is None:
        raise BrokerError(15581)
    return found


def set_service_encryption(user: User, by_service_master_key: bytes | None) -> Steps[None]:
    """ALTER MASTER KEY ADD (or, with None, DROP) ENCRYPTION BY SERVICE MASTER KEY."""
    yield Statement(
        "master_keys.set_service_encryption",
        "update servicebroker.master_keys set by_service_master_key = $2, modify_date = clock_timestamp() "
        "where database_id = $1",
        (user.database_id, by_service_master_key),
    )


def set_password_encryption(user: User, by_passwords: Sequence[bytes]) -> Steps[None]:
    """ALTER MASTER KEY ADD or DROP ENCRYPTION BY PASSWORD: those that are left."""
    yield Statement(
        "master_keys.set_password_encryption",
        "update servicebroker.master_keys set by_password = $2, more_passwords = $3, modify_date = clock_timestamp() "
        "where database_id = $1",
        (user.database_id, by_passwords[0], list(by_passwords[1:])),
    )


Renew = Callable[[bytes, str], bytes | None]


def regenerate_master_key(user: User, key: MasterKey, renew: Renew) -> Steps[None]:
    """ALTER MASTER KEY REGENERATE: the key, and all that the one before has encrypted, which `renew` encrypts anew.

    What that cannot, it returns None for: with FORCE a private key is removed then, and a session key too, for which
    its conversation waits.
    """
    yield Statement(
        "master_keys.regenerate_master_key.update_master_keys",
        "update servicebroker.master_keys set by_password = $2, by_service_master_key = $3, more_passwords = '{}', "
        "key_guid = gen_random_uuid(), modify_date = clock_timestamp() where database_id = $1",
        (user.database_id, key.by_password, key.by_service_master_key),
    )
    rows = yield Statement(
        "master_keys.regenerate_master_key.find_certificates",
        "select certificate_id, private_key from servicebroker.certificates "
        "where database_id = $1 and key_encryption = 'M' for update",
        (user.database_id,),
    )
    for certificate_id, private_key in rows:
        renewed = renew(private_key, PRIVATE_KEY)
        yield Statement(
            "master_keys.regenerate_master_key.update_certificates",
            "update servicebroker.certificates set private_key = $2, "
            "key_encryption = case when $2::bytea is null then 'N' else 'M' end where certificate_id = $1",
            (certificate_id, renewed),
        )
    yield from _renew_session_keys(user.database_id, renew)


def _renew_session_keys(database_id: int, renew: Renew) -> Steps[None]:
    rows = yield Statement(
        "master_keys.renew_session_keys.find_keys",
        "select k.conversation_handle, k.first_key, k.second_key from servicebroker.conversation_keys k "
        "join servicebroker.conversation_endpoints e using (conversation_handle) where e.database_id = $1 "
        "for update of k",
        (database_id,),
    )
    for handle, first, second in rows:
        renewed = [None if sealed is None else renew(sealed, SESSION_KEY) for sealed in (first, second)]
        if renewed[0] is None or (second is not None and renewed[1] is None):
            yield Statement(
                "master_keys.renew_session_keys.delete_keys",
                "delete from servicebroker.conversation_keys where conversation_handle = $1",
                (handle,),
            )
        else:
            yield Statement(
                "master_keys.renew_session_keys.update_keys",
                "update servicebroker.conversation_keys set first_key = $2, second_key = $3 "
                "where conversation_handle = $1",
                (handle, *renewed),
            )


def drop_master_key(user: User) -> Steps[None]:
    """DROP MASTER KEY. Conversations that are under way with a session key lose it, and wait.

    Raises:
        BrokerError: 15151 there is none, 15580 a certificate's private key is encrypted by it, 15247.
    """
    yield from demand(user, "MASTER KEY")
    used = yield Statement(
        "master_keys.drop_master_key.find_certificates",
        "select name from servicebroker.certificates where database_id = $1 and key_encryption = 'M' limit 1",
        (user.database_id,),
    )
    if used:
        raise BrokerError(15580, "the master key", "certificate", used[0][0])
    rows = yield Statement(
        "master_keys.drop_master_key.delete_master_keys",
        "delete from servicebroker.master_keys where database_id = $1 returning 1",
        (user.database_id,),
    )
    if not rows:
        raise BrokerError(15151, "drop", "master key", user.database)
