"""Logins, users, roles, schemas and permissions, through the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from servicebroker import operations
from servicebroker.engine.catalog.alter import lock_catalog
from servicebroker.engine.security.authorization import authorize, authorize_on_login, user_named
from servicebroker.engine.security.logins import (
    create_login,
    demand_administrator,
    drop_login,
    set_permission,
    switch_login,
)
from servicebroker.engine.security.tsql_objects import create_schema, find_schema_to_drop, forget_schema
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import IMPLIED_BY, UNASKED, Kind
from servicebroker.operations.operation import Operation
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.store.statements import Steps
from servicebroker.tsql.context import MASTER
from servicebroker.tsql.interpreter.definitions.authorization import check_authorization, report_ignored_owner
from servicebroker.tsql.interpreter.definitions.binding import bind_operation
from servicebroker.tsql.interpreter.definitions.ddl_events import post_permission_event
from servicebroker.tsql.interpreter.definitions.objects import defines, refuses, run_drop
from servicebroker.tsql.interpreter.definitions.transport_certificates import (
    check_endpoint_permission,
    connect_on_endpoint,
)
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.names import api_name
from servicebroker.tsql.login_passwords import SA, forget_password_of_sa, set_password
from servicebroker.tsql.statement_errors import Message, TsqlError, unsupported
from servicebroker.tsql.syntax import Definition, Name, Permission
from servicebroker.tsql.translation.text_writer import quote_string

_ARGUMENTS_BY_KIND = {
    "SERVICE": "service",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
    "REMOTE SERVICE BINDING": "remote_service_binding",
    "CERTIFICATE": "certificate",
    "USER": "user",
    "SCHEMA": "schema",
}
_PERMISSION_KINDS = {
    "": (Kind.SERVER, Kind.DATABASE),
    "DATABASE": (Kind.DATABASE,),
    "SCHEMA": (Kind.SCHEMA,),
    "OBJECT": (Kind.OBJECT,),
}
INSTANCE_PERMISSIONS = frozenset(name for kind, name in IMPLIED_BY if kind is Kind.SERVER)
KINDS_WITHOUT_PERMISSIONS = frozenset({"TYPE", "XML SCHEMA COLLECTION", "ROLE"})  # permissions on them have no effect
_ALL_PERMISSIONS = ("SELECT", "INSERT", "UPDATE", "DELETE", "REFERENCES")


@defines("CREATE", "LOGIN")
def _create_login(machine: Machine, statement: Definition) -> None:
    """Run CREATE LOGIN.

    A login with a password lets clients of SQL Server in. FROM WINDOWS it names a peer of the network.
    """
    machine.context.require("CREATE LOGIN")
    _run_on_server(machine, bind_operation(machine, statement, operations.CreateLogin), create_login)
    _set_password(machine, statement)


@defines("ALTER", "LOGIN")
def _alter_login(machine: Machine, statement: Definition) -> None:
    """Run ALTER LOGIN. DEFAULT_DATABASE has no effect. A disabled login lets neither peers nor clients in."""
    name, state = statement.name.object, statement.clauses.get("state")
    if name.lower() == SA:
        _alter_sa(machine, statement)
        return
    machine.context.ask(authorize_on_login(machine.context.server_login, "ALTER LOGIN", name))
    if state is not None:
        machine.transactions.check_not_doomed()
        machine.context.ask(switch_login(name, is_disabled=state == "DISABLE", who=machine.login))
    _set_password(machine, statement)


def _alter_sa(machine: Machine, statement: Definition) -> None:
    """Run ALTER LOGIN sa. It is enabled as long as it has a password.

    Raises:
        BrokerError: 15151 the current login is not an administrator.
    """
    if not machine.context.server_login.is_administrator:
        raise BrokerError(15151, "alter", "login", SA)
    machine.transactions.check_not_doomed()
    if statement.clauses.get("state") == "DISABLE":
        machine.context.ask(forget_password_of_sa())
    _set_password(machine, statement)


def _set_password(machine: Machine, statement: Definition) -> None:
    """Store the password of the statement, if it has one. A hash of SQL Server (HASHED) has no effect."""
    password = statement.clauses.get("password")
    if isinstance(password, str) and password:
        machine.transactions.check_not_doomed()
        machine.context.ask(set_password(statement.name.object, password))


@refuses("ALTER", "LOGIN")
def _check_no_rename(statement: Definition) -> None:
    if "name" in statement.clauses:
        raise unsupported("ALTER LOGIN WITH NAME", "Create a login of the new name.", statement.line)


@defines("DROP", "LOGIN")
def _drop_login(machine: Machine, statement: Definition) -> None:
    machine.context.require("DROP LOGIN", "login", statement.name.object)
    operation = operations.DropLogin(statement.name.object)
    run_drop(statement, lambda: _run_on_server(machine, operation, drop_login))


def _run_on_server(
    machine: Machine, operation: Operation[None], steps_of: Callable[[Any, datetime], Steps[None]]
) -> None:
    """Run a definition of the instance, within the open transaction if there is one."""
    if not machine.transactions.count:
        machine.instance.run(operation)
        return

    def steps() -> Steps[None]:
        yield from demand_administrator()
        yield lock_catalog()
        yield from steps_of(operation, machine.instance.clock())

    with machine.context.database.transaction():
        machine.context.ask(steps())


@defines("CREATE", "USER")
def _create_user(machine: Machine, statement: Definition) -> None:
    """Run CREATE USER.

    Without FOR LOGIN, CERTIFICATE or WITHOUT LOGIN, the user gets the login with the same name, if it exists.
    """
    clauses, name = statement.clauses, statement.name.object
    has_same_login = not clauses.keys() & {"for_login", "from_certificate", "without_login"} and machine.has_login(name)
    login = {"for_login": name} if has_same_login else {}
    machine.database.run(bind_operation(machine, statement, operations.CreateUser, **login))


@defines("ALTER", "USER")
def _alter_user(machine: Machine, statement: Definition) -> None:
    user, name = machine.context.database.user, statement.name.object
    machine.context.ask(authorize(user, "ALTER USER", user_named(name)))


@refuses("ALTER", "USER")
def _check_default_schema(statement: Definition) -> None:
    if set(statement.clauses) != {"default_schema"}:
        raise unsupported("ALTER USER", "Drop the user and create it again.", statement.line)
    if str(statement.clauses["default_schema"]).lower() != "dbo":
        raise unsupported("A DEFAULT_SCHEMA other than dbo", "Write the schema before the name.", statement.line)


@defines("CREATE", "ROLE")
def _create_role(machine: Machine, statement: Definition) -> None:
    check_authorization(machine, statement)
    machine.database.run(operations.CreateRole(statement.name.object))
    report_ignored_owner(machine, "role", statement.clauses.get("authorization"))


@defines("ALTER", "ROLE")
def _alter_role(machine: Machine, statement: Definition) -> None:
    clauses, role = statement.clauses, statement.name.object
    change_member(machine, role, clauses.get("add_member") or clauses["drop_member"], add="add_member" in clauses)


def change_member(machine: Machine, role: str, member: str, *, add: bool) -> None:
    """Run ALTER ROLE role ADD or DROP MEMBER member."""
    machine.database.run((operations.AddRoleMember if add else operations.DropRoleMember)(role, member))


@defines("CREATE", "SCHEMA")
def _create_schema(machine: Machine, statement: Definition) -> None:
    name, database = statement.name.object, machine.context.database
    machine.transactions.check_not_doomed()
    check_authorization(machine, statement)
    with machine.atomic():
        schema = machine.context.ask(create_schema(database.user, name))
        quoted_schema = quoted(schema)
        machine.queries.define(
            f"create schema if not exists {quoted_schema}; comment on schema {quoted_schema} is {quote_string(name)}"
        )
    report_ignored_owner(machine, "schema", statement.clauses.get("authorization"))


@defines("DROP", "SCHEMA")
def _drop_schema(machine: Machine, statement: Definition) -> None:
    name, database = statement.name.object, machine.context.database
    machine.transactions.check_not_doomed()

    def drop_object() -> None:
        with machine.atomic():
            schema = machine.context.ask(find_schema_to_drop(database.user, name))
            machine.queries.define(f"drop schema if exists {quoted(schema)}")
            machine.context.ask(forget_schema(database.user, name))

    run_drop(statement, drop_object)


# ---------------------------------------------------------------- permissions and owners


@runs(Permission)
def _permission(machine: Machine, statement: Permission) -> None:
    check_permission(statement)
    if statement.kind == "ENDPOINT":
        connect_on_endpoint(machine, statement)
    else:
        unchecked, stored = _split_permissions(statement)
        if unchecked:
            _report_unchecked(machine, replace(statement, permissions=unchecked))
        if stored:
            run = _run_on_instance if _is_on_instance(statement) else _run_on_object
            run(machine, replace(statement, permissions=stored))
    post_permission_event(machine, statement, is_on_instance=statement.kind == "ENDPOINT" or _is_on_instance(statement))
    machine.record_success(0)


def _split_permissions(statement: Permission) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (permissions that are never checked, permissions to store)."""
    unchecked = tuple(
        permission for permission in statement.permissions if is_unchecked_permission(statement.kind, permission)
    )
    return unchecked, tuple(permission for permission in statement.permissions if permission not in unchecked)


