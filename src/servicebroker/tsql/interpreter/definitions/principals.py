"""Logins, users, roles, schemas, permissions and owners, each as the method of the API that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servicebroker import operations
from servicebroker.engine.security.authorization import authorize, authorize_on_login, user_named
from servicebroker.engine.security.logins import switch_login
from servicebroker.engine.security.tsql_objects import create_schema, forget_schema, schema_to_drop
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import IMPLIED_BY, UNASKED, Kind
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.context import MASTER, check_alone
from servicebroker.tsql.interpreter.conversations import written
from servicebroker.tsql.interpreter.definitions.binding import bound
from servicebroker.tsql.interpreter.definitions.ddl_events import tell_of_permission
from servicebroker.tsql.interpreter.definitions.objects import defines, drop, refuses
from servicebroker.tsql.interpreter.definitions.owners import check_authorization, tell_of_owner
from servicebroker.tsql.interpreter.definitions.transport import check_endpoint_permission, connect_on_endpoint
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.statement_errors import Message, TsqlError, unsupported
from servicebroker.tsql.syntax import Definition, Name, Permission
from servicebroker.tsql.translation.text_writer import string

_OBJECTS = {
    "SERVICE": "service",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
    "REMOTE SERVICE BINDING": "remote_service_binding",
    "CERTIFICATE": "certificate",
    "USER": "user",
    "SCHEMA": "schema",
}
_KINDS = {
    "": (Kind.SERVER, Kind.DATABASE),
    "DATABASE": (Kind.DATABASE,),
    "SCHEMA": (Kind.SCHEMA,),
    "OBJECT": (Kind.OBJECT,),
}
OF_THE_INSTANCE = frozenset(name for kind, name in IMPLIED_BY if kind is Kind.SERVER)
NOT_KEPT = frozenset({"TYPE", "XML SCHEMA COLLECTION", "ROLE"})  # permissions on them
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE", "REFERENCES")


@defines("CREATE", "LOGIN")
def _create_login(machine: Machine, statement: Definition) -> None:
    """Nobody opens a session as a login here: PostgreSQL lets in. FROM WINDOWS it names a peer of the network."""
    check_alone(machine, "CREATE LOGIN")
    machine.context.demand("CREATE LOGIN")
    machine.instance.run(bound(machine, statement, operations.CreateLogin))


@defines("ALTER", "LOGIN")
def _alter_login(machine: Machine, statement: Definition) -> None:
    """A password, a default database: nothing of it lets anybody in here, and ENABLE or DISABLE peers alone."""
    name, state = statement.name.own, statement.clauses.get("state")
    machine.context.ask(authorize_on_login(machine.context.person, "ALTER LOGIN", name))
    if state is not None:
        machine.transactions.check()
        machine.context.ask(switch_login(name, is_disabled=state == "DISABLE", who=machine.login))


@refuses("ALTER", "LOGIN")
def _only_what_lets_nobody_in(statement: Definition) -> None:
    if "name" in statement.clauses:
        raise unsupported("ALTER LOGIN WITH NAME", "Create a login of the new name.", statement.line)


@defines("DROP", "LOGIN")
def _drop_login(machine: Machine, statement: Definition) -> None:
    check_alone(machine, "DROP LOGIN")
    machine.context.demand("DROP LOGIN", "login", statement.name.own)
    drop(statement, lambda: machine.instance.run(operations.DropLogin(statement.name.own)))


@defines("CREATE", "USER")
def _create_user(machine: Machine, statement: Definition) -> None:
    """FOR LOGIN or CERTIFICATE; WITHOUT LOGIN; without any, for the login of the same name when there is one."""
    clauses, name = statement.clauses, statement.name.own
    of_its_name = not clauses.keys() & {"for_login", "from_certificate", "without_login"} and machine.is_login(name)
    login = {"for_login": name} if of_its_name else {}
    machine.database.run(bound(machine, statement, operations.CreateUser, **login))


@defines("ALTER", "USER")
def _alter_user(machine: Machine, statement: Definition) -> None:
    user, name = machine.context.database.user, statement.name.own
    machine.context.ask(authorize(user, "ALTER USER", user_named(name)))


@refuses("ALTER", "USER")
def _only_dbo(statement: Definition) -> None:
    if set(statement.clauses) - {"default_schema"}:
        raise unsupported("ALTER USER", "Drop the user and create it again.", statement.line)
    if statement.clauses["default_schema"].lower() != "dbo":
        raise unsupported("A DEFAULT_SCHEMA other than dbo", "Write the schema before the name.", statement.line)


@defines("CREATE", "ROLE")
def _create_role(machine: Machine, statement: Definition) -> None:
    check_authorization(machine, statement)
    machine.database.run(operations.CreateRole(statement.name.own))
    tell_of_owner(machine, "role", statement.clauses.get("authorization"))


@defines("ALTER", "ROLE")
def _alter_role(machine: Machine, statement: Definition) -> None:
    clauses, role = statement.clauses, statement.name.own
    change_member(machine, role, clauses.get("add_member") or clauses["drop_member"], add="add_member" in clauses)


def change_member(machine: Machine, role: str, member: str, *, add: bool) -> None:
    """ALTER ROLE role ADD or DROP MEMBER member."""
    machine.database.run((operations.AddRoleMember if add else operations.DropRoleMember)(role, member))


@defines("CREATE", "SCHEMA")
def _create_schema(machine: Machine, statement: Definition) -> None:
    name, database = statement.name.own, machine.context.database
    machine.transactions.check()
    check_authorization(machine, statement)
    with machine.whole():
        schema = machine.context.ask(create_schema(database.user, name))
        own = quoted(schema)
        machine.queries.define(f"create schema if not exists {own}; comment on schema {own} is {string(name)}")
    tell_of_owner(machine, "schema", statement.clauses.get("authorization"))


@defines("DROP", "SCHEMA")
def _drop_schema(machine: Machine, statement: Definition) -> None:
    name, database = statement.name.own, machine.context.database
    machine.transactions.check()

    def work() -> None:
        with machine.whole():
            schema = machine.context.ask(schema_to_drop(database.user, name))
            machine.queries.define(f"drop schema if exists {quoted(schema)}")
            machine.context.ask(forget_schema(database.user, name))

    drop(statement, work)


# ---------------------------------------------------------------- permissions and owners


@runs(Permission)
def _permission(machine: Machine, statement: Permission) -> None:
    check_permission(statement)
    if statement.kind == "ENDPOINT":
        connect_on_endpoint(machine, statement)
    else:
        nothing, kept = _told_apart(statement)
        if nothing:
            _not_kept(machine, replace(statement, permissions=nothing))
        if kept:
            run = _on_instance if _is_of_the_instance(statement) else _on_object
            run(machine, replace(statement, permissions=kept))
    tell_of_permission(
        machine, statement, of_the_instance=statement.kind == "ENDPOINT" or _is_of_the_instance(statement)
    )
    machine.done(0)


def _told_apart(statement: Permission) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The permissions that nothing here asks for, and those that are kept."""
    nothing = tuple(one for one in statement.permissions if asked_by_nothing(statement.kind, one))
    return nothing, tuple(one for one in statement.permissions if one not in nothing)


