"""CREATE, ALTER, DROP REMOTE SERVICE BINDING (docs/reference/rules.md#remote-service-bindings)."""

from __future__ import annotations

from servicebroker.engine.security.authorization import forget_permissions
from servicebroker.engine.security.principals import find_owner, find_principal
from servicebroker.model import names
from servicebroker.model.arguments import check_switch
from servicebroker.model.errors import BrokerError
from servicebroker.model.permissions import GUEST, Kind, User
from servicebroker.store.statements import Statement, Steps


def create_binding(
    user: User, name: str, to_service: str, remote_user: str, *, anonymous: bool, owner_id: int
) -> Steps[None]:
    """CREATE REMOTE SERVICE BINDING name AUTHORIZATION owner TO SERVICE to_service WITH USER = ..., ANONYMOUS = ...

    Raises:
        BrokerError: 9619 the service has one already, 2714 name taken, 15151 no such user, or one for whom this one may
            not act, 28083 a role, 402.
    """
    names.checked("remote service binding", name)
    names.checked("service", to_service, names.MAXIMUM_SERVICE_NAME)
    check_switch("ANONYMOUS", anonymous)
    remote_id = yield from _find_remote(user, remote_user)
    rows = yield Statement(
        "bindings.create_binding.insert_bindings",
        "insert into servicebroker.remote_service_bindings "
        "(database_id, name, owner_id, remote_service_name, remote_principal_id, is_anonymous_on) "
        "values ($1, $2, $3, $4, $5, $6) on conflict do nothing returning 1",
        (user.database_id, name, owner_id, to_service, remote_id, anonymous),
    )
    if not rows:
        taken = yield Statement(
            "bindings.create_binding.find_bindings",
            "select from servicebroker.remote_service_bindings where database_id = $1 and remote_service_name = $2",
            (user.database_id, to_service),
        )
        raise BrokerError(9619, name, to_service) if taken else BrokerError(2714, name)


def alter_binding(user: User, name: str, remote_user: str | None, anonymous: bool | None) -> Steps[None]:
    """ALTER REMOTE SERVICE BINDING: what is given changes, for conversations that begin from now on.

    Raises:
        BrokerError: 15151 no such binding or user, 28083 a role, 402 nothing given, or no switch.
    """
    names.checked("remote service binding", name)
    if remote_user is None and anonymous is None:
        raise BrokerError(402, "WITH", "empty", "at least one clause")
    if anonymous is not None:
        check_switch("ANONYMOUS", anonymous)
    remote_id = None if remote_user is None else (yield from _find_remote(user, remote_user))
    rows = yield Statement(
        "bindings.alter_binding",
        "update servicebroker.remote_service_bindings set remote_principal_id = coalesce($3, remote_principal_id), "
        "is_anonymous_on = coalesce($4, is_anonymous_on) "
        "where database_id = $1 and lower(name) = lower($2) returning 1",
        (user.database_id, name, remote_id, anonymous),
    )
    if not rows:
        raise BrokerError(15151, "alter", "remote service binding", name)


def drop_binding(user: User, name: str) -> Steps[None]:
    """DROP REMOTE SERVICE BINDING; conversations that have begun go on as they are.

    Raises:
        BrokerError: 15151 no such binding.
    """
    rows = yield Statement(
        "bindings.drop_binding",
        "delete from servicebroker.remote_service_bindings where database_id = $1 and lower(name) = lower($2) "
        "returning remote_service_binding_id",
        (user.database_id, names.checked("remote service binding", name)),
    )
    if not rows:
        raise BrokerError(15151, "drop", "remote service binding", name)
    yield forget_permissions(user.database_id, Kind.REMOTE_SERVICE_BINDING, rows[0][0])


def _find_remote(user: User, remote_user: str) -> Steps[int]:
    """The user of the USER clause. Only who may act as that user can bind a service to it."""
    found = yield from find_principal("find", user.database_id, remote_user)
    if found.is_role or found.principal_id == GUEST:
        raise BrokerError(28083, found.name)
    return (yield from find_owner(user, remote_user))
