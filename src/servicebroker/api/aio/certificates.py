"""Statements of a database's certificates: create, alter, back up. Files are on the machine of this process.

A private key is encrypted by the master key of the database or by a password. The broker can use only the first kind.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.api.aio.master_keys import find_master_key
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security import principals, user_certificates
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, BY_PASSWORD, StoredKey, UserCertificate
from servicebroker.model.arguments import checked_password
from servicebroker.model.errors import BrokerError
from servicebroker.model.named_files import BYTES_PER_MIB, read_argument
from servicebroker.model.security.certificates import PRIVATE_KEY, Facts
from servicebroker.model.wording import short_repr
from servicebroker.operations.certificates import AlterCertificate, BackupCertificate, CreateCertificate, File
from servicebroker.operations.operation import Definition
from servicebroker.store.aio.concurrency import in_thread
from servicebroker.store.keys.key_files import write_private
from servicebroker.store.keys.sealing import seal, seal_by_password, unseal, unseal_by_password
from servicebroker.store.keys.x509_certificates import (
    PrivateKey,
    as_pem,
    issue,
    key_bytes,
    key_pem,
    load_key,
    read,
    read_key,
)
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase


async def _create_certificate(database: AsyncDatabase, operation: CreateCertificate) -> None:
    user = database.user
    await database._run_in_transaction(rights.authorize(user, operation.permission))  # before a file is read
    operation.check()
    if operation.file is None:
        start = database.instance.clock() if operation.start_date is None else operation.start_date
        expiry = a_year_after(start) if operation.expiry_date is None else operation.expiry_date
        facts, key = issue(operation.name if operation.subject is None else operation.subject, start, expiry)
        stored_key = await _keep(database, key, operation.encryption_password)
    else:
        facts = read(await in_thread(read_file, operation.file))
        stored_key = await _read_key(database, facts, operation)

    def steps() -> Steps[None]:
        owner = yield from principals.find_owner(user, operation.authorization)
        yield from user_certificates.create_certificate(user.database_id, operation, owner, facts, stored_key)

    await database._run_in_transaction(steps())


async def _alter_certificate(database: AsyncDatabase, operation: AlterCertificate) -> None:
    operation.check()
    stored_key = StoredKey() if operation.remove_private_key else None
    if operation.changes_key:
        certificate = await find_certificate(database, operation.permission, operation.name)
        if operation.private_key_file is not None:
            stored_key = await _read_key(database, certificate.facts, operation)
        else:
            key = await open_key(database, certificate, operation.decryption_password)
            stored_key = await _keep(database, key, operation.encryption_password)
    await database._run_in_transaction(user_certificates.alter_certificate(database.user, operation, stored_key))


async def _backup_certificate(database: AsyncDatabase, operation: BackupCertificate) -> None:
    operation.check()
    certificate, key = await find_certificate(database, operation.permission, operation.name), None
    if operation.private_key_file is not None:
        key = await open_key(database, certificate, operation.decryption_password)
    await in_thread(write_backup, operation, certificate.facts, key)


RUNNERS: Mapping[type[Definition[Any]], Callable[[AsyncDatabase, Any], Awaitable[None]]] = {
    CreateCertificate: _create_certificate,
    AlterCertificate: _alter_certificate,
    BackupCertificate: _backup_certificate,
}


async def find_certificate(database: AsyncDatabase, statement: str, name: str) -> UserCertificate:
    """Return a certificate, after a check that the user may run `statement` on it.

    Raises:
        BrokerError: 15151 there is no such certificate, or the user lacks the permission.
    """
    action = statement.split()[0].lower()
    steps = user_certificates.find_certificate(action, database.user.database_id, name)
    return await database._run_in_transaction(
        rights.run_authorized(steps, database.user, statement, rights.certificate(name))
    )


async def _read_key(
    database: AsyncDatabase, facts: Facts, operation: CreateCertificate | AlterCertificate
) -> StoredKey:
    """Return the private key of a file, encrypted for storage. Without a file, return an empty StoredKey."""
    password = operation.decryption_password
    if password is not None:
        checked_password("DECRYPTION BY PASSWORD", password)
    if operation.private_key_file is None:
        return StoredKey()
    data = await in_thread(read_file, operation.private_key_file)
    return await _keep(database, await in_thread(read_key, data, password, facts), operation.encryption_password)


async def _keep(database: AsyncDatabase, key: PrivateKey, password: str | None) -> StoredKey:
    """Encrypt a private key for storage, by the password or else by the master key."""
    if password is None:
        return StoredKey(BY_MASTER_KEY, seal(await find_master_key(database), key_bytes(key), PRIVATE_KEY))
    checked_password("ENCRYPTION BY PASSWORD", password, is_new=True)
    return StoredKey(BY_PASSWORD, await in_thread(seal_by_password, password, key_bytes(key), PRIVATE_KEY))


async def open_key(database: AsyncDatabase, certificate: UserCertificate, password: str | None) -> PrivateKey:
    """Decrypt the stored private key of a certificate.

    Raises:
        BrokerError: 15556 it has no private key, 15465 wrong password, 15581 the master key is not open, 402 no
            password.
    """
    encryption, sealed = certificate.key
    if sealed is None:
        raise BrokerError(15556, f"certificate '{certificate.name}'")
    if encryption == BY_MASTER_KEY:
        der = unseal(await find_master_key(database), sealed, PRIVATE_KEY)
    else:
        password = checked_password("DECRYPTION BY PASSWORD", password)
        der = await in_thread(unseal_by_password, password, sealed, PRIVATE_KEY)
    if der is None:
        raise BrokerError(15465)
    return load_key(der)


def write_backup(operation: BackupCertificate, facts: Facts, key: PrivateKey | None) -> None:
    """Write the files of BACKUP CERTIFICATE. If the second one fails, remove the first one.

    Raises:
        BrokerError: 15240 a file cannot be written.
    """
    write_file(operation.file, as_pem(facts.der))
    if operation.private_key_file is not None and key is not None:
        try:
            write_file(operation.private_key_file, key_pem(key, operation.encryption_password))
        except BrokerError:
            Path(operation.file).unlink()
            raise


def after(start: datetime, days: int) -> datetime:
    """Return the time `days` days later.

    Raises:
        BrokerError: 402 START_DATE is not a datetime, or the result is out of range.
    """
    try:
        return start + timedelta(days=days)
    except (TypeError, OverflowError):
        raise BrokerError(402, "START_DATE", short_repr(start), "a datetime with a time zone") from None


def a_year_after(start: datetime) -> datetime:
    """Return the time a calendar year later, on February 28 for a leap day.

    Raises:
        BrokerError: 402 START_DATE is not a datetime, or the result is out of range.
    """
    try:
        is_leap_day = (start.month, start.day) == (2, 29)
        return start.replace(year=start.year + 1, day=28 if is_leap_day else start.day)
    except (AttributeError, ValueError):
        raise BrokerError(402, "START_DATE", short_repr(start), "a datetime with a time zone") from None


def read_file(file: File) -> bytes:
    """Read a file.

    Raises:
        BrokerError: 402 `file` is not a path, 15208 it cannot be read.
    """
    path = _path(file)
    try:
        return read_argument(path, BYTES_PER_MIB)
    except (OSError, ValueError) as problem:
        raise BrokerError(15208, hint=f"'{file}': {_why(problem)}") from None


def write_file(file: File, data: bytes) -> None:
    """Write a new file that only its owner may read.

    Raises:
        BrokerError: 402 `file` is not a path, 15240 the file exists already, or cannot be written.
    """
    path = _path(file)
    try:
        write_private(path, data)
    except (OSError, ValueError) as problem:
        raise BrokerError(15240, file, hint=_why(problem)) from None


def _why(problem: OSError | ValueError) -> str:
    return f"{problem.strerror}." if isinstance(problem, OSError) else "This is not a valid path."


def _path(file: object) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise BrokerError(402, "FILE", type(file).__name__, "str or os.PathLike")
    return Path(os.fsdecode(file))
