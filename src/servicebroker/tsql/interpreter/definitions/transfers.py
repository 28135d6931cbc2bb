"""ALTER SCHEMA ... TRANSFER: tables, views, sequences, procedures and synonyms go to another schema."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.security.authorization import authorize, schema
from servicebroker.engine.security.tsql_objects import Use, forget
from servicebroker.model.errors import BrokerError
from servicebroker.model.faces import face, telling
from servicebroker.model.names import postgres_name
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.definitions.objects import defines, refuses
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import find_object
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Definition, Name
from servicebroker.tsql.translation.text_writer import schema_of

_RELATIONS = {"U": "TABLE", "V": "VIEW", "SO": "SEQUENCE"}
_MODULES = {"P": "PROCEDURE", "SN": "SYNONYM"}
# a trigger goes with its table
_MOVE = (
    "update servicebroker.tsql_modules set schema_name = $2, modify_date = clock_timestamp(), "
    "parent_table = case when parent_table is null then null else $4 end, "
    "version = nextval('servicebroker.catalog_versions') "
    "where module_id = $1 or database_id = $3 and parent_table = $5 "
    f"returning {telling(6)}"
)


@refuses("ALTER", "SCHEMA")
def _only_objects(statement: Definition) -> None:
    kind = statement.clauses["kind"]
    if kind != "OBJECT":
        raise unsupported(f"ALTER SCHEMA TRANSFER {kind}", "Create it in the other schema.", statement.line)


@defines("ALTER", "SCHEMA")
def _transfer(machine: Machine, statement: Definition) -> None:
    """What was granted on the object is gone, as there.

    Raises:
        BrokerError: 15151 there is no such schema or object, or not for who works.
        TsqlError: 15530 the name is taken there, 40515 for queues and functions.
    """
    target, name, database = statement.name.own, statement.clauses["object"], machine.context.database
    machine.transactions.check()
    if not machine.context.ask(schema(target)(database.user)):
        raise BrokerError(15151, "alter", "schema", target)
    machine.context.ask(authorize(database.user, "ALTER SCHEMA", schema(target)))
    shown = find_object(machine, Name(("", *name.parts)[-2:]))
    if shown is None or name.database.lower() not in ("", database.name.lower()):
        raise BrokerError(15151, "find", "object", str(name))
    what = _RELATIONS.get(shown.type) or _MODULES.get(shown.type)
    if what is None:
        raise unsupported(f"ALTER SCHEMA TRANSFER of a {shown.kind}", "Create it in the other schema.", statement.line)
    machine.allow(Use(f"DROP {what}", shown.schema, shown.name))
    if shown.schema.lower() == target.lower():
        return
    if find_object(machine, Name((target, shown.name))) is not None:
        raise TsqlError(15530, f"The object with name '{shown.name}' already exists.")
    own = quoted(postgres_name(shown.name))
    before, behind = (f"{schema_of(database.name, each)}" for each in (shown.schema, target))
    values: tuple[Any, ...] = (
        shown.number, target, database.database_id, f"{behind}.{own}", f"{before}.{own}", database.user.name, face(),
    )  # fmt: skip
    with machine.whole():
        if shown.type in _RELATIONS:
            machine.queries.define(
                f"create schema if not exists {behind}; alter {what} {before}.{own} set schema {behind}"
            )
        fetch(machine.connection, "transfers.transfer", _MOVE, values)
        machine.context.ask(forget(database.user, shown.schema, shown.name))
    machine.queries.columns.forget()
    machine.queries.synonyms.forget()
