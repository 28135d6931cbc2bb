"""What who works may do: the answers to HAS_PERMS_BY_NAME and fn_my_permissions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from servicebroker.engine.security.own_permissions import permissions_on
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import IMPLIED_BY, UNASKED
from servicebroker.store.running import run
from servicebroker.tsql.interpreter.procedures.session_functions import KNOWN_BY
from servicebroker.tsql.parser.token_reader import name_in
from servicebroker.tsql.translation.queries.sources import ObjectName
from servicebroker.tsql.translation.text_writer import PERMISSIONS, Writer
from servicebroker.tsql.translation.values.catalog_views import catalog_view
from servicebroker.tsql.translation.values.permission_functions import DATABASE

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_KNOWN = frozenset(name for _, name in IMPLIED_BY.keys() | UNASKED)


def _answer(machine: Machine, asked: str) -> int | str | None:
    function, *arguments = json.loads(asked)
    name, kind, *permission = (_value(machine, each) for each in arguments)
    held = _held(machine, name, (kind or "").upper())
    if function == "HAS_PERMS_BY_NAME":
        wanted = " ".join((permission[0] or "").upper().split())
        if held is None or (wanted != "ANY" and wanted not in _KNOWN):
            return None
        return int(bool(held) if wanted == "ANY" else wanted in held)
    shown = machine.database.name if kind and kind.upper() == "DATABASE" else name or "server"
    return json.dumps([{"entity_name": shown, "subentity_name": "", "permission_name": one} for one in held or ()])


def _held(machine: Machine, name: str | None, kind: str) -> list[str] | None:
    """What who works may do with it; None: there is no such thing."""
    user = machine.database.user
    if kind == "OBJECT" and name is not None:
        try:
            parsed = name_in(name)
            if parsed.schema.lower() in ("sys", "information_schema"):
                return ["SELECT"] if _is_view(machine, ObjectName(parsed.own, parsed.schema, parsed.database)) else None
            if parsed.database:
                user = machine.context.named(parsed.database).user
        except BrokerError:  # which is no name, or no database for who works
            return None
        if len(parsed.parts) > 3:
            return None
        name = ".".join("[" + part.replace("]", "]]") + "]" for part in (parsed.schema or "dbo", parsed.own))
    steps = permissions_on(user, machine.context.person, name, kind)
    return machine.context.ask(steps) if machine.transactions.doomed else run(machine.connection, steps)


def _is_view(machine: Machine, name: ObjectName) -> bool:
    """Whether the catalog has a view of that name."""
    scope = machine.queries.scope()
    view = catalog_view(Writer(scope), name)
    return view is not None and bool((scope.columns or {}).get(view.name))


def _value(machine: Machine, argument: str | None) -> str | None:
    if argument is None or argument == DATABASE:
        return argument and str(machine.database.name)
    if argument.startswith("'"):
        return argument[1:]
    value = machine.frame.value_of(argument)
    return None if value is None else str(value)


KNOWN_BY[PERMISSIONS] = _answer
