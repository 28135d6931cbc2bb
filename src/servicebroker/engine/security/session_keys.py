"""Dialog security, its statements: find the certificates of both sides, and store session keys.

`model/security/dialog_security.py` chooses the security of a conversation. The keys are decrypted and used in
`broker/dialog_security.py`, and between databases of this instance in `engine/delivery/impersonation.py`.
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
    """The session keys of a conversation, encrypted by the master key of the database.

    Attributes:
        principal_id: the owner of this side's certificate.
        far_principal_id: the owner of the peer's certificate.
        first_key_id, first_key: the key for the initiator's messages.
        second_key_id, second_key: the key for the target's messages.
        exchange: the key exchange that is sent to the peer with the first messages.
    """

    principal_id: int
    far_principal_id: int
    first_key_id: UUID
    first_key: bytes
    second_key_id: UUID | None = None
    second_key: bytes | None = None
    exchange: bytes | None = None


class UndecidedDialog(NamedTuple):
    """The facts that decide on the security of a conversation whose initiator is in this instance.

    `owner_id` is the owner of the initiating service; `remote_id` is the user of the binding, None without a binding.
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
    """A row of `find_undecided`. `is_anonymous` and `remote_id` are columns of the binding."""

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
    """Return the initiators among these endpoints whose security is undecided."""
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
    """Return the certificates of these users. A user: database id and principal id."""
    wanted = list(dict.fromkeys(owners))
    rows = yield Statement(
        "session_keys.find_certificates_of",
        SELECT.replace(" from ", ", database_id from ", 1)
        + " where (database_id, owner_id) in (select * from unnest($1::int[], $2::int[]))",
        ([database_id for database_id, _ in wanted], [owner_id for _, owner_id in wanted]),
    )
    certificates: dict[tuple[int, int], list[UserCertificate]] = {key: [] for key in wanted}
    for row in rows:
        certificate = certificate_of(row)
        certificates[row[-1], certificate.owner_id].append(certificate)
    return certificates


def choose_certificate(certificates: Sequence[UserCertificate], owner_id: int | None, now: datetime) -> UserCertificate:
    """Choose the certificate of a user for a new conversation.

    Raises:
        BrokerError: 9731, 9767 the user has no suitable certificate.
    """
    chosen = choose(certificates, now)
    if isinstance(chosen, int):
        raise BrokerError(chosen, owner_id)
    return chosen


def choose_signer(certificates: Sequence[UserCertificate], owner_id: int, now: datetime) -> UserCertificate:
    """Choose the certificate of a user for a new conversation that needs the private key.

    Raises:
        BrokerError: as `choose_certificate`, 9733 no private key, 9737 the key is encrypted by a password.
    """
    certificate = choose_certificate(certificates, owner_id, now)
    if certificate.key.encryption != BY_MASTER_KEY:
        raise BrokerError(9733 if certificate.key.encryption == NONE else 9737, owner_id)
    return certificate


def find_certificates(database_id: int, thumbprints: Sequence[bytes]) -> Steps[dict[bytes, UserCertificate]]:
    """Return the certificates of a database with these thumbprints."""
    rows = yield Statement(
        "session_keys.find_certificates",
        SELECT + " where database_id = $1 and thumbprint = any ($2::bytea[])",
        (database_id, list(thumbprints)),
    )
    certificates = [certificate_of(row) for row in rows]
    return {certificate.facts.thumbprint: certificate for certificate in certificates}


def save_keys(keys: Mapping[UUID, Keys]) -> Steps[None]:
    """Store the session keys of conversations that have no keys yet."""
    if not keys:
        return
    owners, peer_owners, ids, firsts, second_ids, seconds, exchanges = zip(*keys.values(), strict=True)
    yield SQL(
        "save_keys",
        (
            *(list(keys), list(owners), list(peer_owners), list(ids), Bodies(firsts)),
            *(list(second_ids), Bodies(seconds), Bodies(exchanges)),
        ),
    )


def save_exchange(handle: UUID, exchange: bytes) -> Statement:
    """Replace the stored key exchange, after this side's key was encrypted and signed with other certificates."""
    return SQL("save_exchange", (handle, exchange))


def save_second_keys(keys: Mapping[UUID, tuple[UUID, bytes]]) -> Statement:
    """Store the targets' keys that initiators have received. A key: its identifier and its encrypted bytes."""
    ids, secrets = zip(*keys.values(), strict=True)
    return SQL("save_second_keys", (list(keys), list(ids), Bodies(secrets)))
