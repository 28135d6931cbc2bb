"""Permission checks for a conversation that another instance begins here (docs/reference/rules.md#dialog-security)."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.security.authorization import find_rights
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_ID, Kind, Need, Securable, is_denied
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class Target(NamedTuple):
    """The target service of a new conversation, and its queue."""

    database_id: int
    service: Securable
    queue: Securable


def find_target(database_id: int, service_id: int) -> Steps[Target]:
    """Return the service of that id as a target."""
    rows = yield SQL("find_target", (service_id,))
    ((owner_id, name, queue_id, queue_owner_id, queue_name),) = rows
    return Target(
        database_id,
        Securable(Kind.SERVICE, service_id, owner_id, name),
        Securable(Kind.QUEUE, queue_id, queue_owner_id, queue_name),
    )


def refused_sender(target: Target, principal_id: int) -> Steps[BrokerError | None]:
    """Return 11215 if this principal, the certificate's owner or public, may not SEND to the service; else None."""
    if (yield from _has(target, principal_id, "SEND", target.service)):
        return None
    return BrokerError(11215, principal_id, target.database_id, target.service.name)


def refused_keeper(target: Target, principal_id: int) -> Steps[BrokerError | None]:
    """Return 28056 if the owner of the certificate that wraps the session key has no CONTROL on the service."""
    if (yield from _has(target, principal_id, "CONTROL", target.service)):
        return None
    return BrokerError(28056, principal_id, target.database_id, target.service.name)


def refused_owner(target: Target) -> Steps[BrokerError | None]:
    """Return 8401 if the owner of the target service was denied RECEIVE on its queue; it need not be granted."""
    owner_id = target.service.owner_id
    if owner_id == DBO_ID:
        return None
    rights = yield from find_rights(target.database_id, owner_id, target.queue.name)
    if is_denied(rights.identities, "RECEIVE", target.queue, rights.entries):
        return BrokerError(8401, owner_id, target.database_id, target.queue.name)
    return None


def _has(target: Target, principal_id: int, permission: str, on: Securable) -> Steps[bool]:
    if principal_id == DBO_ID:
        return True
    rights = yield from find_rights(target.database_id, principal_id, on.name)
    return rights.has(Need(on.kind, permission, 0), on)
