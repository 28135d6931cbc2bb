"""The stored security of conversations: certificates of both sides, and session keys.

`model/security/dialog_security.py` decides by them; `broker/dialog_security.py` opens and uses keys, and between
databases of this instance `engine/delivery/impersonation.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, NONE, SELECT, UserCertificate, certificate_of
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.dialog_security import Binding, choose
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Statement, Steps

SQL = SqlFile(__file__)


class Keys(NamedTuple):
    """The session keys of a conversation, encrypted by the master key of the database."""

    principal_id: int
    far_principal_id: int
    first_key_id: UUID
    first_key: bytes
    second_key_id: UUID | None = None
    second_key: bytes | None = None
    exchange: bytes | None = None


class UndecidedDialog(NamedTuple):
    """The facts that decide on the security of a conversation that begins here.

    `owner_id` owns the initiating service; `remote_id` is the user of the binding, None without one.
    """

    conversation_handle: UUID
    database_id: int
    database: str
    encryption: bool
    binding: Binding
    owner_id: int
    remote_id: int | None
    master_key: MasterKey | None


class _BeginningRow(NamedTuple):
    """A row of `find_undecided`; `is_anonymous` and `remote_id` are those of the binding."""

    conversation_handle: UUID
    database_id: int
    database: str
    encryption: bool
    is_anonymous: bool | None
    owner_id: int
    remote_id: int | None
    by_password: bytes | None
    by_service_master_key: bytes | None


def find_undecided(handles: Sequence[UUID]) -> Steps[list[UndecidedDialog]]:
    """Return those of these endpoints that are initiators with undecided security."""
    rows = yield SQL("find_undecided", (list(handles),))
    return [
        UndecidedDialog(
            row.conversation_handle,
            row.database_id,
            row.database,
            row.encryption,
            _BINDINGS[row.is_anonymous],
            row.owner_id,
            row.remote_id,
            None if row.by_password is None else MasterKey(row.by_password, row.by_service_master_key),
        )
        for row in map(_BeginningRow._make, rows)
    ]


_BINDINGS = {None: Binding.NO_BINDING, True: Binding.ANONYMOUS_ON, False: Binding.ANONYMOUS_OFF}


def find_certificates_of(owners: Iterable[tuple[int, int]]) -> Steps[dict[tuple[int, int], list[UserCertificate]]]:
    """Return the certificates of these users, each given by database and user id."""
    wanted = list(dict.fromkeys(owners))
    rows = yield Statement(
        "session_keys.find_certificates_of",
        SELECT.replace(" from ", ", database_id from ", 1)
        + " where (database_id, owner_id) in (select * from unnest($1::int[], $2::int[]))",
        ([database_id for database_id, _ in wanted], [owner_id for _, owner_id in wanted]),
    )
    found: dict[tuple[int, int], list[UserCertificate]] = {one: [] for one in wanted}
    for row in rows:
        certificate = certificate_of(row)
        found[row[-1], certificate.owner_id].append(certificate)
    return found


def choose_certificate(certificates: Sequence[UserCertificate], owner_id: int | None, now: datetime) -> UserCertificate:
    """Return the certificate of a user for a conversation that begins.

    Raises:
        BrokerError: 9731, 9767 there is none.
    """
    found = choose(certificates, now)
    if isinstance(found, int):
        raise BrokerError(found, owner_id)
    return found


def choose_signer(certificates: Sequence[UserCertificate], owner_id: int, now: datetime) -> UserCertificate:
    """Return the certificate of a user whose private key is needed.

    Raises:
        BrokerError: as `choose_certificate`, 9733 it has no private key, 9737 the key is encrypted by a password.
    """
    found = choose_certificate(certificates, owner_id, now)
    if found.key.encryption != BY_MASTER_KEY:
        raise BrokerError(9733 if found.key.encryption == NONE else 9737, owner_id)
    return found


def find_certificates(database_id: int, thumbprints: Sequence[bytes]) -> Steps[dict[bytes, UserCertificate]]:
    """Return the certificates of a database with these thumbprints."""
    rows = yield Statement(
        "session_keys.find_certificates",
        SELECT + " where database_id = $1 and thumbprint = any ($2::bytea[])",
        (database_id, list(thumbprints)),
    )
    found = [certificate_of(row) for row in rows]
    return {one.facts.thumbprint: one for one in found}


def save_keys(keys: Mapping[UUID, Keys]) -> Steps[None]:
    """Store the session keys of conversations that have none yet."""
    if not keys:
        return
    owners, far_owners, ids, firsts, second_ids, seconds, exchanges = zip(*keys.values(), strict=True)
    yield SQL(
        "save_keys",
        (
            *(list(keys), list(owners), list(far_owners), list(ids), Bodies(firsts)),
            *(list(second_ids), Bodies(seconds), Bodies(exchanges)),
        ),
    )


def save_exchange(handle: UUID, exchange: bytes) -> Statement:
    """Store our session key, wrapped and signed by other certificates than before."""
    return SQL("save_exchange", (handle, exchange))


def save_second_keys(keys: Mapping[UUID, tuple[UUID, bytes]]) -> Statement:
    """Save the keys of targets that initiators have learned: the identifier of each, and the key."""
    ids, secrets = zip(*keys.values(), strict=True)
    return SQL("save_second_keys", (list(keys), list(ids), Bodies(secrets)))
