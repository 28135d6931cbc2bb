"""DDL events of T-SQL statements, posted to the event notifications of a database and of the server.

An event is posted with the commit of the definition. Its elements are those of SQL Server's event schema.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from servicebroker.engine.catalog.event_notifications import has_notification, send_ddl_event
from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.event_instances import Element, EventInstance
from servicebroker.model.event_types import EVENTS, is_of_the_server
from servicebroker.tsql.context import database_of
from servicebroker.tsql.syntax import Definition, Function, Name, Permission, Procedure, Trigger
from servicebroker.tsql.tokens import tokenize, unquote

if TYPE_CHECKING:
    from servicebroker.tsql.context import SessionDatabase
    from servicebroker.tsql.interpreter.machine import Machine

_LOG = logging.getLogger(__name__)
# `modules.py` and `synonyms.py` post the events of these kinds
_MODULE_KINDS = frozenset({"PROCEDURE", "FUNCTION", "TRIGGER", "SYNONYM"})
_KINDS_IN_SCHEMAS = frozenset({"QUEUE", "TYPE", "XML SCHEMA COLLECTION"}) | _MODULE_KINDS
_MEMBER_EVENTS = {"add_member": "ADD_ROLE_MEMBER", "drop_member": "DROP_ROLE_MEMBER"}


def post_definition_event(machine: Machine, statement: Definition) -> None:
    """Post the event of a CREATE, ALTER or DROP of a broker object, a principal or a database."""
    if statement.kind in _MODULE_KINDS:
        if statement.clauses.get("by_table"):
            _post_event(
                machine, database_of(machine, statement.name), "ALTER_TABLE", statement.name, "TABLE", statement.text
            )
        return
    event = f"{statement.keyword}_{statement.kind}".replace(" ", "_")
    kind = "SQL USER" if statement.kind == "USER" else statement.kind
    elements: list[Element] = []
    if statement.kind == "AUTHORIZATION":
        kind = statement.clauses["kind"]
        event += "_SERVER" if kind in ("DATABASE", "ENDPOINT", "LOGIN") else "_DATABASE"
        elements = [("OwnerName", statement.clauses["owner"])]
    names: Sequence[Name | str] = statement.clauses.get("names", (statement.name,))
    for clause, member_event in _MEMBER_EVENTS.items():
        if clause in statement.clauses:
            event, names = member_event, [statement.clauses[clause]]
            kind, elements = "SQL USER", [("RoleName", statement.name.object)]
    queue = statement.clauses.get("queue") if statement.kind == "EVENT NOTIFICATION" else None
    for name in names:
        object_name = name if isinstance(name, Name) else Name((name,))
        _post_event(
            machine, database_of(machine, queue or object_name), event, object_name, kind, statement.text, elements
        )


def post_permission_event(machine: Machine, statement: Permission, *, is_on_instance: bool) -> None:
    """Post the event of a GRANT, DENY or REVOKE."""
    elements: list[Element] = [
        ("Grantor", machine.database.user.name),
        ("Permissions", [("Permission", item.lower()) for item in statement.permissions]),
        ("Grantees", [("Grantee", item) for item in statement.principals]),
        ("GrantOption", str(int(statement.grant_option))),
        ("CascadeOption", str(int(statement.cascade))),
    ]
    event = f"{statement.keyword}_{'SERVER' if is_on_instance else 'DATABASE'}"
    name = statement.name or Name((machine.database.name,))
    kind = statement.kind or ("SERVER" if is_on_instance else "DATABASE")
    _post_event(machine, machine.database, event, name, kind, statement.text, elements)


def post_module_event(
    machine: Machine, database: SessionDatabase, statement: Procedure | Function | Trigger, *, is_new: bool
) -> None:
    """Post the event of a new or altered procedure, function or trigger."""
    kind = type(statement).__name__.upper()
    elements = _target_elements(statement.table) if isinstance(statement, Trigger) else []
    _post_event(
        machine, database, f"{'CREATE' if is_new else 'ALTER'}_{kind}", statement.name, kind, statement.text, elements
    )


def post_drop_event(machine: Machine, database: SessionDatabase, kind: str, name: Name, text: str) -> None:
    """Post the event of a dropped procedure, function, trigger or synonym."""
    _post_event(machine, database, f"DROP_{kind}", name, kind, text)


def post_synonym_event(machine: Machine, database: SessionDatabase, statement: Definition) -> None:
    """Post the event of a new synonym."""
    elements = [("TargetObjectName", str(statement.clauses["base"]))]
    _post_event(machine, database, "CREATE_SYNONYM", statement.name, "SYNONYM", statement.text, elements)


def post_relation_events(machine: Machine, uses: Sequence[Use], text: str) -> None:
    """Post an event for each table, view, index or sequence that a statement has created, altered or dropped."""
    for use in uses:
        keyword, _, kind = use.statement.removeprefix("CREATE OR ").partition(" ")
        database = machine.context.database_named(use.database) if use.database else machine.database
        name, elements = Name((use.schema or "dbo", use.name)), []
        if kind == "INDEX":
            elements = _target_elements(name)
            name = Name((name.schema, _index_name(text)))
        _post_event(machine, database, f"{keyword}_{kind}", name, kind, text, elements)


def _index_name(text: str) -> str:
    """Return the name after INDEX in a statement."""
    tokens = tokenize(text)
    return unquote(tokens.text(tokens.words.index("INDEX") + 1))


def _target_elements(table: Name) -> list[Element]:
    return [("TargetObjectName", table.object), ("TargetObjectType", "TABLE")]


def _post_event(
    machine: Machine,
    database: SessionDatabase,
    event: str,
    name: Name,
    kind: str,
    text: str,
    elements: Sequence[Element] = (),
) -> None:
    """Post an event if a notification subscribes to it.

    A statement without an event, such as OPEN MASTER KEY, posts none.
    """
    if event not in EVENTS or not machine.context.ask(has_notification(database.database_id, event)):
        return
    is_server_event = is_of_the_server(event)
    is_in_schema = kind in _KINDS_IN_SCHEMAS or kind in ("TABLE", "VIEW", "INDEX", "SEQUENCE", "OBJECT")
    event_instance = EventInstance(
        event,
        "",
        machine.spid,
        "",
        machine.login,
        "" if is_server_event else database.user.name,
        name.object if kind == "DATABASE" else "" if is_server_event else database.name,
        (name.schema or "dbo") if is_in_schema and not is_server_event else "",
        "" if kind == "DATABASE" and is_server_event else name.object,
        "" if kind == "DATABASE" and is_server_event else kind,
        text.strip(),
    )
    now = machine.instance.clock()
    for problem in database._run_in_transaction(send_ddl_event(database.database_id, event_instance, elements, now)):
        _LOG.error("%s", problem)
