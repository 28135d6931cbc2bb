"""Permission checks for the target of a conversation from another instance or database.

The rules: docs/reference/rules.md#dialog-security.
"""

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
    """Return error 11215 if the principal may not SEND to the service; otherwise None.

    The principal is the owner of the initiator's certificate, or public.
    """
    if (yield from _has(target, principal_id, "SEND", target.service)):
        return None
    return BrokerError(11215, principal_id, target.database_id, target.service.name)


def refused_keeper(target: Target, principal_id: int) -> Steps[BrokerError | None]:
    """Return error 28056 if the owner of the target's certificate has no CONTROL on the service; otherwise None.

    That certificate is the one with which the initiator has encrypted the session key.
    """
    if (yield from _has(target, principal_id, "CONTROL", target.service)):
        return None
    return BrokerError(28056, principal_id, target.database_id, target.service.name)


def refused_owner(target: Target) -> Steps[BrokerError | None]:
    """Return error 8401 if the owner of the target service was denied RECEIVE on its queue; otherwise None.

    The permission need not be granted.
    """
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
