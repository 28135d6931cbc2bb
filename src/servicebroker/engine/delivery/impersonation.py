"""Impersonation: as which principal of the target's database a conversation between two databases acts.

A remote service binding in the initiator's database decides. With a full binding, the conversation acts as a user of
the target's database: the user who owns there the certificate of the initiating service's owner. Otherwise it acts as
public. The decision is made when the target's endpoint is created; later changes of certificates do not affect it.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.endpoints import Endpoint
from servicebroker.engine.remote.admission import find_target, refused_keeper
from servicebroker.engine.remote.local_topology import LocalService
from servicebroker.engine.security.session_keys import (
    UndecidedDialog,
    choose_certificate,
    choose_signer,
    find_certificates,
    find_certificates_of,
    find_undecided,
)
from servicebroker.engine.security.user_certificates import NONE, UserCertificate
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.dialog_security import NO_SERVICE_MASTER_KEY, Binding
from servicebroker.model.security.permissions import PUBLIC_ID
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


_UNKNOWN_OWNER = "Its database has no valid certificate of the owner of the initiating service."
_UNKNOWN_TARGET = "Its database has no valid certificate, with its private key, that the user of the binding has too."


class Actor(NamedTuple):
    """The principal that a conversation acts as.

    Attributes:
        principal_id: the principal in the target's database.
        keeper_id: in the target's database, the owner of the certificate that the binding's user also has; 0 for none.
        owner_id: in the initiator's database, the owner of the certificate that proves the principal; 0 for none.
        bound_id: in the initiator's database, the user of the binding; 0 if no certificate proves a principal.
        why_public: the reason why a conversation with a full binding acts as public.
        waits: the reason why messages wait: this process cannot open a key, another one of the instance may.
    """

    principal_id: int = PUBLIC_ID
    keeper_id: int = 0
    owner_id: int = 0
    bound_id: int = 0
    why_public: str = ""
    waits: str = ""


def find_actor(catalog: Catalog, initiator: Endpoint, home: LocalService, now: datetime) -> Steps[Actor | None]:
    """Return the principal as which the conversation acts in another database; None if the binding was dropped."""
    for dialog in (yield from find_undecided([initiator.conversation_handle])):
        if dialog.binding is Binding.ANONYMOUS_ON:
            return Actor()
        if dialog.binding is Binding.ANONYMOUS_OFF and dialog.remote_id is not None:
            try:
                return (yield from _prove(catalog, dialog, dialog.remote_id, home, now))
            except BrokerError as reason:
                return Actor(waits=reason.text) if reason.number == 28054 else Actor(why_public=reason.text)
    return None


def _prove(catalog: Catalog, dialog: UndecidedDialog, bound_id: int, home: LocalService, now: datetime) -> Steps[Actor]:
    """Check that each side has the private key of its certificate and knows the other side's certificate.

    Returns the principals. If the target lacks a valid certificate or its key, the initiator acts as public.

    Raises:
        BrokerError: a missing certificate or key; 28054 if only this process cannot open the initiator's key.
    """
    users = [(dialog.database_id, user) for user in (dialog.owner_id, bound_id)]
    certificates = yield from find_certificates_of(users)
    own = choose_signer(certificates[users[0]], dialog.owner_id, now)
    bound = choose_certificate(certificates[users[1]], bound_id, now)
    yield from _open(catalog, dialog, own)
    in_target = yield from find_certificates(home.database_id, [own.facts.thumbprint, bound.facts.thumbprint])
    valid = {
        thumbprint: certificate for thumbprint, certificate in in_target.items() if certificate.facts.is_valid(now)
    }
    peer, keeper = valid.get(own.facts.thumbprint), valid.get(bound.facts.thumbprint)
    if peer is None:
        return Actor(why_public=_UNKNOWN_OWNER)
    if keeper is None or keeper.key.encryption == NONE:
        return Actor(why_public=_UNKNOWN_TARGET)
    target = yield from find_target(home.database_id, home.service_id)
    refused = yield from refused_keeper(target, keeper.owner_id)
    if refused:
        raise refused
    return Actor(peer.owner_id, keeper.owner_id, dialog.owner_id, bound_id)


def _open(catalog: Catalog, dialog: UndecidedDialog, own: UserCertificate) -> Steps[None]:
    """Check that this process can open the private key of the initiating service's owner.

    Raises:
        BrokerError: 28050 no master key, 28054 no service master key, 9733 the key cannot be opened.
    """
    if dialog.master_key is None or dialog.master_key.by_service_master_key is None:
        raise BrokerError(28050)
    keys = catalog.keys
    if keys is not None and keys.folder is None:
        rows = yield SQL("open")
        keys.locate(rows[0][0])
    master = None if keys is None else keys.master_key(dialog.master_key.by_service_master_key)
    if keys is None or master is None:
        raise BrokerError(28054, dialog.database, NO_SERVICE_MASTER_KEY)
    if keys.private_key(own.key.private_key, master) is None:
        raise BrokerError(9733, dialog.owner_id)
