"""ALTER SCHEMA ... TRANSFER: moves tables, views, sequences, procedures and synonyms to another schema."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.security.authorization import authorize, schema
from servicebroker.engine.security.tsql_objects import Use, forget
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import postgres_name
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.definitions.objects import defines, refuses
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import find_object
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Definition, Name
from servicebroker.tsql.translation.text_writer import postgres_schema

_RELATION_KINDS = {"U": "TABLE", "V": "VIEW", "SO": "SEQUENCE"}
_MODULE_KINDS = {"P": "PROCEDURE", "SN": "SYNONYM"}
# a trigger moves with its table
_MOVE_MODULE = (
    "update servicebroker.tsql_modules set schema_name = $2, modify_date = clock_timestamp(), "
    "parent_table = case when parent_table is null then null else $4 end, "
    "version = nextval('servicebroker.catalog_versions') "
    "where module_id = $1 or database_id = $3 and parent_table = $5 "
    f"returning {audit_context_sql(6)}"
)


@refuses("ALTER", "SCHEMA")
def _check_object_kind(statement: Definition) -> None:
    kind = statement.clauses["kind"]
    if kind != "OBJECT":
        raise unsupported(f"ALTER SCHEMA TRANSFER {kind}", "Create it in the other schema.", statement.line)


@defines("ALTER", "SCHEMA")
def _transfer(machine: Machine, statement: Definition) -> None:
    """Run ALTER SCHEMA TRANSFER. The permissions on the object are dropped, as in SQL Server.

    Raises:
        BrokerError: 15151 no such schema or object, or no permission.
        TsqlError: 15530 the name is taken in the new schema, 40515 for queues and functions.
    """
    target, name, database = statement.name.object, statement.clauses["object"], machine.context.database
    machine.transactions.check_not_doomed()
    if not machine.context.ask(schema(target)(database.user)):
        raise BrokerError(15151, "alter", "schema", target, hint="TRANSFER needs ALTER on the target schema.")
    machine.context.ask(authorize(database.user, "ALTER SCHEMA", schema(target)))
    source = find_object(machine, Name(("", *name.parts)[-2:]))
    if source is None or name.database.lower() not in ("", database.name.lower()):
        raise BrokerError(15151, "find", "object", str(name))
    kind_word = _RELATION_KINDS.get(source.type) or _MODULE_KINDS.get(source.type)
    if kind_word is None:
        raise unsupported(f"ALTER SCHEMA TRANSFER of a {source.kind}", "Create it in the other schema.", statement.line)
    machine.authorize(Use(f"DROP {kind_word}", source.schema, source.name))
    if source.schema.lower() == target.lower():
        return
    if find_object(machine, Name((target, source.name))) is not None:
        raise TsqlError(15530, f"The object with name '{source.name}' already exists.")
    single_name = quoted(postgres_name(source.name))
    old_schema, new_schema = (postgres_schema(database.name, schema_name) for schema_name in (source.schema, target))
    old_relation, new_relation = f"{old_schema}.{single_name}", f"{new_schema}.{single_name}"
    values: tuple[Any, ...] = (
        source.object_id, target, database.database_id, new_relation, old_relation, database.user.name, client_kind(),
    )  # fmt: skip
    with machine.atomic():
        if source.type in _RELATION_KINDS:
            machine.queries.define(
                f"create schema if not exists {new_schema}; alter {kind_word} {old_relation} set schema {new_schema}"
            )
        fetch(machine.connection, "schema_transfer.transfer", _MOVE_MODULE, values)
        machine.context.ask(forget(database.user, source.schema, source.name))
    machine.queries.columns.invalidate()
    machine.queries.synonyms.invalidate()
