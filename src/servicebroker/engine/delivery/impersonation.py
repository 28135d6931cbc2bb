"""The principal as which a conversation between two databases of this instance acts, by remote service bindings.

With a full binding it acts as the user who owns the certificate of the initiating service's owner in the target's
database; otherwise as public. The decision is made once, when the target's endpoint is created. Later changes of
certificates do not affect it.
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
        keeper_id: in the target's database: the owner of the certificate that the binding's user has; 0 for none.
        owner_id: in the initiator's database: the owner of the certificate that proves the principal; 0 for none.
        bound_id: in the initiator's database: the user of the binding; 0 if nothing was proved.
        why_public: the reason why a full binding proves nothing.
        waits: the reason why messages wait, if another process of the instance may be able to prove it.
    """

    principal_id: int = PUBLIC_ID
    keeper_id: int = 0
    owner_id: int = 0
    bound_id: int = 0
    why_public: str = ""
    waits: str = ""


def find_actor(catalog: Catalog, initiator: Endpoint, home: LocalService, now: datetime) -> Steps[Actor | None]:
    """Return the principal that the conversation acts as in another database; None if the binding is gone meanwhile."""
    for beginning in (yield from find_undecided([initiator.conversation_handle])):
        if beginning.binding is Binding.ANONYMOUS_ON:
            return Actor()
        if beginning.binding is Binding.ANONYMOUS_OFF and beginning.remote_id is not None:
            try:
                return (yield from _proved(catalog, beginning, beginning.remote_id, home, now))
            except BrokerError as reason:
                return Actor(waits=reason.text) if reason.number == 28054 else Actor(why_public=reason.text)
    return None


def _proved(catalog: Catalog, one: UndecidedDialog, bound_id: int, home: LocalService, now: datetime) -> Steps[Actor]:
    """Check that both sides have the private key of their certificate and know the other's certificate.

    Returns the principals. If the target lacks a valid certificate or its key, the initiator acts as public.

    Raises:
        BrokerError: a missing certificate or key; 28054 if only this process cannot open the initiator's key.
    """
    users = [(one.database_id, user) for user in (one.owner_id, bound_id)]
    found = yield from find_certificates_of(users)
    own = choose_signer(found[users[0]], one.owner_id, now)
    theirs = choose_certificate(found[users[1]], bound_id, now)
    yield from _open(catalog, one, own)
    there = yield from find_certificates(home.database_id, [own.facts.thumbprint, theirs.facts.thumbprint])
    known = {thumbprint: certificate for thumbprint, certificate in there.items() if certificate.facts.is_valid(now)}
    peer, keeper = known.get(own.facts.thumbprint), known.get(theirs.facts.thumbprint)
    if peer is None:
        return Actor(why_public=_UNKNOWN_OWNER)
    if keeper is None or keeper.key.encryption == NONE:
        return Actor(why_public=_UNKNOWN_TARGET)
    target = yield from find_target(home.database_id, home.service_id)
    refused = yield from refused_keeper(target, keeper.owner_id)
    if refused:
        raise refused
    return Actor(peer.owner_id, keeper.owner_id, one.owner_id, bound_id)


def _open(catalog: Catalog, one: UndecidedDialog, own: UserCertificate) -> Steps[None]:
    """Check that the broker can open the private key of the initiating service's owner."""
    if one.master_key is None or one.master_key.by_service_master_key is None:
        raise BrokerError(28050)
    keys = catalog.keys
    if keys is not None and keys.folder is None:
        rows = yield SQL("open")
        keys.locate(rows[0][0])
    master = None if keys is None else keys.master_key(one.master_key.by_service_master_key)
    if keys is None or master is None:
        raise BrokerError(28054, one.database, NO_SERVICE_MASTER_KEY)
    if keys.private_key(own.key.private_key, master) is None:
        raise BrokerError(9733, one.owner_id)
