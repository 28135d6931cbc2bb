"""The permissions of the current principal on an object: HAS_PERMS_BY_NAME and fn_my_permissions of T-SQL."""

from __future__ import annotations

from collections.abc import Callable

from servicebroker.engine.security.authorization import (
    INSTANCE,
    Lookup,
    certificate,
    contracts,
    find_login_rights,
    find_rights,
    message_types,
    remote_service_binding,
    route,
    schema,
    service,
    user_named,
)
from servicebroker.engine.security.tsql_objects import look_up_object
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_ID, IMPLIED_BY, Kind, Login, Securable, User, is_allowed
from servicebroker.store.statements import Steps

_LOOKUPS: dict[str, Callable[[str], Lookup]] = {
    "OBJECT": look_up_object,
    "SCHEMA": schema,
    "USER": user_named,
    "MESSAGE TYPE": lambda name: message_types([name]),
    "CONTRACT": lambda name: contracts([name]),
    "SERVICE": service,
    "REMOTE SERVICE BINDING": remote_service_binding,
    "ROUTE": route,
    "CERTIFICATE": certificate,
}


def permissions_on(user: User, login: Login, name: str | None, kind: str) -> Steps[list[str] | None]:
    """Return the names of the permissions on an object, in order; None if no such object exists.

    They are those of `login` for the kinds '' and SERVER (the instance), otherwise those of `user`. `name` is None for
    the instance or the database itself.
    """
    if kind in ("", "SERVER"):
        if name is not None:
            return None
        rights = yield from find_login_rights(login)
        named = _permissions_of(Kind.SERVER)
        return [
            permission
            for permission in named
            if login.is_administrator or is_allowed(rights.identities, permission, INSTANCE, rights.entries)
        ]
    securables: list[Securable] = []
    if kind == "DATABASE":
        if name is None or name.strip("[]").lower() == user.database.lower():
            securables = [Securable(Kind.DATABASE, 0, DBO_ID, user.database)]
    elif kind in _LOOKUPS and name is not None:
        try:
            securables = yield from _LOOKUPS[kind](name)(user)
        except BrokerError:  # the name is not a name
            return None
    if not securables:
        return None
    on = securables[0]
    rights = yield from find_rights(user.database_id, user.principal_id, user.name, user.also)
    return [
        permission
        for permission in _permissions_of(on.kind)
        if is_allowed(rights.identities, permission, on, rights.entries)
    ]


def _permissions_of(kind: Kind) -> list[str]:
    return sorted(name for owner_kind, name in IMPLIED_BY if owner_kind is kind)
