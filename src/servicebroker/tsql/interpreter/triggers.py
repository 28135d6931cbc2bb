"""AFTER triggers: their statements run when a T-SQL session has changed their table, in the same transaction.

PostgreSQL copies what a statement has inserted and deleted into temporary tables (migration 0017) when the session asks
for it; the session finds the triggers of the table and runs them.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.store.direct import run_command
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.frame import Frame
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Trigger
from servicebroker.tsql.tokens import VARIABLE, unquoted
from servicebroker.tsql.translation.reading.text_to_tree import read

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_AGE = 2.0  # seconds that it is remembered whether a database has triggers
_has: WeakKeyDictionary[object, dict[int, tuple[float, bool]]] = WeakKeyDictionary()
_CAPTURE = {
    "INSERT": "after insert on {table} referencing new table as inserted_rows",
    "UPDATE": "after update on {table} referencing old table as deleted_rows new table as inserted_rows",
    "DELETE": "after delete on {table} referencing old table as deleted_rows",
}
_OF_TABLE = (
    "select name, definition, parent_table, module_id, execute_as, creator, array(select s.thumbprint from "
    "servicebroker.module_signatures s where s.module_id = m.module_id and not s.is_counter) "
    "from servicebroker.tsql_modules m "
    "where kind = 'TR' and database_id = $1 and to_regclass(parent_table)::oid = $2::oid and not is_disabled "
    "order by module_id"
)


def capture(table: str) -> str:
    """What makes PostgreSQL capture the changes of a table."""
    return "; ".join(
        f"create or replace trigger tsql_capture_{event.lower()} {clause.format(table=table)} "
        "for each statement execute function servicebroker.tsql_capture()"
        for event, clause in _CAPTURE.items()
    )


def any_here(machine: Machine) -> bool:
    """Whether the current database has a trigger."""
    known = _has.setdefault(machine.instance.doorbell, {})
    number, now = machine.database.database_id, time.monotonic()
    if number not in known or known[number][0] < now:
        rows = fetch(
            machine.connection,
            "triggers.any_here",
            "select from servicebroker.tsql_modules where kind = 'TR' and database_id = $1 limit 1",
            (number,),
        )
        known[number] = (now + _AGE, bool(rows))
    return known[number][1]


def forget(machine: Machine) -> None:
    """A trigger was made or dropped."""
    _has.pop(machine.instance.doorbell, None)


def ask(machine: Machine) -> None:
    """Before a statement that may fire triggers: have its changes captured for this level."""
    fetch(
        machine.connection,
        "triggers.ask",
        "select set_config('servicebroker.tsql_level', $1, false), "
        "set_config('servicebroker.tsql_captured', '', false)",
        (str(len(machine.frames)),),
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


def fire(machine: Machine, statement: str) -> None:
    """After it: run the triggers of what it has changed.

    Raises:
        TsqlError: 3609 a trigger has rolled the transaction back.
    """
    level = len(machine.frames)
    ((captured,),) = fetch(
        machine.connection,
        "triggers.fire.find_captured",
        "select set_config('servicebroker.tsql_level', '', false) || current_setting('servicebroker.tsql_captured')",
        (),
    )
    rows = machine.rowcount
    for place, one in enumerate(captured.split(";") if captured else (), 1):
        table, event = one.split()
        tables = {name: f'pg_temp."tsql_{name}_{level}_{place}"' for name in ("inserted", "deleted")}
        found = fetch(
            machine.connection,
            "triggers.fire.find_triggers",
            _OF_TABLE,
            (machine.database.database_id, int(table)),
        )
        try:
            for name, text, parent, number, execute_as, creator, signers in found:
                trigger = _parsed(text)
                if event in trigger.events:
                    machine.queries.columns.copies.update(dict.fromkeys(tables.values(), str(parent)))
                    frame = Frame(name, number, is_module=True, signers=tuple(signers))
                    frame.updated = {"UPDATE": columns_set(statement), "INSERT": None}.get(event, frozenset())
                    _run(machine, frame, trigger, tables, (execute_as, creator))
        finally:
            for copy in tables.values():
                machine.queries.columns.copies.pop(copy, None)
            if machine.transactions.count and not machine.transactions.doomed:
                machine.transactions.settle()
                run_command(machine.connection, f"drop table if exists {', '.join(tables.values())}".encode())
    machine.done(rows)


def _run(
    machine: Machine, frame: Frame, trigger: Trigger, tables: dict[str, str], execute_as: tuple[str | None, str]
) -> None:
    from servicebroker.tsql.interpreter.calls import check_nesting
    from servicebroker.tsql.interpreter.machine import ScopeEnd
    from servicebroker.tsql.interpreter.modules import user_of, working_as

    check_nesting(machine)
    open_before = machine.transactions.count
    abort, nocount = machine.xact_abort, machine.nocount
    frame.tables.update(tables)
    machine.trigger_level += 1
    machine.xact_abort = True
    try:
        with machine.inside(frame, machine.context.database, working_as(machine, user_of(*execute_as))):
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
    (statement,) = parse_text(text)
    assert isinstance(statement, Trigger)
    return statement
