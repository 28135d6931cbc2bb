"""ADD and DROP SIGNATURE: modules that certificates have signed may what the users of those certificates may, too.

The rules: docs/reference/permissions.md#signatures.
"""

from __future__ import annotations

from collections.abc import Iterable

from servicebroker.engine.security.authorization import authorize_login, find_rights
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO, NEEDS, Kind, Login, Securable
from servicebroker.store.statements import Statement, Steps


def add_signature(
    module_id: int, module: str, certificate: str, thumbprint: bytes, signature: bytes, *, is_counter: bool
) -> Steps[None]:
    """Keep the signature of a module.

    Raises:
        BrokerError: 15557 the certificate has signed it already.
    """
    rows = yield Statement(
        "module_signatures.add_signature",
        "insert into servicebroker.module_signatures (module_id, thumbprint, is_counter, signature) "
        "values ($1, $2, $3, $4) on conflict do nothing returning 1",
        (module_id, thumbprint, is_counter, signature),
    )
    if not rows:
        raise BrokerError(15557, module, certificate)


def drop_signature(
    module_id: int, module: str, certificate: str, thumbprint: bytes, *, is_counter: bool
) -> Steps[None]:
    """Forget the signature of a module.

    Raises:
        BrokerError: 15558 the certificate has not signed it.
    """
    rows = yield Statement(
        "module_signatures.drop_signature",
        "delete from servicebroker.module_signatures where module_id = $1 and thumbprint = $2 and is_counter = $3 "
        "returning 1",
        (module_id, thumbprint, is_counter),
    )
    if not rows:
        raise BrokerError(15558, f"signature of '{module}'", f"certificate '{certificate}'")


def forget_signatures(module_id: int) -> Steps[None]:
    """The module was altered: what was signed is not there any more."""
    yield Statement(
        "module_signatures.forget_signatures",
        "delete from servicebroker.module_signatures where module_id = $1",
        (module_id,),
    )


def users_of(database_id: int, signers: Iterable[bytes]) -> Steps[tuple[int, ...]]:
    """The users of a database that these certificates, by their thumbprints, stand for."""
    rows = yield Statement(
        "module_signatures.users_of",
        "select principal_id from servicebroker.principals where database_id = $1 "
        "and certificate_thumbprint = any ($2) order by principal_id",
        (database_id, list(signers)),
    )
    return tuple(principal_id for (principal_id,) in rows)


def logins_of(signers: Iterable[bytes]) -> Steps[list[Login]]:
    """The logins that these certificates stand for."""
    rows = yield Statement(
        "module_signatures.logins_of",
        "select name, login_id from servicebroker.logins where certificate_thumbprint = any ($1) order by login_id",
        (list(signers),),
    )
    return [Login(name, login_id) for name, login_id in rows]


def are_believed(database_id: int, database: str, signers: Iterable[bytes]) -> Steps[bool]:
    """Whether a database believes who a module of another one says it works as: AUTHENTICATE is granted to a signer."""
    given = list(signers)
    (need,) = NEEDS["AUTHENTICATE"]
    for principal_id in (yield from users_of(database_id, given)):
        rights = yield from find_rights(database_id, principal_id, database)
        if rights.has(need, Securable(Kind.DATABASE, 0, DBO, database)):
            return True
    for login in (yield from logins_of(given)):
        try:
            yield from authorize_login(login, "AUTHENTICATE SERVER")
        except BrokerError:
            continue
        return True
    return False