def _is_on_instance(statement: Permission) -> bool:
    stored = _split_permissions(statement)[1]
    return statement.kind == "LOGIN" or (
        not statement.kind and stored != () and INSTANCE_PERMISSIONS.issuperset(stored)
    )


def check_permission(statement: Permission) -> None:
    """Refuse a GRANT, DENY or REVOKE that never runs. `tsql check` calls this too.

    Raises:
        TsqlError: 40515, also for a DENY of a permission that is never checked, because it would prevent nothing.
    """
    keyword, kind, line = statement.keyword, statement.kind, statement.line
    unchecked, _ = _split_permissions(statement)
    if kind == "ENDPOINT":
        check_endpoint_permission(statement)
    elif _is_on_instance(statement):
        if statement.grant_option:
            raise unsupported("WITH GRANT OPTION on the instance", "Leave it out.", line)
    elif unchecked and keyword == "DENY":
        raise unsupported(f"DENY {', '.join(unchecked)}", "Leave it out: the permission is never checked here.", line)
    elif len(unchecked) < len(statement.permissions) and kind not in ("", "DATABASE", "OBJECT", *_ARGUMENTS_BY_KIND):
        raise unsupported(f"{keyword} ON {kind}", "Leave it out.", line)


def is_unchecked_permission(kind: str, permission: str) -> bool:
    """Return True if a permission on something of this kind is neither stored nor checked."""
    return kind in KINDS_WITHOUT_PERMISSIONS or any(
        (permission_kind, permission) in UNASKED for permission_kind in _PERMISSION_KINDS.get(kind, ())
    )


