"""sp_rename: tables, views, columns, indexes, procedures, triggers and synonyms."""

from __future__ import annotations

from typing import Any

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.faces import face, telling
from servicebroker.model.names import checked, postgres_name
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.calls import system
from servicebroker.tsql.interpreter.definitions import triggers
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import Shown, find_object, text_arguments
from servicebroker.tsql.known_columns import noted
from servicebroker.tsql.parser.token_reader import name_in
from servicebroker.tsql.statement_errors import Message, TsqlError, unsupported
from servicebroker.tsql.syntax import Execute, Name
from servicebroker.tsql.translation.text_writer import identifier, schema_of, string

_CAUTION = "Caution: Changing any part of an object name could break scripts and stored procedures."
_MODULES = {"P": "PROCEDURE", "TR": "TRIGGER", "SN": "SYNONYM"}
_RELATIONS = {"U": "TABLE", "V": "VIEW"}


@system("sp_rename")
def _sp_rename(machine: Machine, statement: Execute) -> None:
    """Give something a new name; texts that say the old one stay as they are.

    Raises:
        TsqlError: 15225 and 15248 there is no such thing, 15249 the kind is none, 15335 the new name is taken, 15223 it
            is NULL, 40515 for queues, functions, sequences, constraints, types and databases.
    """
    old, new, said = text_arguments(machine, statement, ("@objname", "@newname", "@objtype"), 2)
    kind = (said or "OBJECT").upper()
    if not old or not new:
        raise TsqlError(15223, "Error: The input parameter 'newname' is not allowed to be null.", severity=11)
    checked("object", new)
    machine.transactions.check()
    if kind in ("COLUMN", "INDEX"):
        _rename_member(machine, old, new, kind)
    elif kind == "OBJECT":
        _rename_object(machine, old, new)
    elif kind in ("DATABASE", "USERDATATYPE", "STATISTICS"):
        raise unsupported(f"sp_rename of a {kind}", "Create it under the new name.", statement.line)
    else:
        raise TsqlError(15249, f"Error: Explicit @objtype '{said}' is unrecognized.", severity=11)
    machine.queries.columns.forget()
    machine.queries.synonyms.forget()
    triggers.forget(machine)
    machine.say(Message(_CAUTION))


def _parsed(machine: Machine, said: str, kind: str, parts: int) -> Name:
    """The name of so many parts at most, without a database before them.

    Raises:
        TsqlError: 15225 this is no name, or one of another database.
    """
    try:
        name = name_in(said)
    except TsqlError:
        raise _nothing(machine, said, kind) from None
    if len(name.parts) <= parts:
        return name
    if len(name.parts) > parts + 1 or name.parts[0].lower() != machine.database.name.lower():
        raise _nothing(machine, said, kind)
    return Name(name.parts[1:])


def _nothing(machine: Machine, said: str, kind: str) -> TsqlError:
    return TsqlError(
        15225, f"No item by the name of '{said}' could be found in the current database '{machine.database.name}', "
        f"given that @itemtype was input as '({kind})'.", severity=11,
    )  # fmt: skip


def _taken(name: str, kind: str) -> TsqlError:
    return TsqlError(
        15335, f"Error: The new name '{name}' is already in use as a {kind} name and would cause a duplicate that is "
        "not permitted.", severity=11,
    )  # fmt: skip


def _table(machine: Machine, shown: Shown) -> str:
    return f"{schema_of(machine.database.name, shown.schema)}.{quoted(postgres_name(shown.name))}"


# ---------------------------------------------------------------- objects


def _rename_object(machine: Machine, said: str, new: str) -> None:
    shown = find_object(machine, _parsed(machine, said, "null", 2))
    if shown is None:
        raise _nothing(machine, said, "null")
    what = _MODULES.get(shown.type) or _RELATIONS.get(shown.type)
    if what is None:
        raise unsupported(f"sp_rename of a {shown.kind}", "Create it under the new name.", 0)
    machine.allow(Use(f"DROP {what}", shown.schema, shown.name))
    if new.lower() != shown.name.lower() and find_object(machine, Name((shown.schema, new))) is not None:
        raise _taken(new, "OBJECT")
    with machine.whole():
        if what in _RELATIONS.values():
            _rename_relation(machine, shown, what, new)
        else:
            _change(machine, "renaming.module", (
                "update servicebroker.tsql_modules set name = $2, modify_date = clock_timestamp(), "
                f"version = nextval('servicebroker.catalog_versions') where module_id = $1 returning {telling(3)}"
            ), (shown.number, new, machine.database.user.name, face()))  # fmt: skip
        _change(machine, "renaming.permissions", (
            "update servicebroker.tsql_objects set postgres_name = $4 where database_id = $1 and postgres_schema = $2 "
            "and postgres_name = $3"
        ), (
            machine.database.database_id, postgres_name(machine.database.name, shown.schema), postgres_name(shown.name),
            postgres_name(new),
        ))  # fmt: skip


