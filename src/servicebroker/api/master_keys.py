# Made from aio/master_keys.py by tools/make_sync.py: change that file, then run `make sync`.
"""Statements of a database's master key: create, open, close, alter, regenerate, drop.

The key is stored encrypted by one or more passwords and, by default, by the service master key of the key folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from servicebroker.engine.security import master_keys
from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.model.arguments import check_switch, checked_password
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import MASTER_KEY
from servicebroker.operations.master_keys import (
    AddMasterKeyPassword,
    AlterMasterKey,
    CloseMasterKey,
    CreateMasterKey,
    DropMasterKey,
    DropMasterKeyPassword,
    OpenMasterKey,
    RegenerateMasterKey,
)
from servicebroker.operations.operation import Definition
from servicebroker.store.concurrency import in_thread
from servicebroker.store.keys.sealing import new_key, seal, seal_by_password, unseal, unseal_by_password

if TYPE_CHECKING:
    from servicebroker.api.database import Database


def _create_master_key(database: Database, operation: CreateMasterKey) -> None:
    checked_password("PASSWORD", operation.password, is_new=True)
    key = new_key()
    by_password = in_thread(seal_by_password, operation.password, key, MASTER_KEY)
    service_key = in_thread((database.instance.key_folder()).ensure_service_master_key)
    database._run_in_transaction(
        master_keys.create_master_key(database.user, MasterKey(by_password, seal(service_key, key, MASTER_KEY)))
    )


def _open_master_key(database: Database, operation: OpenMasterKey) -> None:
    checked_password("PASSWORD", operation.password)
    stored_key = database._run_in_transaction(master_keys.require_master_key(database.user))
    for sealed in stored_key.by_passwords:
        key = in_thread(unseal_by_password, operation.password, sealed, MASTER_KEY)
        if key is not None:
            database._opened_master_key = (stored_key.by_password, key)
            return
    raise BrokerError(15313)


def _close_master_key(database: Database, operation: CloseMasterKey) -> None:
    if database._opened_master_key is None:
        raise BrokerError(15315, "master key")
    database._opened_master_key = None


def _alter_master_key(database: Database, operation: AlterMasterKey) -> None:
    check_switch("ENCRYPTION BY SERVICE MASTER KEY", operation.service_master_key)
    key = find_master_key(database)
    sealed = None
    if operation.service_master_key:
        folder = database.instance.key_folder()
        sealed = seal(in_thread(folder.ensure_service_master_key), key, MASTER_KEY)
    database._run_in_transaction(master_keys.set_service_encryption(database.user, sealed))


def _add_master_key_password(database: Database, operation: AddMasterKeyPassword) -> None:
    checked_password("PASSWORD", operation.password, is_new=True)
    sealed = in_thread(seal_by_password, operation.password, find_master_key(database), MASTER_KEY)
    stored_key = database._run_in_transaction(master_keys.require_master_key(database.user))
    database._run_in_transaction(master_keys.set_password_encryption(database.user, [*stored_key.by_passwords, sealed]))


def _drop_master_key_password(database: Database, operation: DropMasterKeyPassword) -> None:
    checked_password("PASSWORD", operation.password)
    stored_key = database._run_in_transaction(master_keys.require_master_key(database.user))
    remaining = [
        sealed
        for sealed in stored_key.by_passwords
        if in_thread(unseal_by_password, operation.password, sealed, MASTER_KEY) is None
    ]
    if not remaining or len(remaining) == len(stored_key.by_passwords):
        raise BrokerError(15558, "the encryption of the master key", "this password")
    if database._opened_master_key is not None:
        database._opened_master_key = (remaining[0], database._opened_master_key[1])
    database._run_in_transaction(master_keys.set_password_encryption(database.user, remaining))


def _regenerate_master_key(database: Database, operation: RegenerateMasterKey) -> None:
    check_switch("FORCE", operation.force)
    checked_password("PASSWORD", operation.password, is_new=True)
    stored_key = database._run_in_transaction(master_keys.require_master_key(database.user))
    try:
        old = find_master_key(database)
    except BrokerError as closed:
        if not operation.force:
            raise BrokerError(15329, "master key") if closed.number == 15581 else closed from None
        old = None
    new = new_key()
    by_password = in_thread(seal_by_password, operation.password, new, MASTER_KEY)
    sealed = None
    if stored_key.by_service_master_key is not None:
        folder = database.instance.key_folder()
        sealed = seal(in_thread(folder.ensure_service_master_key), new, MASTER_KEY)

    def encrypt_again(secret: bytes, purpose: str) -> bytes | None:
        clear = None if old is None else unseal(old, secret, purpose)
        if clear is None and not operation.force:
            raise BrokerError(15329, "master key")
        return None if clear is None else seal(new, clear, purpose)

    key = MasterKey(by_password, sealed)
    database._run_in_transaction(master_keys.regenerate_master_key(database.user, key, encrypt_again))
    database._opened_master_key = (by_password, new)


def _drop_master_key(database: Database, operation: DropMasterKey) -> None:
    database._run_in_transaction(master_keys.drop_master_key(database.user))
    database._opened_master_key = None


def find_master_key(database: Database) -> bytes:
    """Return the master key in clear, from OPEN MASTER KEY or by the service master key.

    Raises:
        BrokerError: 15581 there is no master key, or it is not open; 15247 no permission.
    """
    stored_key = database._run_in_transaction(master_keys.require_master_key(database.user))
    if database._opened_master_key is not None and database._opened_master_key[0] == stored_key.by_password:
        return database._opened_master_key[1]
    service_key = in_thread((database.instance.key_folder()).service_master_key)
    if service_key is not None and stored_key.by_service_master_key is not None:
        key = unseal(service_key, stored_key.by_service_master_key, MASTER_KEY)
        if key is not None:
            return key
    raise BrokerError(15581)


RUNNERS: Mapping[type[Definition[Any]], Callable[[Database, Any], None]] = {
    CreateMasterKey: _create_master_key,
    OpenMasterKey: _open_master_key,
    CloseMasterKey: _close_master_key,
    AlterMasterKey: _alter_master_key,
    AddMasterKeyPassword: _add_master_key_password,
    DropMasterKeyPassword: _drop_master_key_password,
    RegenerateMasterKey: _regenerate_master_key,
    DropMasterKey: _drop_master_key,
}
