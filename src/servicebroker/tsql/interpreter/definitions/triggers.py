"""Runs triggers when a T-SQL session changes their table, in the same transaction.

At the session's request, PostgreSQL copies the inserted and deleted rows of a statement into temporary tables
(`servicebroker.tsql_capture`). The session then finds the triggers of the table and runs them. On a table with an
INSTEAD OF trigger, PostgreSQL copies the rows and skips the change (`store/tsql/diversions.sql`).
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from servicebroker.model.zero_character import from_postgres
from servicebroker.store.direct import run_command
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.call_frame import CallFrame
from servicebroker.tsql.interpreter.execute_as import impersonation, module_user
from servicebroker.tsql.interpreter.machine import BatchAborted, Machine, ScopeAborted, check_nesting
from servicebroker.tsql.interpreter.statement_runner import run_statement
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Trigger
from servicebroker.tsql.tokens import VARIABLE, unquote
from servicebroker.tsql.translation.reading.syntax_tree import slice_text
from servicebroker.tsql.translation.result import OutputTarget

if TYPE_CHECKING:
    from servicebroker.tsql.context import SessionDatabase

_CACHE_LIFETIME_S = 2.0  # bounds the delay until a session sees the first trigger of another process
_has_any_cache: WeakKeyDictionary[object, tuple[float, bool]] = WeakKeyDictionary()
_CAPTURE_CLAUSES = {
    "INSERT": "after insert on {table} referencing new table as inserted_rows",
    "UPDATE": "after update on {table} referencing old table as deleted_rows new table as inserted_rows",
    "DELETE": "after delete on {table} referencing old table as deleted_rows",
}
_TERMINATED_NUMBER = 3621
_TERMINATED_TEXT = "The statement has been terminated."
_CAUGHT_TEXT = (
    "An error was raised during trigger execution. The batch has been aborted and the user transaction, if any, has "
    "been rolled back."
)
_DIVERTED_PREFIX = "INSTEAD_"  # prefix of an event whose rows were copied and not changed
_FIND_TRIGGERS = (
    "select d.name, m.name, definition, parent_table, module_id, execute_as, creator, array(select s.thumbprint from "
    "servicebroker.module_signatures s where s.module_id = m.module_id and not s.is_counter) "
    "from servicebroker.tsql_modules m join servicebroker.databases d using (database_id) "
    "where kind = 'TR' and to_regclass(parent_table)::oid = $1::oid and not is_disabled "
    "order by module_id"
)


class _StoredTrigger(NamedTuple):
    """A row of `_FIND_TRIGGERS`."""

    database: str
    name: str
    text: str
    table: str
    object_id: int
    execute_as: str | None
    creator: str
    signers: list[bytes]


def capture_sql(table: str) -> str:
    """Return the statements that create the capturing triggers of a table in PostgreSQL."""
    return "; ".join(
        f"create or replace trigger tsql_capture_{event.lower()} {clause.format(table=table)} "
        "for each statement execute function servicebroker.tsql_capture()"
        for event, clause in _CAPTURE_CLAUSES.items()
    )


def check_target(machine: Machine, trigger: Trigger, table: str) -> None:
    """Refuse a trigger that cannot be on this table or view.

    Raises:
        TsqlError: 8197 an AFTER trigger on a view, 2111 a second INSTEAD OF trigger for an event.
    """
    ((is_view,),) = fetch(
        machine.connection,
        "triggers.check_target",
        "select relkind = 'v' from pg_class where oid = to_regclass($1)",
        (table,),
    )
    if is_view and not trigger.instead_of:
        raise TsqlError(8197, f"The object '{trigger.table}' does not exist or is invalid for this operation.")
    if not trigger.instead_of:
        return
    for _, other in _find_enabled(machine, table, instead_of=True):
        shared_events = [event for event in trigger.events if event in other.events]
        if shared_events and other.name.object.lower() != trigger.name.object.lower():
            raise TsqlError(
                2111, f"Cannot create trigger '{trigger.name}' on {'view' if is_view else 'table'} '{trigger.table}' "
                f"because an INSTEAD OF {shared_events[0]} trigger already exists on this object."
            )  # fmt: skip


def check_output(machine: Machine, target: OutputTarget) -> None:
    """Refuse to return the changed rows of a table whose triggers may change them again.

    Raises:
        TsqlError: 334 the table has an enabled trigger for one of the changes.
    """
    for _, trigger in _find_enabled(machine, target.table):
        if set(trigger.events) & set(target.events):
            raise TsqlError(
                334, f"The target table '{target.name}' of the DML statement cannot have any enabled triggers if the "
                "statement contains an OUTPUT clause without INTO clause."
            )  # fmt: skip


def _find_enabled(machine: Machine, table: str, *, instead_of: bool | None = None) -> list[tuple[int, Trigger]]:
    """Return the enabled triggers of a table, of one kind or both, with their object_ids."""
    rows = fetch(
        machine.connection,
        "triggers.find_enabled",
        "select module_id, definition from servicebroker.tsql_modules where kind = 'TR' and not is_disabled "
        "and to_regclass(parent_table) = to_regclass($1)",
        (table,),
    )
    triggers = [(object_id, _parse_trigger(text)) for object_id, text in rows]
    return [(number, trigger) for number, trigger in triggers if instead_of in (None, trigger.instead_of)]


def install_diversions(machine: Machine, table: str) -> None:
    """Create the PostgreSQL triggers that copy the rows of a change and skip it, for each INSTEAD OF trigger.

    Triggers of earlier definitions are dropped.
    """
    ((kind,),) = fetch(
        machine.connection,
        "triggers.install_diversions",
        "select max(relkind) from pg_class where oid = to_regclass($1)",
        (table,),
    )
    if kind is None:
        return
    statements = [
        f"drop trigger if exists tsql_divert_{event.lower()} on {table}; "
        f"drop trigger if exists tsql_divert_row_{event.lower()} on {table}"
        for event in _CAPTURE_CLAUSES
    ]
    timing = "instead of" if kind == "v" else "before"
    for object_id, trigger in _find_enabled(machine, table, instead_of=True):
        for event in trigger.events:
            event_name = event.lower()
            statements.append(
                f"create trigger tsql_divert_{event_name} before {event_name} on {table} for each statement "
                f"execute function tsql.divert_statement('{object_id}'); "
                f"create trigger tsql_divert_row_{event_name} {timing} {event_name} on {table} "
                "for each row execute function tsql.divert_row()"
            )
    machine.queries.define("; ".join(statements))


def has_triggers(machine: Machine) -> bool:
    """Return True if any database of the instance has a trigger. The result is cached for two seconds.

    All databases matter, since a statement may change tables of any database, also through a view.
    """
    expires_at, has_any = _has_any_cache.get(machine.instance.notifier, (0.0, False))
    now = time.monotonic()
    if expires_at < now:
        rows = fetch(
            machine.connection,
            "triggers.has_triggers",
            "select from servicebroker.tsql_modules where kind = 'TR' limit 1",
            (),
        )
        has_any = bool(rows)
        _has_any_cache[machine.instance.notifier] = (now + _CACHE_LIFETIME_S, has_any)
    return has_any


def invalidate(machine: Machine) -> None:
    """Discard the cached result of `has_triggers`, after a trigger was created or dropped."""
    _has_any_cache.pop(machine.instance.notifier, None)


def start_capture(machine: Machine) -> None:
    """Capture the changes of the next statement, at this nesting level."""
    fetch(
        machine.connection,
        "triggers.start_capture",
        "select set_config('servicebroker.tsql_level', $1, false), "
        "set_config('servicebroker.tsql_captured', '', false), set_config('servicebroker.tsql_within', $2, false)",
        (
            str(len(machine.frames)),
            ",".join(str(frame.object_id) for frame in machine.frames if frame.is_instead_of_trigger),
        ),
    )


@functools.lru_cache(maxsize=256)
def updated_columns(text: str) -> frozenset[str] | None:
    """Return the columns that an UPDATE sets, in lower case; None for another statement, which writes all columns."""
    piece = slice_text(text)
    keyword = piece.find("UPDATE", "INSERT", "DELETE", "MERGE")
    set_word = piece.find("SET", after=keyword or 0)
    if keyword is None or set_word is None or piece.words[keyword] != "UPDATE":
        return None
    end = piece.find("FROM", "WHERE", "OUTPUT", "OPTION", after=set_word)
    columns = set()
    for part in piece.part(set_word + 1, len(piece.words) if end is None else end).split():
        equal_signs = [index for index in part.outside() if part.words[index].endswith("=")]
        for index in equal_signs[:2]:  # @variable = column = value
            token_index = part.first + index - 1
            if part.tokens.kinds[token_index] != VARIABLE:
                columns.add(unquote(part.tokens.text(token_index)).lower())
                break
    return frozenset(columns)


class CapturedChange(NamedTuple):
    """A change of a table by one statement, executed or replaced by an INSTEAD OF trigger.

    Attributes:
        table: the oid of the table.
        event: INSERT, UPDATE or DELETE.
        is_diverted: True if the rows were copied for an INSTEAD OF trigger and not changed.
        copies: the PostgreSQL names of `inserted` and `deleted`.
    """

    table: int
    event: str
    is_diverted: bool
    copies: dict[str, str]


def finish_capture(machine: Machine) -> list[CapturedChange]:
    """Return the changes since `start_capture`, and end the capture."""
    level = len(machine.frames)
    ((captured,),) = fetch(
        machine.connection,
        "triggers.finish_capture",
        "select set_config('servicebroker.tsql_level', '', false) || current_setting('servicebroker.tsql_captured')",
        (),
    )
    changes = []
    for number, entry in enumerate(captured.split(";") if captured else (), 1):
        table, event = entry.split()
        copies = {name: f'pg_temp."tsql_{name}_{level}_{number}"' for name in ("inserted", "deleted")}
        changes.append(
            CapturedChange(int(table), event.removeprefix(_DIVERTED_PREFIX), event.startswith(_DIVERTED_PREFIX), copies)
        )
    return changes


def count_diverted_rows(machine: Machine, changes: list[CapturedChange]) -> int:
    """Return the number of rows that a statement would have changed without INSTEAD OF triggers."""
    copies = [
        change.copies["deleted" if change.event == "DELETE" else "inserted"] for change in changes if change.is_diverted
    ]
    if not copies:
        return 0
    counts = " + ".join(f"(select count(*) from {copy})" for copy in copies)
    return int(run_statement(machine.connection, f"select {counts}", ()).rows[0][0])


def fire(machine: Machine, statement: str, changes: list[CapturedChange]) -> None:
    """Run the triggers of the changes, each in its own database. An INSTEAD OF trigger replaces its change.

    Raises:
        TsqlError: 3609 a trigger has ended the transaction, 3616 it has caught an error that dooms the transaction.
    """
    row_count = machine.rowcount
    replaced = {(change.table, change.event) for change in changes if change.is_diverted}
    for table, event, is_diverted, copies in changes:
        rows = fetch(machine.connection, "triggers.fire.find_triggers", _FIND_TRIGGERS, (table,))
        triggers = [_StoredTrigger(*row) for row in rows]
        try:
            for stored in triggers:
                trigger = _parse_trigger(stored.text)
                # AFTER triggers do not fire for a replaced change.
                is_due = is_diverted or (table, event) not in replaced
                is_due &= is_diverted or not _is_recursive(machine, stored.object_id)
                if event in trigger.events and trigger.instead_of == is_diverted and is_due:
                    machine.queries.columns.copies.update(dict.fromkeys(copies.values(), stored.table))
                    frame = CallFrame(stored.name, stored.object_id, is_module=True, signers=tuple(stored.signers))
                    frame.is_instead_of_trigger, frame.is_after_trigger = is_diverted, not is_diverted
                    frame.updated_columns = {"UPDATE": updated_columns(statement), "INSERT": None}.get(
                        event, frozenset()
                    )
                    database = machine.context.database_named(stored.database)
                    user = module_user(stored.execute_as, stored.creator)
                    _run_trigger(machine, database, frame, trigger, copies, user)
        finally:
            for copy_name in copies.values():
                machine.queries.columns.copies.pop(copy_name, None)
            if not machine.transactions.is_doomed and not machine.connection.closed:  # also after a COMMIT in a trigger
                machine.transactions.release_guard()
                run_command(machine.connection, f"drop table if exists {', '.join(copies.values())}".encode())
    machine.record_success(row_count)


def _is_recursive(machine: Machine, object_id: int) -> bool:
    """Return True if an AFTER trigger would fire itself directly, which it does not: RECURSIVE_TRIGGERS is OFF."""
    return next((frame.object_id for frame in reversed(machine.frames) if frame.is_after_trigger), None) == object_id


def _run_trigger(
    machine: Machine,
    database: SessionDatabase,
    frame: CallFrame,
    trigger: Trigger,
    copies: dict[str, str],
    user: str | None,
) -> None:
    """Run one trigger with XACT_ABORT ON and `inserted` and `deleted`, and restore the options afterwards.

    An error that leaves the outermost trigger outside of TRY is followed by message 3621.

    Raises:
        TsqlError: 3609 the trigger has ended the transaction, 3616 it has caught an error that dooms the transaction.
    """
    check_nesting(machine)
    count_before = machine.transactions.count
    saved_xact_abort, saved_nocount = machine.xact_abort, machine.nocount
    frame.tables.update(copies)
    machine.trigger_level += 1
    machine.xact_abort = True
    try:
        with machine.enter_frame(frame, database, impersonation(machine, user)):
            try:
                machine.run(trigger.body)
            except ScopeAborted:
                pass  # a missing name ends the trigger, and the statement continues
            except BatchAborted:
                if machine.trigger_level == 1:
                    machine.emit(Message(_TERMINATED_TEXT, _TERMINATED_NUMBER, line=1))
                raise
            finally:
                frame.tables = {
                    table_name: table for table_name, table in frame.tables.items() if table_name not in copies
                }
    finally:
        machine.trigger_level -= 1
        machine.xact_abort, machine.nocount = saved_xact_abort, saved_nocount
    if machine.transactions.count < count_before:
        error = TsqlError(3609, "The transaction ended in the trigger. The batch has been aborted.")
        error.ends_batch = True
        raise error
    if machine.transactions.is_doomed:
        error = TsqlError(3616, _CAUGHT_TEXT)
        error.undoes = True
        raise error


@functools.lru_cache(maxsize=256)
def _parse_trigger(text: str) -> Trigger:
    (statement,) = parse_text(from_postgres(text))
    assert isinstance(statement, Trigger)
    return statement
