"""sp_rename of tables, views, columns, indexes, procedures, triggers and synonyms."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.names import checked, postgres_name
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.calls import system_procedure
from servicebroker.tsql.interpreter.definitions import triggers
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import CatalogObject, bind_texts, find_object
from servicebroker.tsql.known_columns import column_comment
from servicebroker.tsql.parser.token_reader import parse_name
from servicebroker.tsql.statement_errors import Message, TsqlError, unsupported
from servicebroker.tsql.syntax import Execute, Name
from servicebroker.tsql.translation.text_writer import postgres_schema, quote_identifier, quote_string

_WARNING = "Caution: Changing any part of an object name could break scripts and stored procedures."
_MODULE_KINDS = {"P": "PROCEDURE", "TR": "TRIGGER", "SN": "SYNONYM"}
_RELATION_KINDS = {"U": "TABLE", "V": "VIEW"}


@system_procedure("sp_rename")
def _sp_rename(machine: Machine, statement: Execute) -> None:
    """Rename an object, a column or an index. Texts that contain the old name are not changed.

    Raises:
        TsqlError: 15225 and 15248 no such object, 15249 an unknown @objtype, 15335 the new name is taken, 15223 a name
            is missing, 40515 for queues, functions, sequences, constraints, types and databases.
    """
    old, new, type_argument = bind_texts(machine, statement, ("@objname", "@newname", "@objtype"), 2)
    kind = (type_argument or "OBJECT").upper()
    if not old or not new:
        raise TsqlError(15223, "Error: The input parameter 'newname' is not allowed to be null.", severity=11)
    checked("object", new)
    machine.transactions.check_not_doomed()
    if kind in ("COLUMN", "INDEX"):
        _rename_member(machine, old, new, kind)
    elif kind == "OBJECT":
        _rename_object(machine, old, new)
    elif kind in ("DATABASE", "USERDATATYPE", "STATISTICS"):
        raise unsupported(f"sp_rename of a {kind}", "Create it under the new name.", statement.line)
    else:
        raise TsqlError(15249, f"Error: Explicit @objtype '{type_argument}' is unrecognized.", severity=11)
    machine.queries.columns.invalidate()
    machine.queries.synonyms.invalidate()
    triggers.invalidate(machine)
    machine.emit(Message(_WARNING))


def _parse_name(machine: Machine, text: str, kind: str, max_parts: int) -> Name:
    """Return a name of at most `max_parts` parts, without its database.

    Raises:
        TsqlError: 15225 the text is not a name, or names another database.
    """
    try:
        name = parse_name(text)
    except TsqlError:
        raise _item_missing(machine, text, kind) from None
    if len(name.parts) <= max_parts:
        return name
    if len(name.parts) > max_parts + 1 or name.parts[0].lower() != machine.database.name.lower():
        raise _item_missing(machine, text, kind)
    return Name(name.parts[1:])


def _item_missing(machine: Machine, text: str, kind: str) -> TsqlError:
    return TsqlError(
        15225, f"No item by the name of '{text}' could be found in the current database '{machine.database.name}', "
        f"given that @itemtype was input as '({kind})'.", severity=11,
    )  # fmt: skip


def _name_taken(name: str, kind: str) -> TsqlError:
    return TsqlError(
        15335, f"Error: The new name '{name}' is already in use as a {kind} name and would cause a duplicate that is "
        "not permitted.", severity=11,
    )  # fmt: skip


def _postgres_table(machine: Machine, catalog_object: CatalogObject) -> str:
    return (
        f"{postgres_schema(machine.database.name, catalog_object.schema)}.{quoted(postgres_name(catalog_object.name))}"
    )


# ---------------------------------------------------------------- objects


def _rename_object(machine: Machine, text: str, new: str) -> None:
    """Rename a table, view, procedure, trigger or synonym, with the permissions on it."""
    renamed = find_object(machine, _parse_name(machine, text, "null", 2))
    if renamed is None:
        raise _item_missing(machine, text, "null")
    kind_word = _MODULE_KINDS.get(renamed.type) or _RELATION_KINDS.get(renamed.type)
    if kind_word is None:
        raise unsupported(f"sp_rename of a {renamed.kind}", "Create it under the new name.", 0)
    machine.authorize(Use(f"DROP {kind_word}", renamed.schema, renamed.name))
    if new.lower() != renamed.name.lower() and find_object(machine, Name((renamed.schema, new))) is not None:
        raise _name_taken(new, "OBJECT")
    with machine.atomic():
        if kind_word in _RELATION_KINDS.values():
            _rename_relation(machine, renamed, kind_word, new)
        else:
            _update_catalog(machine, "renaming.module", (
                "update servicebroker.tsql_modules set name = $2, modify_date = clock_timestamp(), "
                "version = nextval('servicebroker.catalog_versions') where module_id = $1 "
                f"returning {audit_context_sql(3)}"
            ), (renamed.object_id, new, machine.database.user.name, client_kind()))  # fmt: skip
        _update_catalog(machine, "renaming.permissions", (
            "update servicebroker.tsql_objects set postgres_name = $4 where database_id = $1 and postgres_schema = $2 "
            "and postgres_name = $3"
        ), (
            machine.database.database_id, postgres_name(machine.database.name, renamed.schema),
            postgres_name(renamed.name), postgres_name(new),
        ))  # fmt: skip


def _rename_relation(machine: Machine, catalog_object: CatalogObject, kind_word: str, new: str) -> None:
    """Rename a table or view, its indexes, and the parent of its triggers.

    The PostgreSQL name of an index begins with that of its table.
    """
    old_table = _postgres_table(machine, catalog_object)
    schema = postgres_schema(machine.database.name, catalog_object.schema)
    new_table = f"{schema}.{quoted(postgres_name(new))}"
    statements = []
    if new_table != old_table:
        for (index,) in fetch(machine.connection, "renaming.rename_relation", _LIST_INDEXES, (old_table,)):
            old_index, new_index = postgres_name(catalog_object.name, index), postgres_name(new, index)
            statements.append(f"alter index {schema}.{quoted(old_index)} rename to {quoted(new_index)}")
        statements.append(f"alter {kind_word} {old_table} rename to {quoted(postgres_name(new))}")
    ((text,),) = fetch(machine.connection, "renaming.rename_relation.text", _READ_TEXT, (old_table,))
    note = new if text is None else f"{new}\n{text}"
    statements.append(f"comment on {kind_word} {new_table} is {quote_string(note)}")
    machine.queries.define("; ".join(statements))
    _update_catalog(machine, "renaming.parents", (
        "update servicebroker.tsql_modules set parent_table = $2 where parent_table = $1 "
        f"returning {audit_context_sql(3)}"
    ), (old_table, new_table, machine.database.user.name, client_kind()))  # fmt: skip


_READ_TEXT = "select tsql.noted_text(to_regclass($1))"
_LIST_INDEXES = (
    "select obj_description(c.oid, 'pg_class') from pg_index i join pg_class c on c.oid = i.indexrelid "
    "where i.indrelid = to_regclass($1) and obj_description(c.oid, 'pg_class') is not null"
)


def _update_catalog(machine: Machine, statement_name: str, text: str, values: tuple[Any, ...]) -> None:
    """Run an update of the catalog with a guard: a failure undoes only this update."""
    machine.transactions.set_guard()
    try:
        fetch(machine.connection, statement_name, text, values)
    except BaseException:
        machine.transactions.undo_statement()
        raise


# ---------------------------------------------------------------- columns and indexes


def _rename_member(machine: Machine, text: str, new: str, kind: str) -> None:
    """Rename a column or an index of a table."""
    name = _parse_name(machine, text, kind, 3)
    table_object = find_object(machine, Name(name.parts[:-1])) if len(name.parts) > 1 else None
    if table_object is None or table_object.type != "U":
        raise _ambiguous_name(kind)
    machine.authorize(Use("ALTER TABLE", table_object.schema, table_object.name))
    postgres_table = _postgres_table(machine, table_object)
    if kind == "COLUMN":
        _rename_column(machine, postgres_table, name.object, new)
    else:
        _rename_index(machine, table_object, name.object, new)


def _ambiguous_name(kind: str) -> TsqlError:
    return TsqlError(
        15248, f"Either the parameter @objname is ambiguous or the claimed @objtype ({kind}) is wrong.", severity=11
    )


def _rename_column(machine: Machine, table: str, old: str, new: str) -> None:
    """Rename a column, and the name in its comment, which holds type and name."""
    columns = {column.name.lower(): column for column in machine.queries.columns.get(table, ())}
    column = columns.get(old.lower())
    if column is None:
        raise _ambiguous_name("COLUMN")
    if new.lower() in columns and new.lower() != old.lower():
        raise _name_taken(new, "COLUMN")
    old_column, new_column = quote_identifier(column.name), quote_identifier(new)
    statements = [] if old_column == new_column else [f"alter table {table} rename column {old_column} to {new_column}"]
    if statements:  # the comment of a disabled foreign key contains the name
        arguments = ", ".join(quote_string(name) for name in (table, old_column, new_column))
        statements.append(f"select tsql.rename_held_column({arguments})")
    note = quote_string(column_comment(column._replace(name=new)))
    machine.queries.define("; ".join([*statements, f"comment on column {table}.{new_column} is {note}"]))


def _rename_index(machine: Machine, table_object: CatalogObject, old: str, new: str) -> None:
    schema = postgres_schema(machine.database.name, table_object.schema)
    old_index, new_index = (f"{schema}.{quoted(postgres_name(table_object.name, index))}" for index in (old, new))
    exists = [
        is_there
        for (is_there,) in fetch(
            machine.connection,
            "renaming.rename_index",
            "select to_regclass(n) is not null from unnest($1::text[]) with ordinality u (n, place) order by place",
            ([old_index, new_index],),
        )
    ]
    if not exists[0]:
        raise _ambiguous_name("INDEX")
    if exists[1] and old_index != new_index:
        raise _name_taken(new, "INDEX")
    statements = (
        []
        if old_index == new_index
        else [f"alter index {old_index} rename to {quoted(postgres_name(table_object.name, new))}"]
    )
    machine.queries.define("; ".join([*statements, f"comment on index {new_index} is {quote_string(new)}"]))
