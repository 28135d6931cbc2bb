"""ADD and DROP SIGNATURE: a signed module also has the permissions of the users of the signing certificates.

The rules: docs/reference/permissions.md#signatures.
"""

from __future__ import annotations

from collections.abc import Iterable

from servicebroker.engine.security.authorization import authorize_login, find_rights
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_ID, NEEDS, Kind, Login, Securable
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


def add_signature(
    module_id: int, module: str, certificate: str, thumbprint: bytes, signature: bytes, *, is_counter: bool
) -> Steps[None]:
    """Store the signature of a module.

    Raises:
        BrokerError: 15557 the module already has a signature by the certificate.
    """
    rows = yield SQL("add_signature", (module_id, thumbprint, is_counter, signature))
    if not rows:
        raise BrokerError(15557, module, certificate)


def drop_signature(
    module_id: int, module: str, certificate: str, thumbprint: bytes, *, is_counter: bool
) -> Steps[None]:
    """Delete the signature of a module.

    Raises:
        BrokerError: 15558 the module has no signature by the certificate.
    """
    rows = yield SQL("drop_signature", (module_id, thumbprint, is_counter))
    if not rows:
        raise BrokerError(15558, f"signature of '{module}'", f"certificate '{certificate}'")


def forget_signatures(module_id: int) -> Steps[None]:
    """Delete the signatures of an altered module, which are valid for its old text only."""
    yield SQL("forget_signatures", (module_id,))


def find_certificate_users(database_id: int, signers: Iterable[bytes]) -> Steps[tuple[int, ...]]:
    """Return the users of a database that are mapped to the certificates with these thumbprints."""
    rows = yield SQL("find_certificate_users", (database_id, list(signers)))
    return tuple(principal_id for (principal_id,) in rows)


def find_logins(signers: Iterable[bytes]) -> Steps[list[Login]]:
    """Return the logins that are mapped to the certificates with these thumbprints."""
    rows = yield SQL("find_logins", (list(signers),))
    return [Login(name, login_id) for name, login_id in rows]


def are_trusted(database_id: int, database: str, signers: Iterable[bytes]) -> Steps[bool]:
    """Check whether a database trusts a signed module of another database.

    A user or login of one of the certificates needs AUTHENTICATE or AUTHENTICATE SERVER.
    """
    thumbprints = list(signers)
    (need,) = NEEDS["AUTHENTICATE"]
    for principal_id in (yield from find_certificate_users(database_id, thumbprints)):
        rights = yield from find_rights(database_id, principal_id, database)
        if rights.has(need, Securable(Kind.DATABASE, 0, DBO_ID, database)):
            return True
    for login in (yield from find_logins(thumbprints)):
        try:
            yield from authorize_login(login, "AUTHENTICATE SERVER")
        except BrokerError:
            continue
        return True
    return False
