"""CREATE, ALTER, DROP REMOTE SERVICE BINDING (docs/reference/rules.md#remote-service-bindings)."""

from __future__ import annotations

from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security.principals import find_owner, find_principal
from servicebroker.model import names
from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import GUEST_ID, Kind, User
from servicebroker.operations.bindings import (
    AlterRemoteServiceBinding,
    CreateRemoteServiceBinding,
    DropRemoteServiceBinding,
)
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


def create_remote_service_binding(definer: Definer, operation: CreateRemoteServiceBinding) -> Steps[None]:
    """Insert the binding."""
    user, name, to_service = definer.user, operation.name, operation.to_service
    yield from rights.authorize(user, operation.permission)
    owner_id = yield from find_owner(user, operation.authorization)
    names.checked("remote service binding", name)
    names.checked("service", to_service, names.MAXIMUM_SERVICE_NAME)
    check_switch("ANONYMOUS", operation.anonymous)
    remote_id = yield from _find_remote(user, operation.user)
    rows = yield SQL(
        "create_remote_service_binding.insert_bindings",
        (definer.database_id, name, owner_id, to_service, remote_id, operation.anonymous),
    )
    if not rows:
        taken = yield SQL("create_remote_service_binding.find_bindings", (definer.database_id, to_service))
        raise BrokerError(9619, name, to_service) if taken else BrokerError(2714, name)


def alter_remote_service_binding(definer: Definer, operation: AlterRemoteServiceBinding) -> Steps[None]:
    """Change the clauses that the statement names."""
    user, name, anonymous = definer.user, operation.name, operation.anonymous
    yield from rights.authorize(user, operation.permission, rights.remote_service_binding(name))
    names.checked("remote service binding", name)
    if operation.user is None and anonymous is None:
        raise BrokerError(402, "WITH", "without a clause", "given at least one")
    if anonymous is not None:
        check_switch("ANONYMOUS", anonymous)
    remote_id = None if operation.user is None else (yield from _find_remote(user, operation.user))
    rows = yield SQL("alter_remote_service_binding", (definer.database_id, name, remote_id, anonymous))
    if not rows:
        raise BrokerError(15151, "alter", "remote service binding", name, hint="See sys.remote_service_bindings.")


def drop_remote_service_binding(definer: Definer, operation: DropRemoteServiceBinding) -> Steps[None]:
    """Delete the binding."""
    name = operation.name
    yield from rights.authorize(definer.user, operation.permission, rights.remote_service_binding(name))
    rows = yield SQL(
        "drop_remote_service_binding",
        (definer.database_id, names.checked("remote service binding", name)),
    )
    if not rows:
        raise BrokerError(15151, "drop", "remote service binding", name, hint="See sys.remote_service_bindings.")
    yield rights.forget_permissions(definer.database_id, Kind.REMOTE_SERVICE_BINDING, rows[0][0])


def _find_remote(user: User, remote_user: str) -> Steps[int]:
    """Return the id of the user that the USER clause names. The caller needs the permission IMPERSONATE on that user.

    Raises:
        BrokerError: 28083 a role or guest, and what `find_owner` raises.
    """
    principal = yield from find_principal("find", user.database_id, remote_user)
    if principal.is_role or principal.principal_id == GUEST_ID:
        raise BrokerError(28083, principal.name)
    return (yield from find_owner(user, remote_user))