def _run_on_instance(machine: Machine, statement: Permission) -> None:
    """Run GRANT, DENY or REVOKE of permissions of logins, on the instance or on another login.

    Raises:
        BrokerError: 4621 the current database is not master, 4613 or 15151 no permission.
    """
    if machine.database.name.lower() != MASTER:
        raise BrokerError(4621)
    name = None if statement.name is None else statement.name.object
    if name is None:
        machine.context.require("PERMISSIONS OF THE INSTANCE")
    else:
        machine.context.ask(authorize_on_login(machine.context.server_login, "PERMISSIONS ON A LOGIN", name))
    operation = {
        "GRANT": operations.GrantOnInstance,
        "DENY": operations.DenyOnInstance,
        "REVOKE": operations.RevokeOnInstance,
    }[statement.keyword]
    for permission in statement.permissions:
        for principal in statement.principals:
            _run_on_server(machine, operation(permission, principal.strip("[]"), login=name), set_permission)


def _run_on_object(machine: Machine, statement: Permission) -> None:
    """Run GRANT, DENY or REVOKE on the database or on an object in it. ALL stands for the permissions of a table."""
    target = _find_target(machine, statement)
    is_all = statement.permissions in (("ALL",), ("ALL PRIVILEGES",)) and "tsql_object" in target
    for permission in _ALL_PERMISSIONS if is_all else statement.permissions:
        for principal in statement.principals:
            machine.database.run(_make_operation(statement, permission, principal, target))


def _make_operation(
    statement: Permission, permission: str, principal: str, target: Mapping[str, Any]
) -> operations.Grant | operations.Deny | operations.Revoke:
    match statement.keyword:
        case "GRANT":
            return operations.Grant(permission, principal, with_grant_option=statement.grant_option, **target)
        case "DENY":
            return operations.Deny(permission, principal, cascade=statement.cascade, **target)
        case _:
            for_option, cascade = statement.grant_option, statement.cascade
            return operations.Revoke(permission, principal, cascade=cascade, grant_option_for=for_option, **target)


def _find_target(machine: Machine, statement: Permission) -> dict[str, str]:
    """Return the securable as an argument of the operation, {} for the database.

    Raises:
        TsqlError: 4610 the securable is in another database.
    """
    kind, name = statement.kind, statement.name
    if name is None or kind == "DATABASE":
        return {}
    if _is_in_other_database(machine, name):
        raise TsqlError(4610, "You can only grant or revoke permissions on objects in the current database.")
    if kind == "OBJECT":
        return {"queue" if _is_queue(machine, name) else "tsql_object": api_name(name)}
    return {_ARGUMENTS_BY_KIND[kind]: name.object}


def _is_in_other_database(machine: Machine, name: Name) -> bool:
    """Return True if a name begins with another database than the current one."""
    return name.database.lower() not in ("", machine.database.name.lower())


def _is_queue(machine: Machine, name: Name) -> bool:
    return bool(
        fetch(
            machine.connection,
            "principals.is_queue",
            "select from servicebroker.queues where database_id = $1 and lower(schema_name) = lower($2) "
            "and lower(name) = lower($3)",
            (machine.database.database_id, name.schema or "dbo", name.object),
        )
    )


def _report_unchecked(machine: Machine, statement: Permission) -> None:
    """Emit that nothing changes, because these permissions are never checked."""
    statement_text = f"{statement.keyword} {', '.join(statement.permissions)}"
    statement_text += f" ON {statement.kind}::{statement.name}" if statement.kind else ""
    machine.emit(Message(f"{statement_text} changes nothing: the permission is never checked here.", 0, 0))