def _is_of_the_instance(statement: Permission) -> bool:
    kept = _told_apart(statement)[1]
    return statement.kind == "LOGIN" or (not statement.kind and kept != () and OF_THE_INSTANCE.issuperset(kept))


def check_permission(statement: Permission) -> None:
    """Refuse what never runs; `tsql check` asks this too.

    Raises:
        TsqlError: 40515. Also DENY of what nothing asks for: what it is to keep from happening would happen.
    """
    verb, kind, line = statement.verb, statement.kind, statement.line
    nothing, _ = _told_apart(statement)
    if kind == "ENDPOINT":
        check_endpoint_permission(statement)
    elif _is_of_the_instance(statement):
        if statement.grant_option:
            raise unsupported("WITH GRANT OPTION on the instance", "Leave it out.", line)
    elif nothing and verb == "DENY":
        raise unsupported(f"DENY {', '.join(nothing)}", "Nothing here asks for it: leave it out.", line)
    elif len(nothing) < len(statement.permissions) and kind not in ("", "DATABASE", "OBJECT", *_OBJECTS):
        raise unsupported(f"{verb} ON {kind}", "Leave it out.", line)


def asked_by_nothing(kind: str, permission: str) -> bool:
    """Whether a permission on something of this kind is neither kept nor asked for."""
    return kind in NOT_KEPT or any((one, permission) in UNASKED for one in _KINDS.get(kind, ()))


