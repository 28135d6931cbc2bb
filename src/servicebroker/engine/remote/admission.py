"""Whether a conversation that comes from another instance may begin here (docs/reference/rules.md#dialog-security)."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.security.authorization import find_rights
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO, Kind, Need, Securable, is_denied
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class Target(NamedTuple):
    """The service that somebody wants to talk to, and its queue."""

    database_id: int
    service: Securable
    queue: Securable


def find_target(database_id: int, service_id: int) -> Steps[Target]:
    """The service of that number."""
    rows = yield SQL("find_target", (service_id,))
    ((owner_id, name, queue_id, queue_owner_id, queue_name),) = rows
    return Target(
        database_id,
        Securable(Kind.SERVICE, service_id, owner_id, name),
        Securable(Kind.QUEUE, queue_id, queue_owner_id, queue_name),
    )


def refused_sender(target: Target, principal_id: int) -> Steps[BrokerError | None]:
    """11215 when this principal may not SEND to the service: the one behind the certificate, or public."""
    if (yield from _has(target, principal_id, "SEND", target.service)):
        return None
    return BrokerError(11215, principal_id, target.database_id, target.service.name)


def refused_keeper(target: Target, principal_id: int) -> Steps[BrokerError | None]:
    """28056 when the owner of the certificate that the session key was wrapped for has no CONTROL on the service."""
    if (yield from _has(target, principal_id, "CONTROL", target.service)):
        return None
    return BrokerError(28056, principal_id, target.database_id, target.service.name)


def refused_owner(target: Target) -> Steps[BrokerError | None]:
    """8401 when RECEIVE on its queue was denied to the owner of the target service; it need not have been granted."""
    owner_id = target.service.owner_id
    if owner_id == DBO:
        return None
    rights = yield from find_rights(target.database_id, owner_id, target.queue.name)
    if is_denied(rights.identities, "RECEIVE", target.queue, rights.entries):
        return BrokerError(8401, owner_id, target.database_id, target.queue.name)
    return None


def _has(target: Target, principal_id: int, permission: str, on: Securable) -> Steps[bool]:
    if principal_id == DBO:
        return True
    rights = yield from find_rights(target.database_id, principal_id, on.name)
    return rights.has(Need(on.kind, permission, 0), on)
