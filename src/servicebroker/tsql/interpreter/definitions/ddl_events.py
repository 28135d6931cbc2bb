"""What T-SQL defines, told to the event notifications on its database and on the server (DDL_EVENTS).

A definition of the session's transaction is told with its commit; elements are those that SQL Server's schema of events
has for the type.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from servicebroker.engine.catalog.event_notifications import is_told_of, post_ddl
from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.event_instances import Element, EventInstance
from servicebroker.model.event_types import EVENTS, is_of_the_server
from servicebroker.tsql.context import database_of
from servicebroker.tsql.syntax import Definition, Function, Name, Permission, Procedure, Trigger
from servicebroker.tsql.tokens import tokenize, unquoted

if TYPE_CHECKING:
    from servicebroker.tsql.context import SessionDatabase
    from servicebroker.tsql.interpreter.machine import Machine

_LOG = logging.getLogger(__name__)
_MODULES = frozenset({"PROCEDURE", "FUNCTION", "TRIGGER", "SYNONYM"})  # which tell of themselves
_IN_SCHEMAS = frozenset({"QUEUE", "TYPE", "XML SCHEMA COLLECTION"}) | _MODULES
_MEMBERS = {"add_member": "ADD_ROLE_MEMBER", "drop_member": "DROP_ROLE_MEMBER"}


def tell_of_definition(machine: Machine, statement: Definition) -> None:
    """CREATE, ALTER or DROP of one of the broker's objects, and of principals and databases, was done."""
    if statement.kind in _MODULES:
        if statement.clauses.get("by_table"):
            _tell(machine, database_of(machine, statement.name), "ALTER_TABLE", statement.name, "TABLE", statement.text)
        return
    event = f"{statement.verb}_{statement.kind}".replace(" ", "_")
    kind = "SQL USER" if statement.kind == "USER" else statement.kind
    more: list[Element] = []
    if statement.kind == "AUTHORIZATION":
        kind = statement.clauses["kind"]
        event += "_SERVER" if kind in ("DATABASE", "ENDPOINT", "LOGIN") else "_DATABASE"
        more = [("OwnerName", statement.clauses["owner"])]
    names: Sequence[Name | str] = statement.clauses.get("names", (statement.name,))
    for clause, changed in _MEMBERS.items():
        if clause in statement.clauses:
            event, names = changed, [statement.clauses[clause]]
            kind, more = "SQL USER", [("RoleName", statement.name.own)]
    queue = statement.clauses.get("queue") if statement.kind == "EVENT NOTIFICATION" else None
    for name in names:
        own = name if isinstance(name, Name) else Name((name,))
        _tell(machine, database_of(machine, queue or own), event, own, kind, statement.text, more)


def tell_of_permission(machine: Machine, statement: Permission, *, of_the_instance: bool) -> None:
    """GRANT, DENY or REVOKE was done."""
    more: list[Element] = [
        ("Grantor", machine.database.user.name),
        ("Permissions", [("Permission", one.lower()) for one in statement.permissions]),
        ("Grantees", [("Grantee", one) for one in statement.principals]),
        ("GrantOption", str(int(statement.grant_option))),
        ("CascadeOption", str(int(statement.cascade))),
    ]
    event = f"{statement.verb}_{'SERVER' if of_the_instance else 'DATABASE'}"
    name = statement.name or Name((machine.database.name,))
    kind = statement.kind or ("SERVER" if of_the_instance else "DATABASE")
    _tell(machine, machine.database, event, name, kind, statement.text, more)


def tell_of_module(
    machine: Machine, database: SessionDatabase, statement: Procedure | Function | Trigger, *, is_new: bool
) -> None:
    """A procedure, a function or a trigger was made, or changed."""
    kind = type(statement).__name__.upper()
    more = _target(statement.table) if isinstance(statement, Trigger) else []
    _tell(machine, database, f"{'CREATE' if is_new else 'ALTER'}_{kind}", statement.name, kind, statement.text, more)


def tell_of_dropped(machine: Machine, database: SessionDatabase, kind: str, name: Name, text: str) -> None:
    """A procedure, a function, a trigger or a synonym was dropped."""
    _tell(machine, database, f"DROP_{kind}", name, kind, text)


def tell_of_synonym(machine: Machine, database: SessionDatabase, statement: Definition) -> None:
    """A synonym was made."""
    more = [("TargetObjectName", str(statement.clauses["base"]))]
    _tell(machine, database, "CREATE_SYNONYM", statement.name, "SYNONYM", statement.text, more)


def tell_of_uses(machine: Machine, uses: Sequence[Use], text: str) -> None:
    """A table, view, index or sequence was made, changed or dropped, as the statement's uses say."""
    for use in uses:
        verb, _, kind = use.statement.removeprefix("CREATE OR ").partition(" ")
        database = machine.context.named(use.database) if use.database else machine.database
        name, more = Name((use.schema or "dbo", use.name)), []
        if kind == "INDEX":
            more = _target(name)
            name = Name((name.schema, _index_in(text)))
        _tell(machine, database, f"{verb}_{kind}", name, kind, text, more)


def _index_in(text: str) -> str:
    """The name behind INDEX."""
    tokens = tokenize(text)
    return unquoted(tokens.text(tokens.words.index("INDEX") + 1))


def _target(table: Name) -> list[Element]:
    return [("TargetObjectName", table.own), ("TargetObjectType", "TABLE")]


def _tell(
    machine: Machine,
    database: SessionDatabase,
    event: str,
    name: Name,
    kind: str,
    text: str,
    more: Sequence[Element] = (),
) -> None:
    """Post the event, where a notification asks for it; nothing for what is no event, as OPEN MASTER KEY."""
    if event not in EVENTS or not machine.context.ask(is_told_of(database.database_id, event)):
        return
    of_the_server = is_of_the_server(event)
    in_schema = kind in _IN_SCHEMAS or kind in ("TABLE", "VIEW", "INDEX", "SEQUENCE", "OBJECT")
    happened = EventInstance(
        event,
        "",
        machine.spid,
        "",
        machine.login,
        "" if of_the_server else database.user.name,
        name.own if kind == "DATABASE" else "" if of_the_server else database.name,
        (name.schema or "dbo") if in_schema and not of_the_server else "",
        "" if kind == "DATABASE" and of_the_server else name.own,
        "" if kind == "DATABASE" and of_the_server else kind,
        text.strip(),
    )
    now = machine.instance.clock()
    for problem in database._alone(post_ddl(database.database_id, happened, more, now)):
        _LOG.error("%s", problem)