def _on_instance(machine: Machine, statement: Permission) -> None:
    """Of logins, on the instance or on another login.

    Raises:
        TsqlError: 4621 in another database than master, 40515 WITH GRANT OPTION.
        BrokerError: 4613 or 15151 who works may not.
    """
    if machine.database.name.lower() != MASTER:
        raise BrokerError(4621)
    name = None if statement.name is None else statement.name.own
    if name is None:
        machine.context.demand("PERMISSIONS OF THE INSTANCE")
    else:
        machine.context.ask(authorize_on_login(machine.context.person, "PERMISSIONS ON A LOGIN", name))
    check_alone(machine, f"{statement.verb} on the instance")
    operation = {
        "GRANT": operations.GrantOnInstance,
        "DENY": operations.DenyOnInstance,
        "REVOKE": operations.RevokeOnInstance,
    }[statement.verb]
    for permission in statement.permissions:
        for principal in statement.principals:
            machine.instance.run(operation(permission, principal.strip("[]"), login=name))


def _on_object(machine: Machine, statement: Permission) -> None:
    target = _target(machine, statement)
    is_all = statement.permissions in (("ALL",), ("ALL PRIVILEGES",)) and "tsql_object" in target
    for permission in _ALL if is_all else statement.permissions:
        for principal in statement.principals:
            machine.database.run(_operation(statement, permission, principal, target))


def _operation(
    statement: Permission, permission: str, principal: str, target: Mapping[str, Any]
) -> operations.Grant | operations.Deny | operations.Revoke:
    match statement.verb:
        case "GRANT":
            return operations.Grant(permission, principal, with_grant_option=statement.grant_option, **target)
        case "DENY":
            return operations.Deny(permission, principal, cascade=statement.cascade, **target)
        case _:
            for_option, cascade = statement.grant_option, statement.cascade
            return operations.Revoke(permission, principal, cascade=cascade, grant_option_for=for_option, **target)


def _target(machine: Machine, statement: Permission) -> dict[str, str]:
    """What the permission is on.

    Raises:
        TsqlError: 4610 something of another database.
    """
    kind, name = statement.kind, statement.name
    if name is None or kind == "DATABASE":
        return {}
    if _is_elsewhere(machine, name):
        raise TsqlError(4610, "You can only grant or revoke permissions on objects in the current database.")
    if kind == "OBJECT":
        return {"queue" if _is_queue(machine, name) else "tsql_object": written(name)}
    return {_OBJECTS[kind]: name.own}


def _is_elsewhere(machine: Machine, name: Name) -> bool:
    """Whether a name begins with another database than the current one."""
    return name.database.lower() not in ("", machine.database.name.lower())


def _is_queue(machine: Machine, name: Name) -> bool:
    return bool(
        fetch(
            machine.connection,
            "principals.is_queue",
            "select from servicebroker.queues where database_id = $1 and lower(schema_name) = lower($2) "
            "and lower(name) = lower($3)",
            (machine.database.database_id, name.schema or "dbo", name.own),
        )
    )


def _not_kept(machine: Machine, statement: Permission) -> None:
    what = f"{statement.verb} {', '.join(statement.permissions)}"
    what += f" ON {statement.kind}::{statement.name}" if statement.kind else ""
    machine.say(Message(f"{what} changes nothing: nothing here asks for this permission.", 0, 0))
