"""HAS_PERMS_BY_NAME and fn_my_permissions: the permissions of the current principal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from servicebroker.engine.security.own_permissions import permissions_on
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import bracketed
from servicebroker.model.security.permissions import IMPLIED_BY, UNASKED
from servicebroker.store.running import run
from servicebroker.tsql.interpreter.procedures.session_functions import PREFIXED_FUNCTIONS
from servicebroker.tsql.parser.token_reader import parse_name
from servicebroker.tsql.translation.queries.sources import ObjectName
from servicebroker.tsql.translation.text_writer import PERMISSIONS, Writer
from servicebroker.tsql.translation.values.catalog_views import find_catalog_view
from servicebroker.tsql.translation.values.permission_functions import CURRENT_DATABASE

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_PERMISSION_NAMES = frozenset(name for _, name in IMPLIED_BY.keys() | UNASKED)


def _answer_permission_query(machine: Machine, question: str) -> int | str | None:
    """Return the result of HAS_PERMS_BY_NAME or fn_my_permissions. The call is JSON: the function and its arguments.

    HAS_PERMS_BY_NAME returns 1, 0 or None for an unknown name, fn_my_permissions its rows as JSON.
    """
    function, *arguments = json.loads(question)
    name, kind, *rest = (_argument_value(machine, argument) for argument in arguments)
    permissions = _find_held_permissions(machine, name, (kind or "").upper())
    if function == "HAS_PERMS_BY_NAME":
        permission_name = " ".join((rest[0] or "").upper().split())
        if permissions is None or (permission_name != "ANY" and permission_name not in _PERMISSION_NAMES):
            return None
        return int(bool(permissions) if permission_name == "ANY" else permission_name in permissions)
    entity = machine.database.name if kind and kind.upper() == "DATABASE" else name or "server"
    return json.dumps(
        [{"entity_name": entity, "subentity_name": "", "permission_name": held_name} for held_name in permissions or ()]
    )


def _find_held_permissions(machine: Machine, name: str | None, kind: str) -> list[str] | None:
    """Return the permissions on a securable, None if it does not exist."""
    user = machine.database.user
    if kind == "OBJECT" and name is not None:
        try:
            object_name = parse_name(name)
            if object_name.schema.lower() in ("sys", "information_schema"):
                view = ObjectName(object_name.object, object_name.schema, object_name.database)
                return ["SELECT"] if _is_catalog_view(machine, view) else None
            if object_name.database:
                user = machine.context.database_named(object_name.database).user
        except BrokerError:  # no name, or a database that the session may not enter
            return None
        if len(object_name.parts) > 3:
            return None
        name = bracketed(object_name.schema or "dbo", object_name.object)
    steps = permissions_on(user, machine.context.server_login, name, kind)
    return machine.context.ask(steps) if machine.transactions.is_doomed else run(machine.connection, steps)


def _is_catalog_view(machine: Machine, name: ObjectName) -> bool:
    """Return True if the catalog has a view of that name."""
    scope = machine.queries.scope()
    view = find_catalog_view(Writer(scope), name)
    return view is not None and bool((scope.columns or {}).get(view.name))


def _argument_value(machine: Machine, argument: str | None) -> str | None:
    """Return the value of an argument: the current database, a literal, or a variable."""
    if argument is None or argument == CURRENT_DATABASE:
        return argument and str(machine.database.name)
    if argument.startswith("'"):
        return argument[1:]
    value = machine.frame.value_of(argument)
    return None if value is None else str(value)


PREFIXED_FUNCTIONS[PERMISSIONS] = _answer_permission_query
