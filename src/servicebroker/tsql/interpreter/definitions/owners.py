"""AUTHORIZATION and ALTER AUTHORIZATION: who may be named as an owner, also of what dbo or the instance owns here."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.security.authorization import authorize, schema
from servicebroker.engine.security.principals import find_owner, find_owning_login, find_role
from servicebroker.model.errors import BrokerError
from servicebroker.operations.permissions import AlterAuthorization
from servicebroker.store.running import fetch
from servicebroker.tsql.context import SessionDatabase
from servicebroker.tsql.interpreter.conversations import written
from servicebroker.tsql.interpreter.definitions.objects import defines, refuses
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import Message, unsupported
from servicebroker.tsql.syntax import Definition

# what has an owner of its own, by the argument of `Database.alter_authorization`
_OWNED = {
    "OBJECT": "queue",
    "SERVICE": "service",
    "CONTRACT": "contract",
    "MESSAGE TYPE": "message_type",
    "ROUTE": "route",
    "REMOTE SERVICE BINDING": "remote_service_binding",
    "CERTIFICATE": "certificate",
}


def check_authorization(machine: Machine, statement: Definition) -> None:
    """Check the owner that AUTHORIZATION names, of a schema or a role: dbo owns these here.

    Raises:
        BrokerError: 15151 no such principal, or one for which who works may not act, 15405 public or guest.
    """
    owner = statement.clauses.get("authorization")
    if owner is not None:
        machine.context.ask(find_owner(machine.context.database.user, owner))


def tell_of_owner(machine: Machine, kind: str, owner: str | None) -> None:
    """Say that an owner was named whose rights do not follow from that."""
    if owner is not None and owner.lower() != "dbo":
        machine.say(Message(f"AUTHORIZATION {owner} of a {kind} changes nothing: dbo works for the owner.", 0, 0))


@refuses("ALTER", "AUTHORIZATION")
def _only_of_what_is_owned(statement: Definition) -> None:
    kind = statement.clauses["kind"]
    if kind not in (*_OWNED, *_CHECKS):
        raise unsupported(f"ALTER AUTHORIZATION ON {kind}", "Leave it out.", statement.line)


@defines("ALTER", "AUTHORIZATION")
def _alter_authorization(machine: Machine, statement: Definition) -> None:
    """Raises: BrokerError: 15151 no such thing or owner, or not for who works, 15405 public or guest."""
    kind, name, owner = statement.clauses["kind"], statement.name, statement.clauses["owner"]
    if kind in _CHECKS:
        _CHECKS[kind](machine, name.own, owner)
        machine.say(Message(f"ALTER AUTHORIZATION ON {kind} changes nothing: dbo works for the owner.", 0, 0))
        return
    if name.database.lower() not in ("", machine.database.name.lower()):
        raise BrokerError(15151, "find", "object", str(name))
    owned: dict[str, Any] = {_OWNED[kind]: written(name)}
    machine.database.run(AlterAuthorization(owner, **owned))


def _check_database(machine: Machine, name: str, owner: str) -> None:
    try:
        database = machine.context.named(name)
    except BrokerError as refused:
        if refused.number not in (911, 916):
            raise
        raise BrokerError(15151, "find", "database", name) from None
    _demand_control(machine, database, "database", name)
    machine.context.ask(find_owning_login(machine.context.person, owner))


def _check_endpoint(machine: Machine, name: str, owner: str) -> None:
    machine.context.demand("ALTER ENDPOINT", "endpoint", name)
    found = "select from servicebroker.network_endpoints where lower(name) = lower($1)"
    if not fetch(machine.connection, "owners.check_endpoint", found, (name,)):
        raise BrokerError(15151, "find", "endpoint", name)
    machine.context.ask(find_owning_login(machine.context.person, owner))


def _check_schema(machine: Machine, name: str, owner: str) -> None:
    database = machine.context.database
    _demand_control(machine, database, "schema", name)
    if not machine.context.ask(schema(name)(database.user)):
        raise BrokerError(15151, "find", "schema", name)
    machine.context.ask(find_owner(database.user, owner))


def _check_role(machine: Machine, name: str, owner: str) -> None:
    database = machine.context.database
    _demand_control(machine, database, "role", name)
    machine.context.ask(find_role("find", database.database_id, name))
    machine.context.ask(find_owner(database.user, owner))


def _demand_control(machine: Machine, database: SessionDatabase, kind: str, name: str) -> None:
    machine.context.ask(authorize(database.user, "ALTER AUTHORIZATION ON DATABASE", subject=(kind, name)))


# what dbo or the instance owns, whoever is named
_CHECKS = {"DATABASE": _check_database, "ENDPOINT": _check_endpoint, "SCHEMA": _check_schema, "ROLE": _check_role}
