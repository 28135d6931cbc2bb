"""Logins, users, roles, schemas, permissions and owners, each as the method of the API that does it."""

from __future__ import annotations

from typing import Any

from servicebroker.model.errors import BrokerError
from servicebroker.model.names import postgres_name
from servicebroker.store.queue import quoted
from servicebroker.tsql.context import SessionDatabase, check_alone
from servicebroker.tsql.errors import Message, TsqlError, unsupported
from servicebroker.tsql.interpreter.conversations import written
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.objects import defines, drop
from servicebroker.tsql.interpreter.transport import connect_on_endpoint
from servicebroker.tsql.syntax import Definition, Name, Permission
from servicebroker.tsql.translation.writer import string

_OBJECTS = {
    "SERVICE": "service",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
    "REMOTE SERVICE BINDING": "remote_service_binding",
    "CERTIFICATE": "certificate",
}
# permissions on what is not the broker's: tables, procedures, schemas, the instance
# those that every database has in SQL Server, and nothing here asks for: tables are PostgreSQL's to guard
_ROLES_OF_TABLES = frozenset(
    {"db_datareader", "db_datawriter", "db_denydatareader", "db_denydatawriter", "db_accessadmin"}
    | {"db_securityadmin", "db_backupoperator"}
)
# permissions on a database or an instance that nothing here asks for
OF_NOTHING_HERE = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "EXECUTE", "SHOWPLAN", "UNMASK", "AUTHENTICATE", "AUTHENTICATE SERVER"}
    | {"SUBSCRIBE QUERY NOTIFICATIONS", "CONTROL SERVER", "ALTER TRACE", "UNSAFE ASSEMBLY", "CONNECT SQL"}
    | {"EXTERNAL ACCESS ASSEMBLY", "ADMINISTER BULK OPERATIONS", "ALTER SETTINGS", "SHUTDOWN", "CHECKPOINT"}
    | {"IMPERSONATE ANY LOGIN", "SELECT ALL USER SECURABLES", "BACKUP DATABASE", "BACKUP LOG"}
    | {f"VIEW {what}" for what in ("SERVER STATE", "DATABASE STATE", "ANY DEFINITION", "ANY DATABASE")}
    | {f"CREATE {what}" for what in ("TABLE", "VIEW", "PROCEDURE", "FUNCTION", "TYPE", "DEFAULT", "RULE", "SYNONYM")}
    | {f"CREATE {what}" for what in ("SCHEMA", "DATABASE", "ANY DATABASE", "ASSEMBLY", "DDL EVENT NOTIFICATION")}
    | {f"CREATE {what}" for what in ("ENDPOINT", "DATABASE DDL EVENT NOTIFICATION", "TRACE EVENT NOTIFICATION")}
    | {f"ALTER ANY {what}" for what in ("LOGIN", "DATABASE", "ENDPOINT", "EVENT NOTIFICATION", "SYMMETRIC KEY")}
    | {f"ALTER ANY {what}" for what in ("CONNECTION", "CREDENTIAL", "LINKED SERVER", "ASSEMBLY", "ASYMMETRIC KEY")}
    | {f"ALTER ANY {what}" for what in ("DATABASE DDL TRIGGER", "DATABASE EVENT NOTIFICATION", "DATASPACE")}
)


_NOT_KEPT = frozenset({"OBJECT", "SCHEMA", "TYPE", "XML SCHEMA COLLECTION", "USER", "ROLE", "LOGIN"})


@defines("CREATE", "LOGIN")
def _create_login(machine: Machine, statement: Definition) -> None:
    """Nobody opens a session as a login here: PostgreSQL lets in. FROM WINDOWS it names a peer of the network."""
    check_alone(machine, "CREATE LOGIN")
    machine.instance.create_login(statement.name.own, from_windows="windows" in statement.clauses)


