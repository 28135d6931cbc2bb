"""AUTHORIZATION and ALTER AUTHORIZATION.

Owners of schemas, roles, databases and endpoints are checked, but not stored.
"""

from __future__ import annotations

from typing import Any

from servicebroker.engine.security.authorization import authorize, schema
from servicebroker.engine.security.principals import find_owner, find_owning_login, find_role
from servicebroker.model.errors import BrokerError
from servicebroker.operations.permissions import AlterAuthorization
from servicebroker.store.running import fetch
from servicebroker.tsql.context import SessionDatabase
from servicebroker.tsql.interpreter.definitions.objects import defines, refuses
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.names import api_name
from servicebroker.tsql.statement_errors import Message, unsupported
from servicebroker.tsql.syntax import Definition

# kinds with an owner, and their argument of `Database.alter_authorization`
_ARGUMENTS_BY_KIND = {
    "OBJECT": "queue",
    "SERVICE": "service",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
    "REMOTE SERVICE BINDING": "remote_service_binding",
    "CERTIFICATE": "certificate",
}


def check_authorization(machine: Machine, statement: Definition) -> None:
    """Check the owner that CREATE SCHEMA or CREATE ROLE names. The owner is not stored: dbo owns schemas and roles.

    Raises:
        BrokerError: 15151 no such principal, or one that the session may not act as; 15405 public or guest.
    """
    owner = statement.clauses.get("authorization")
    if owner is not None:
        machine.context.ask(find_owner(machine.context.database.user, owner))


def report_ignored_owner(machine: Machine, kind: str, owner: str | None) -> None:
    """Emit a warning that the named owner gets no permissions."""
    if owner is not None and owner.lower() != "dbo":
        machine.emit(Message(f"AUTHORIZATION {owner} of a {kind} changes nothing: dbo owns every {kind}.", 0, 0))


@refuses("ALTER", "AUTHORIZATION")
def _check_kind(statement: Definition) -> None:
    """Refuse ALTER AUTHORIZATION on a kind of object that has no owner in this implementation."""
    kind = statement.clauses["kind"]
    if kind not in (*_ARGUMENTS_BY_KIND, *_OWNER_CHECKS):
        raise unsupported(f"ALTER AUTHORIZATION ON {kind}", "Leave it out.", statement.line)


@defines("ALTER", "AUTHORIZATION")
def _alter_authorization(machine: Machine, statement: Definition) -> None:
    """Run ALTER AUTHORIZATION.

    Raises:
        BrokerError: 15151 no such object or owner, or no permission; 15405 public or guest.
    """
    kind, name, owner = statement.clauses["kind"], statement.name, statement.clauses["owner"]
    if kind in _OWNER_CHECKS:
        _OWNER_CHECKS[kind](machine, name.object, owner)
        machine.emit(Message(f"ALTER AUTHORIZATION ON {kind} changes nothing: its owner is not stored.", 0, 0))
        return
    if name.database.lower() not in ("", machine.database.name.lower()):
        raise BrokerError(15151, "find", "object", str(name))
    securable: dict[str, Any] = {_ARGUMENTS_BY_KIND[kind]: api_name(name)}
    machine.database.run(AlterAuthorization(owner, **securable))


def _check_database(machine: Machine, name: str, owner: str) -> None:
    try:
        database = machine.context.database_named(name)
    except BrokerError as error:
        if error.number not in (911, 916):
            raise
        raise BrokerError(15151, "find", "database", name) from None
    _require_control(machine, database, "database", name)
    machine.context.ask(find_owning_login(machine.context.server_login, owner))


def _check_endpoint(machine: Machine, name: str, owner: str) -> None:
    machine.context.require("ALTER ENDPOINT", "endpoint", name)
    query = "select from servicebroker.network_endpoints where lower(name) = lower($1)"
    if not fetch(machine.connection, "authorization.check_endpoint", query, (name,)):
        raise BrokerError(15151, "find", "endpoint", name)
    machine.context.ask(find_owning_login(machine.context.server_login, owner))


def _check_schema(machine: Machine, name: str, owner: str) -> None:
    database = machine.context.database
    _require_control(machine, database, "schema", name)
    if not machine.context.ask(schema(name)(database.user)):
        raise BrokerError(15151, "find", "schema", name)
    machine.context.ask(find_owner(database.user, owner))


def _check_role(machine: Machine, name: str, owner: str) -> None:
    database = machine.context.database
    _require_control(machine, database, "role", name)
    machine.context.ask(find_role("find", database.database_id, name))
    machine.context.ask(find_owner(database.user, owner))


def _require_control(machine: Machine, database: SessionDatabase, kind: str, name: str) -> None:
    """Refuse a user without CONTROL of the database. `kind` and `name` are for the error.

    Raises:
        BrokerError: 15151 the user lacks CONTROL.
    """
    machine.context.ask(authorize(database.user, "ALTER AUTHORIZATION ON DATABASE", subject=(kind, name)))


# kinds that dbo or the instance owns; the named owner is only checked
_OWNER_CHECKS = {"DATABASE": _check_database, "ENDPOINT": _check_endpoint, "SCHEMA": _check_schema, "ROLE": _check_role}
