"""Triggers: their statements run when a T-SQL session changes their table, in the same transaction.

PostgreSQL copies what a statement has inserted and deleted into temporary tables when the session asks for it
(`servicebroker.tsql_capture`); the session finds the triggers of the table and runs them. Where the table has an
INSTEAD OF trigger, PostgreSQL copies it without doing it (`store/tsql/diversions.sql`).
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from servicebroker.model.zero_character import from_postgres
from servicebroker.store.direct import run_command
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.execute_as import user_of, working_as
from servicebroker.tsql.interpreter.frame import Frame
from servicebroker.tsql.interpreter.machine import Machine, ScopeEnd, check_nesting
from servicebroker.tsql.interpreter.statement_runner import run_statement
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Trigger
from servicebroker.tsql.tokens import VARIABLE, unquoted
from servicebroker.tsql.translation.reading.text_to_tree import read

if TYPE_CHECKING:
    from servicebroker.tsql.context import SessionDatabase

_AGE = 2.0  # seconds that it is remembered whether an instance has triggers
_has: WeakKeyDictionary[object, tuple[float, bool]] = WeakKeyDictionary()
_CAPTURE = {
    "INSERT": "after insert on {table} referencing new table as inserted_rows",
    "UPDATE": "after update on {table} referencing old table as deleted_rows new table as inserted_rows",
    "DELETE": "after delete on {table} referencing old table as deleted_rows",
}
_DIVERTED = "INSTEAD_"  # before an event whose rows were copied and not changed
_OF_TABLE = (
    "select d.name, m.name, definition, parent_table, module_id, execute_as, creator, array(select s.thumbprint from "
    "servicebroker.module_signatures s where s.module_id = m.module_id and not s.is_counter) "
    "from servicebroker.tsql_modules m join servicebroker.databases d using (database_id) "
    "where kind = 'TR' and to_regclass(parent_table)::oid = $1::oid and not is_disabled "
    "order by module_id"
)


def capture(table: str) -> str:
    """What makes PostgreSQL capture the changes of a table."""
    return "; ".join(
        f"create or replace trigger tsql_capture_{event.lower()} {clause.format(table=table)} "
        "for each statement execute function servicebroker.tsql_capture()"
        for event, clause in _CAPTURE.items()
    )


def check_place(machine: Machine, trigger: Trigger, table: str) -> None:
    """Refuse a trigger that cannot be on this table or view.

    Raises:
        TsqlError: 8197 an AFTER trigger on a view, 2111 an INSTEAD OF trigger beside another one of that event.
    """
    ((is_view,),) = fetch(
        machine.connection,
        "triggers.check_place",
        "select relkind = 'v' from pg_class where oid = to_regclass($1)",
        (table,),
    )
    if is_view and not trigger.instead_of:
        raise TsqlError(8197, f"The object '{trigger.table}' does not exist or is invalid for this operation.")
    if not trigger.instead_of:
        return
    for _, other in _instead_of(machine, table):
        same = [event for event in trigger.events if event in other.events]
        if same and other.name.own.lower() != trigger.name.own.lower():
            raise TsqlError(
                2111, f"Cannot create trigger '{trigger.name}' on {'view' if is_view else 'table'} '{trigger.table}' "
                f"because an INSTEAD OF {same[0]} trigger already exists on this object."
            )  # fmt: skip


def _instead_of(machine: Machine, table: str) -> list[tuple[int, Trigger]]:
    """The INSTEAD OF triggers of a table that are not disabled, by their numbers."""
    rows = fetch(
        machine.connection,
        "triggers.instead_of",
        "select module_id, definition from servicebroker.tsql_modules where kind = 'TR' and not is_disabled "
        "and to_regclass(parent_table) = to_regclass($1)",
        (table,),
    )
    return [(number, trigger) for number, text in rows if (trigger := _parsed(text)).instead_of]


def divert(machine: Machine, table: str) -> None:
    """Have PostgreSQL copy what INSTEAD OF triggers of a table want, and not do it; no longer, where none is left."""
    ((kind,),) = fetch(
        machine.connection, "triggers.divert", "select max(relkind) from pg_class where oid = to_regclass($1)", (table,)
    )
    if kind is None:
        return
    done = [
        f"drop trigger if exists tsql_divert_{event.lower()} on {table}; "
        f"drop trigger if exists tsql_divert_row_{event.lower()} on {table}"
        for event in _CAPTURE
    ]
    for number, trigger in _instead_of(machine, table):
        for event in trigger.events:
            own = event.lower()
            done.append(
                f"create trigger tsql_divert_{own} before {own} on {table} for each statement "
                f"execute function tsql.divert_statement('{number}'); "
                f"create trigger tsql_divert_row_{own} {'instead of' if kind == 'v' else 'before'} {own} on {table} "
                "for each row execute function tsql.divert_row()"
            )
    machine.queries.define("; ".join(done))


def any_exist(machine: Machine) -> bool:
    """Return whether a database of the instance has a trigger.

    A statement reaches the tables of every database, also behind a view, so the current database does not decide.
    """
    until, known = _has.get(machine.instance.doorbell, (0.0, False))
    now = time.monotonic()
    if until < now:
        rows = fetch(
            machine.connection,
            "triggers.any_exist",
            "select from servicebroker.tsql_modules where kind = 'TR' limit 1",
            (),
        )
        known = bool(rows)
        _has[machine.instance.doorbell] = (now + _AGE, known)
    return known


def forget(machine: Machine) -> None:
    """A trigger was made or dropped."""
    _has.pop(machine.instance.doorbell, None)


def ask(machine: Machine) -> None:
    """Before a statement that may fire triggers: have its changes captured for this level."""
    fetch(
        machine.connection,
        "triggers.ask",
        "select set_config('servicebroker.tsql_level', $1, false), "
        "set_config('servicebroker.tsql_captured', '', false), set_config('servicebroker.tsql_within', $2, false)",
        (str(len(machine.frames)), ",".join(str(frame.number) for frame in machine.frames if frame.diverts)),
    )


@functools.lru_cache(maxsize=256)
def columns_set(text: str) -> frozenset[str] | None:
    """The columns, in lower case, that an UPDATE sets; None for another statement, which writes all of them."""
    piece = read(text)
    begin = piece.find("UPDATE", "INSERT", "DELETE", "MERGE")
    first = piece.find("SET", after=begin or 0)
    if begin is None or first is None or piece.words[begin] != "UPDATE":
        return None
    last = piece.find("FROM", "WHERE", "OUTPUT", "OPTION", after=first)
    found = set()
    for part in piece.part(first + 1, len(piece.words) if last is None else last).split():
        signs = [place for place in part.outside() if part.words[place].endswith("=")]
        for place in signs[:2]:  # @variable = column = value
            at = part.first + place - 1
            if part.tokens.kinds[at] != VARIABLE:
                found.add(unquoted(part.tokens.text(at)).lower())
                break
    return frozenset(found)


class Captured(NamedTuple):
    """What a statement has changed, or would have, of a table by its oid: INSERT, UPDATE or DELETE."""

    table: int
    event: str
    is_diverted: bool
    copies: dict[str, str]  # the PostgreSQL names of `inserted` and `deleted`


def captured(machine: Machine) -> list[Captured]:
    """What the statement that `ask` stood before has changed; later ones ask again."""
    level = len(machine.frames)
    ((said,),) = fetch(
        machine.connection,
        "triggers.captured",
        "select set_config('servicebroker.tsql_level', '', false) || current_setting('servicebroker.tsql_captured')",
        (),
    )
    found = []
    for place, one in enumerate(said.split(";") if said else (), 1):
        table, event = one.split()
        copies = {name: f'pg_temp."tsql_{name}_{level}_{place}"' for name in ("inserted", "deleted")}
        found.append(Captured(int(table), event.removeprefix(_DIVERTED), event.startswith(_DIVERTED), copies))
    return found


def diverted_rows(machine: Machine, found: list[Captured]) -> int:
    """How many rows a statement would have changed that INSTEAD OF triggers do now."""
    copies = [one.copies["deleted" if one.event == "DELETE" else "inserted"] for one in found if one.is_diverted]
    if not copies:
        return 0
    counts = " + ".join(f"(select count(*) from {copy})" for copy in copies)
    return int(run_statement(machine.connection, f"select {counts}", ()).rows[0][0])


def fire(machine: Machine, statement: str, changed: list[Captured]) -> None:
    """Run the triggers of what a statement has changed, each in its own database, and those that replace the change.

    Raises:
        TsqlError: 3609 a trigger has rolled the transaction back.
    """
    rows = machine.rowcount
    instead = {(one.table, one.event) for one in changed if one.is_diverted}
    for table, event, is_diverted, tables in changed:
        found = fetch(machine.connection, "triggers.fire.find_triggers", _OF_TABLE, (table,))
        try:
            for database, name, text, parent, number, execute_as, creator, signers in found:
                trigger = _parsed(text)
                is_due = is_diverted or (table, event) not in instead  # what was not done has nothing behind it
                is_due &= is_diverted or not _recurs(machine, number)
                if event in trigger.events and trigger.instead_of == is_diverted and is_due:
                    machine.queries.columns.copies.update(dict.fromkeys(tables.values(), str(parent)))
                    frame = Frame(name, number, is_module=True, signers=tuple(signers))
                    frame.diverts, frame.follows = is_diverted, not is_diverted
                    frame.updated = {"UPDATE": columns_set(statement), "INSERT": None}.get(event, frozenset())
                    there = machine.context.named(database)
                    _run(machine, there, frame, trigger, tables, (execute_as, creator))
        finally:
            for copy in tables.values():
                machine.queries.columns.copies.pop(copy, None)
            if not machine.transactions.doomed and not machine.connection.closed:  # a trigger may have said COMMIT
                machine.transactions.settle()
                run_command(machine.connection, f"drop table if exists {', '.join(tables.values())}".encode())
    machine.done(rows)


def _recurs(machine: Machine, number: int) -> bool:
    """Whether an AFTER trigger would fire itself with no other one between: RECURSIVE_TRIGGERS is OFF."""
    return next((frame.number for frame in reversed(machine.frames) if frame.follows), None) == number


def _run(
    machine: Machine,
    database: SessionDatabase,
    frame: Frame,
    trigger: Trigger,
    tables: dict[str, str],
    execute_as: tuple[str | None, str],
) -> None:
    check_nesting(machine)
    open_before = machine.transactions.count
    abort, nocount = machine.xact_abort, machine.nocount
    frame.tables.update(tables)
    machine.trigger_level += 1
    machine.xact_abort = True
    try:
        with machine.inside(frame, database, working_as(machine, user_of(*execute_as))):
            try:
                machine.run(trigger.body)
            except ScopeEnd:
                pass  # what could not be found ended the trigger alone
            finally:
                frame.tables = {one: table for one, table in frame.tables.items() if one not in tables}
    finally:
        machine.trigger_level -= 1
        machine.xact_abort, machine.nocount = abort, nocount
    if machine.transactions.count < open_before:
        error = TsqlError(3609, "The transaction ended in the trigger. The batch has been aborted.")
        error.ends_batch = True
        raise error


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Trigger:
    (statement,) = parse_text(from_postgres(text))
    assert isinstance(statement, Trigger)
    return statement