@defines("ALTER", "LOGIN")
def _alter_login(machine: Machine, statement: Definition) -> None:
    """A password, a default database, ENABLE: nothing of it lets anybody in here."""
    if statement.clauses.get("state") == "DISABLE":
        raise unsupported("ALTER LOGIN DISABLE", "Drop the login, or its users.", statement.line)
    if "name" in statement.clauses:
        raise unsupported("ALTER LOGIN WITH NAME", "Create a login of the new name.", statement.line)


@defines("DROP", "LOGIN")
def _drop_login(machine: Machine, statement: Definition) -> None:
    check_alone(machine, "DROP LOGIN")
    drop(statement, lambda: machine.instance.drop_login(statement.name.own))


@defines("CREATE", "USER")
def _create_user(machine: Machine, statement: Definition) -> None:
    """FOR LOGIN; WITHOUT LOGIN; without either, for the login of the same name when there is one."""
    clauses, name = statement.clauses, statement.name.own
    if "certificate" in clauses:
        raise unsupported(
            "CREATE USER FOR CERTIFICATE",
            "Write CREATE USER WITHOUT LOGIN, and CREATE CERTIFICATE with its AUTHORIZATION.",
            statement.line,
        )
    login = clauses.get("login")
    if login is None and "without_login" not in clauses and machine.is_login(name):
        login = name
    machine.database.create_user(name, for_login=login)


@defines("ALTER", "USER")
def _alter_user(machine: Machine, statement: Definition) -> None:
    if set(statement.clauses) - {"default_schema"}:
        raise unsupported("ALTER USER", "Drop the user and create it again.", statement.line)
    _only_dbo(statement)


def _only_dbo(statement: Definition) -> None:
    if statement.clauses["default_schema"].lower() != "dbo":
        raise unsupported("A DEFAULT_SCHEMA other than dbo", "Write the schema before the name.", statement.line)


@defines("DROP", "USER")
def _drop_user(machine: Machine, statement: Definition) -> None:
    drop(statement, lambda: machine.database.drop_user(statement.name.own))


@defines("CREATE", "ROLE")
def _create_role(machine: Machine, statement: Definition) -> None:
    machine.database.create_role(statement.name.own)


@defines("ALTER", "ROLE")
def _alter_role(machine: Machine, statement: Definition) -> None:
    clauses, role = statement.clauses, statement.name.own
    change_member(machine, role, clauses.get("add_member") or clauses["drop_member"], add="add_member" in clauses)


def change_member(machine: Machine, role: str, member: str, *, add: bool) -> None:
    """ALTER ROLE role ADD or DROP MEMBER member."""
    if role.lower() in _ROLES_OF_TABLES:
        machine.say(Message(f"The role {role} changes nothing: PostgreSQL's own rights on tables count.", 0, 0))
    elif add:
        machine.database.add_role_member(role, member)
    else:
        machine.database.drop_role_member(role, member)


@defines("DROP", "ROLE")
def _drop_role(machine: Machine, statement: Definition) -> None:
    drop(statement, lambda: machine.database.drop_role(statement.name.own))


@defines("CREATE", "SCHEMA")
def _create_schema(machine: Machine, statement: Definition) -> None:
    name = statement.name.own
    database = machine.database
    schema = postgres_name(database.name, name)
    if machine.connection.run_prepared(
        "select from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2) "
        "union all select where lower($2) in ('dbo', 'sys', 'information_schema', 'guest')",
        (database.database_id, name),
    ):
        raise TsqlError(2714, f"There is already an object named '{name}' in the database.")
    own = quoted(schema)
    machine.queries.define(f"create schema if not exists {own}; comment on schema {own} is {string(name)}")
    machine.connection.run_prepared(
        "insert into servicebroker.tsql_schemas (database_id, name, postgres_schema) values ($1, $2, $3)",
        (database.database_id, name, schema),
    )


