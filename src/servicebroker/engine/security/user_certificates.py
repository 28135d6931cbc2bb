"""CREATE, ALTER and DROP CERTIFICATE in a broker database. A certificate proves the identity of its owner, a user.

Certificates are used for dialog security (conversations with other instances and databases) and to sign modules.
"""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.security.authorization import authorize, certificate, forget_permissions
from servicebroker.model import names
from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.permissions import Kind, User
from servicebroker.operations.certificates import AlterCertificate, CreateCertificate, DropCertificate
from servicebroker.store.rows import build_row
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


NONE, BY_MASTER_KEY, BY_PASSWORD = "N", "M", "P"  # encryption of a private key; NONE: there is no private key


class StoredKey(NamedTuple):
    """A stored private key. `encryption` is NONE, BY_MASTER_KEY or BY_PASSWORD."""

    encryption: str = NONE
    private_key: bytes | None = None


class UserCertificate(NamedTuple):
    """A certificate of a broker database."""

    certificate_id: int
    owner_id: int
    name: str
    is_active_for_begin_dialog: bool
    key: StoredKey
    facts: Facts


SELECT = (
    "select certificate_id, owner_id, name, is_active_for_begin_dialog, key_encryption::text, private_key, "
    "certificate, thumbprint, subject, issuer_name, serial_number, start_date, expiry_date "
    "from servicebroker.certificates"
)


def certificate_of(row: tuple[object, ...]) -> UserCertificate:
    """Return the certificate of a row of `SELECT`, which may have more columns at the end."""
    return build_row(UserCertificate, row)


def create_certificate(
    database_id: int, operation: CreateCertificate, owner_id: int, facts: Facts, key: StoredKey
) -> Steps[None]:
    """Store a certificate that was created or read.

    Raises:
        BrokerError: 15232 the name is taken, or the certificate is already stored.
    """
    name, is_active = operation.name, operation.active_for_begin_dialog
    check_switch("ACTIVE FOR BEGIN_DIALOG", is_active)
    rows = yield SQL(
        "create_certificate", (database_id, owner_id, names.checked("certificate", name), is_active, *key, *facts)
    )
    if not rows:
        raise BrokerError(15232, name)


def find_certificate(action: str, database_id: int, name: str) -> Steps[UserCertificate]:
    """Return the certificate of that name, compared without case. `action` is the verb for the error's text.

    Raises:
        BrokerError: 15151 no such certificate.
    """
    rows = yield Statement(
        "user_certificates.find_certificate",
        SELECT + " where database_id = $1 and lower(name) = lower($2)",
        (database_id, names.checked("certificate", name)),
    )
    if not rows:
        raise BrokerError(15151, action, "certificate", name)
    return certificate_of(rows[0])


def find_certificates_by_user(database_id: int) -> Steps[dict[str, list[UserCertificate]]]:
    """Return the certificates of a database, by the name of their owner."""
    rows = yield Statement(
        "user_certificates.find_certificates_by_user",
        SELECT.replace(" from ", ", (select p.name from servicebroker.principals p where p.database_id = "
                       "certificates.database_id and p.principal_id = owner_id) from ", 1)
        + " where database_id = $1 order by 14, certificate_id",
        (database_id,),
    )  # fmt: skip
    certificates: dict[str, list[UserCertificate]] = {}
    for row in rows:
        certificates.setdefault(str(row[-1]), []).append(certificate_of(row))
    return certificates


def alter_certificate(user: User, operation: AlterCertificate, key: StoredKey | None) -> Steps[None]:
    """Change the clauses that the statement names. `key` is the new private key, None to keep the old one."""
    name, is_active = operation.name, operation.active_for_begin_dialog
    yield from authorize(user, operation.permission, certificate(name))
    existing = yield from find_certificate("alter", user.database_id, name)
    if is_active is not None:
        check_switch("ACTIVE FOR BEGIN_DIALOG", is_active)
    yield SQL(
        "alter_certificate",
        (
            existing.certificate_id,
            existing.is_active_for_begin_dialog if is_active is None else is_active,
            *(existing.key if key is None else key),
        ),
    )


def drop_certificate(definer: Definer, operation: DropCertificate) -> Steps[None]:
    """Delete an unused certificate."""
    user, name = definer.user, operation.name
    yield from authorize(user, operation.permission, certificate(name))
    existing = yield from find_certificate("drop", user.database_id, name)
    yield from _check_unused(user.database_id, existing)
    yield SQL("drop_certificate", (existing.certificate_id,))
    yield forget_permissions(user.database_id, Kind.CERTIFICATE, existing.certificate_id)


def _check_unused(database_id: int, certificate: UserCertificate) -> Steps[None]:
    """Refuse to drop a certificate that is mapped to a user, or that has signed a module.

    Raises:
        BrokerError: 15559 it is mapped to a user, 15352 it has signed a module.
    """
    rows = yield SQL("check_unused", (database_id, certificate.facts.thumbprint))
    is_mapped, has_signed = rows[0]
    if is_mapped:
        raise BrokerError(15559, certificate.name)
    if has_signed:
        raise BrokerError(15352, "certificate", certificate.name)
