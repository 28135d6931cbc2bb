"""CREATE, ALTER and DROP MASTER KEY: the key of a database under which its private keys and session keys are kept.

Here it is always encrypted; who opens it has the password, or the service master key of the instance
(`api/aio/master_keys.py`, `store/opened_keys.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.security.authorization import demand
from servicebroker.model.errors import BrokerError
from servicebroker.model.permissions import User
from servicebroker.store.statements import Statement, Steps


class MasterKey(NamedTuple):
    """The key of a database, encrypted; `by_service_master_key` is None when only the password opens it."""

    by_password: bytes
    by_service_master_key: bytes | None


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
        (user.database_id, *key),
    )
    if not rows:
        raise BrokerError(15578)


def find_master_key(database_id: int) -> Steps[MasterKey | None]:
    """The master key of a database, None when it has none."""
    rows = yield Statement(
        "master_keys.find_master_key",
        "select by_password, by_service_master_key from servicebroker.master_keys where database_id = $1",
        (database_id,),
    )
    return MasterKey(*rows[0]) if rows else None


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
