"""Procedures of one session, #name, each stored as the comment of a function in PostgreSQL's temporary schema.

They go like every temporary object: with the session, and with a ROLLBACK of their CREATE. No user owns them, and they
work with the permissions of their caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Procedure
from servicebroker.tsql.translation.text_writer import quote_string

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


class TemporaryProcedure(NamedTuple):
    """A procedure of the session: its object_id and its text."""

    object_id: int
    text: str


def is_temporary(name: str) -> bool:
    """Return True if a procedure of that name belongs to the session."""
    return name.startswith("#")


def check_temporary(statement: Procedure) -> None:
    """Refuse a global temporary procedure, and a temporary one with EXECUTE AS.

    Raises:
        TsqlError: 40515 such a procedure.
    """
    if statement.name.object.startswith("##"):
        raise unsupported("A global temporary procedure", "Give it a name without ##.", statement.line)
    if is_temporary(statement.name.object) and statement.execute_as not in (None, "CALLER"):
        raise unsupported("EXECUTE AS of a temporary procedure", "Leave it out.", statement.line)


def find_temporary(machine: Machine, name: str) -> TemporaryProcedure | None:
    """Return a temporary procedure; None if no such procedure exists."""
    rows = fetch(
        machine.connection,
        "temporary_procedures.find_temporary",
        "select f::oid::bigint, obj_description(f::oid, 'pg_proc') from to_regprocedure($1) f where f is not null",
        (_function_name(name),),
    )
    return TemporaryProcedure(*rows[0]) if rows else None


def store_temporary(machine: Machine, statement: Procedure) -> None:
    """Store the text of a temporary procedure.

    Raises:
        TsqlError: 2714 the name is taken, 208 there is nothing to alter.
    """
    name = statement.name.object
    existing = find_temporary(machine, name)
    if existing and statement.action == "CREATE":
        raise TsqlError(2714, f"There is already an object named '{name}' in the database.", state=3)
    if not existing and statement.action == "ALTER":
        raise TsqlError(208, f"Invalid object name '{name}'.", state=6)
    function = _function_name(name)
    machine.queries.define_temporary(
        f"create or replace function {function} returns void language sql as ''; "
        f"comment on function {function} is {quote_string(statement.text)}"
    )
    machine.record_success(0)


def drop_temporary(machine: Machine, name: str) -> bool:
    """Drop a temporary procedure. Return False if no such procedure exists."""
    if find_temporary(machine, name) is None:
        return False
    machine.queries.define(f"drop function {_function_name(name)}")
    return True


def _function_name(name: str) -> str:
    return f"pg_temp.{quoted(name.lower())}()"