def _rename_relation(machine: Machine, shown: Shown, what: str, new: str) -> None:
    """Names of indexes in PostgreSQL begin with their table's, and triggers know it by its name."""
    old = _table(machine, shown)
    schema = schema_of(machine.database.name, shown.schema)
    changed = f"{schema}.{quoted(postgres_name(new))}"
    done = []
    if changed != old:
        for (index,) in fetch(machine.connection, "renaming.rename_relation", _INDEXES, (old,)):
            own, renamed = postgres_name(shown.name, index), postgres_name(new, index)
            done.append(f"alter index {schema}.{quoted(own)} rename to {quoted(renamed)}")
        done.append(f"alter {what} {old} rename to {quoted(postgres_name(new))}")
    ((text,),) = fetch(machine.connection, "renaming.rename_relation.text", _TEXT, (old,))
    note = new if text is None else f"{new}\n{text}"
    done.append(f"comment on {what} {changed} is {string(note)}")
    machine.queries.define("; ".join(done))
    _change(machine, "renaming.parents", (
        f"update servicebroker.tsql_modules set parent_table = $2 where parent_table = $1 returning {telling(3)}"
    ), (old, changed, machine.database.user.name, face()))  # fmt: skip


_TEXT = "select tsql.noted_text(to_regclass($1))"
_INDEXES = (
    "select obj_description(c.oid, 'pg_class') from pg_index i join pg_class c on c.oid = i.indexrelid "
    "where i.indrelid = to_regclass($1) and obj_description(c.oid, 'pg_class') is not null"
)


def _change(machine: Machine, what: str, text: str, values: tuple[Any, ...]) -> None:
    machine.transactions.guard()
    try:
        fetch(machine.connection, what, text, values)
    except BaseException:
        machine.transactions.undo()
        raise


# ---------------------------------------------------------------- columns and indexes


def _rename_member(machine: Machine, said: str, new: str, kind: str) -> None:
    name = _parsed(machine, said, kind, 3)
    shown = find_object(machine, Name(name.parts[:-1])) if len(name.parts) > 1 else None
    if shown is None or shown.type != "U":
        raise _ambiguous(kind)
    machine.allow(Use("ALTER TABLE", shown.schema, shown.name))
    table = _table(machine, shown)
    if kind == "COLUMN":
        _rename_column(machine, table, name.own, new)
    else:
        _rename_index(machine, shown, name.own, new)


def _ambiguous(kind: str) -> TsqlError:
    return TsqlError(
        15248, f"Either the parameter @objname is ambiguous or the claimed @objtype ({kind}) is wrong.", severity=11
    )


def _rename_column(machine: Machine, table: str, old: str, new: str) -> None:
    """The column's comment is its type and its name."""
    columns = {column.name.lower(): column for column in machine.queries.columns.get(table, ())}
    column = columns.get(old.lower())
    if column is None:
        raise _ambiguous("COLUMN")
    if new.lower() in columns and new.lower() != old.lower():
        raise _taken(new, "COLUMN")
    own, renamed = identifier(column.name), identifier(new)
    done = [] if own == renamed else [f"alter table {table} rename column {own} to {renamed}"]
    if done:  # a foreign key that is switched off names it in its comment
        done.append(f"select tsql.rename_held_column({string(table)}, {string(own)}, {string(renamed)})")
    note = string(noted(column._replace(name=new)))
    machine.queries.define("; ".join([*done, f"comment on column {table}.{renamed} is {note}"]))


def _rename_index(machine: Machine, shown: Shown, old: str, new: str) -> None:
    schema = schema_of(machine.database.name, shown.schema)
    own, renamed = (f"{schema}.{quoted(postgres_name(shown.name, index))}" for index in (old, new))
    there = [
        found
        for (found,) in fetch(
            machine.connection,
            "renaming.rename_index",
            "select to_regclass(n) is not null from unnest($1::text[]) with ordinality u (n, place) order by place",
            ([own, renamed],),
        )
    ]
    if not there[0]:
        raise _ambiguous("INDEX")
    if there[1] and own != renamed:
        raise _taken(new, "INDEX")
    done = [] if own == renamed else [f"alter index {own} rename to {quoted(postgres_name(shown.name, new))}"]
    machine.queries.define("; ".join([*done, f"comment on index {renamed} is {string(new)}"]))
