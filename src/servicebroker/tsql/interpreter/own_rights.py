"""What who works may do: the answers to HAS_PERMS_BY_NAME and fn_my_permissions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from servicebroker.engine.security.own_permissions import permissions_on
from servicebroker.store.running import run
from servicebroker.tsql.interpreter.session_functions import KNOWN_BY
from servicebroker.tsql.translation.values.permission_functions import DATABASE, PERMISSIONS

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def _answer(machine: Machine, asked: str) -> int | str | None:
    function, *arguments = json.loads(asked)
    name, kind, *permission = (_value(machine, each) for each in arguments)
    user, login = machine.database.user, machine.context.person
    steps = permissions_on(user, login, name, (kind or "").upper())
    held = machine.context.ask(steps) if machine.transactions.doomed else run(machine.connection, steps)
    if function == "HAS_PERMS_BY_NAME":
        wanted = (permission[0] or "").upper()
        return None if held is None or not wanted else int(bool(held) if wanted == "ANY" else wanted in held)
    shown = machine.database.name if kind and kind.upper() == "DATABASE" else name or "server"
    return json.dumps([{"entity_name": shown, "subentity_name": "", "permission_name": one} for one in held or ()])


def _value(machine: Machine, argument: str | None) -> str | None:
    if argument is None or argument == DATABASE:
        return argument and str(machine.database.name)
    if argument.startswith("'"):
        return argument[1:]
    value = machine.frame.value_of(argument)
    return None if value is None else str(value)


KNOWN_BY[PERMISSIONS] = _answer
