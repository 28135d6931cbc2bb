"""CREATE, ALTER, DROP REMOTE SERVICE BINDING (docs/reference/rules.md#remote-service-bindings)."""

from __future__ import annotations

from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security.principals import find_owner, find_principal
from servicebroker.model import names
from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import GUEST, Kind, User
from servicebroker.store.statements import Statement, Steps


def create_remote_service_binding(
    definer: User, name: str, *, to_service: str, user: str, anonymous: bool = False, authorization: str | None = None
) -> Steps[None]:
    """CREATE REMOTE SERVICE BINDING: conversations with that service are secured for the owner of a certificate.

    Args:
        name: compared without case.
        to_service: the remote service, compared byte by byte.
        user: whose certificate the remote service has.
        anonymous: the remote side does not learn who begins the conversation, and works as public.
        authorization: the owner; the user that this object works as when it is not given.

    Raises:
        BrokerError: 9619 the service has one already, 2714 name taken, 28083 the user is a role, 15151 no such
            user, or one for whom this one may not act, 262, 402.
    """
    yield from rights.authorize(definer, "CREATE REMOTE SERVICE BINDING")
    owner_id = yield from find_owner(definer, authorization)
    names.checked("remote service binding", name)
    names.checked("service", to_service, names.MAXIMUM_SERVICE_NAME)
    check_switch("ANONYMOUS", anonymous)
    remote_id = yield from _find_remote(definer, user)
    rows = yield Statement(
        "bindings.create_remote_service_binding.insert_bindings",
        "insert into servicebroker.remote_service_bindings "
        "(database_id, name, owner_id, remote_service_name, remote_principal_id, is_anonymous_on) "
        "values ($1, $2, $3, $4, $5, $6) on conflict do nothing returning 1",
        (definer.database_id, name, owner_id, to_service, remote_id, anonymous),
    )
    if not rows:
        taken = yield Statement(
            "bindings.create_remote_service_binding.find_bindings",
            "select from servicebroker.remote_service_bindings where database_id = $1 and remote_service_name = $2",
            (definer.database_id, to_service),
        )
        raise BrokerError(9619, name, to_service) if taken else BrokerError(2714, name)


def alter_remote_service_binding(
    definer: User, name: str, *, user: str | None = None, anonymous: bool | None = None
) -> Steps[None]:
    """ALTER REMOTE SERVICE BINDING: what is given changes, for conversations that begin from now on.

    Raises:
        BrokerError: 15151 no such binding or user, 28083 the user is a role, 402.
    """
    yield from rights.authorize(definer, "ALTER REMOTE SERVICE BINDING", rights.remote_service_binding(name))
    names.checked("remote service binding", name)
    if user is None and anonymous is None:
        raise BrokerError(402, "WITH", "empty", "at least one clause")
    if anonymous is not None:
        check_switch("ANONYMOUS", anonymous)
    remote_id = None if user is None else (yield from _find_remote(definer, user))
    rows = yield Statement(
        "bindings.alter_remote_service_binding",
        "update servicebroker.remote_service_bindings set remote_principal_id = coalesce($3, remote_principal_id), "
        "is_anonymous_on = coalesce($4, is_anonymous_on) "
        "where database_id = $1 and lower(name) = lower($2) returning 1",
        (definer.database_id, name, remote_id, anonymous),
    )
    if not rows:
        raise BrokerError(15151, "alter", "remote service binding", name)


def drop_remote_service_binding(definer: User, name: str) -> Steps[None]:
    """DROP REMOTE SERVICE BINDING; conversations that have begun go on as they are.

    Raises:
        BrokerError: 15151 no such binding.
    """
    yield from rights.authorize(definer, "DROP REMOTE SERVICE BINDING", rights.remote_service_binding(name))
    rows = yield Statement(
        "bindings.drop_remote_service_binding",
        "delete from servicebroker.remote_service_bindings where database_id = $1 and lower(name) = lower($2) "
        "returning remote_service_binding_id",
        (definer.database_id, names.checked("remote service binding", name)),
    )
    if not rows:
        raise BrokerError(15151, "drop", "remote service binding", name)
    yield rights.forget_permissions(definer.database_id, Kind.REMOTE_SERVICE_BINDING, rows[0][0])


def _find_remote(definer: User, remote_user: str) -> Steps[int]:
    """The user of the USER clause. Only who may act as that user can bind a service to it."""
    found = yield from find_principal("find", definer.database_id, remote_user)
    if found.is_role or found.principal_id == GUEST:
        raise BrokerError(28083, found.name)
    return (yield from find_owner(definer, remote_user))