@defines("DROP", "SCHEMA")
def _drop_schema(machine: Machine, statement: Definition) -> None:
    rows = machine.connection.run_prepared(
        "select postgres_schema from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2)",
        (machine.database.database_id, statement.name.own),
    )
    if not rows:
        drop(statement, lambda: _not_there(statement.name.own))
        return
    machine.queries.define(f"drop schema if exists {quoted(rows[0][0])}")
    machine.connection.run_prepared(
        "delete from servicebroker.tsql_schemas where database_id = $1 and lower(name) = lower($2)",
        (machine.database.database_id, statement.name.own),
    )


def _not_there(name: str) -> None:
    raise BrokerError(15151, "drop", "schema", name)


# ---------------------------------------------------------------- permissions and owners


@runs(Permission)
def _permission(machine: Machine, statement: Permission) -> None:
    if statement.kind == "ENDPOINT":
        connect_on_endpoint(machine, statement)
    elif _asked_by_nothing(machine, statement):
        _not_kept(machine, statement)
    else:
        _on_object(machine, statement)
    machine.done(0)


def _asked_by_nothing(machine: Machine, statement: Permission) -> bool:
    if statement.kind in ("", "DATABASE"):
        return OF_NOTHING_HERE.issuperset(statement.permissions)
    return statement.kind in _NOT_KEPT and not _is_queue(machine, statement)


def _on_object(machine: Machine, statement: Permission) -> None:
    database: SessionDatabase = machine.database
    for permission in statement.permissions:
        for principal in statement.principals:
            _one(database, statement, permission, principal, _target(statement.kind, statement.name))


def _one(database: Any, statement: Permission, permission: str, principal: str, target: dict[str, str]) -> None:
    if statement.verb == "GRANT":
        database.grant(permission, principal, with_grant_option=statement.grant_option, **target)
    elif statement.verb == "DENY":
        database.deny(permission, principal, cascade=statement.cascade, **target)
    else:
        database.revoke(
            permission, principal, cascade=statement.cascade, grant_option_for=statement.grant_option, **target
        )


def _target(kind: str, name: Name | None) -> dict[str, str]:
    if name is None or kind == "DATABASE":
        return {}
    return {"queue": written(name)} if kind == "OBJECT" else {_OBJECTS[kind]: name.own}


def _is_queue(machine: Machine, statement: Permission) -> bool:
    if statement.kind != "OBJECT" or statement.name is None:
        return False
    return bool(
        machine.connection.run_prepared(
            "select from servicebroker.queues where database_id = $1 and lower(schema_name) = lower($2) "
            "and lower(name) = lower($3)",
            (machine.database.database_id, statement.name.schema or "dbo", statement.name.own),
        )
    )


def _not_kept(machine: Machine, statement: Permission) -> None:
    """Tables and procedures are used with the rights of the PostgreSQL role, whatever EXECUTE AS says.

    Raises:
        TsqlError: 40515 for DENY and REVOKE: what they are to keep from happening would happen.
    """
    what = f"{statement.verb} {', '.join(statement.permissions)}"
    what += f" ON {statement.kind}::{statement.name}" if statement.kind else ""
    if statement.verb == "DENY":
        raise unsupported(what, "Use GRANT and REVOKE of PostgreSQL on the table.", statement.line)
    machine.say(Message(f"{what} changes nothing: only permissions on the broker's objects are kept.", 0, 0))


@defines("ALTER", "AUTHORIZATION")
def _alter_authorization(machine: Machine, statement: Definition) -> None:
    kind, owner = statement.clauses["kind"], statement.clauses["owner"]
    if kind in ("DATABASE", "SCHEMA", "ENDPOINT", "ROLE"):
        machine.say(Message(f"ALTER AUTHORIZATION ON {kind} changes nothing: dbo works for the owner.", 0, 0))
        return
    if kind != "OBJECT" and kind not in _OBJECTS:
        raise unsupported(f"ALTER AUTHORIZATION ON {kind}", "Leave it out.", statement.line)
    machine.database.alter_authorization(owner, **_target(kind, statement.name))
