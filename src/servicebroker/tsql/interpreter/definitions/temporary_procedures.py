"""Procedures of one session, #name: a function of PostgreSQL's temporary schema, of which the comment has the text.

It goes as everything temporary does: with a ROLLBACK of what has made it, and with the session. No user of a database
owns one: it may what its caller may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Procedure
from servicebroker.tsql.translation.text_writer import string

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def is_temporary(name: str) -> bool:
    """Whether a procedure of that name is one of the session."""
    return name.startswith("#")


def check_temporary(statement: Procedure) -> None:
    """Refuse what none of them can be.

    Raises:
        TsqlError: 40515 one of all sessions, or one that works as somebody else.
    """
    if statement.name.own.startswith("##"):
        raise unsupported("A procedure of all sessions", "Give it a name without ##.", statement.line)
    if is_temporary(statement.name.own) and statement.execute_as not in (None, "CALLER"):
        raise unsupported("EXECUTE AS of a temporary procedure", "Leave it out.", statement.line)


def find_temporary(machine: Machine, name: str) -> tuple[int, str] | None:
    """The number and the text of the one of that name; None when there is none."""
    rows = fetch(
        machine.connection,
        "temporary_procedures.find_temporary",
        "select f::oid::bigint, obj_description(f::oid, 'pg_proc') from to_regprocedure($1) f where f is not null",
        (_function(name),),
    )
    return (rows[0][0], rows[0][1]) if rows else None


def store_temporary(machine: Machine, statement: Procedure) -> None:
    """Keep the text under its name.

    Raises:
        TsqlError: 2714 the name is taken, 208 there is nothing to alter.
    """
    name = statement.name.own
    found = find_temporary(machine, name)
    if found and statement.action == "CREATE":
        raise TsqlError(2714, f"There is already an object named '{name}' in the database.", state=3)
    if not found and statement.action == "ALTER":
        raise TsqlError(208, f"Invalid object name '{name}'.", state=6)
    function = _function(name)
    machine.queries.define_temporary(
        f"create or replace function {function} returns void language sql as ''; "
        f"comment on function {function} is {string(statement.text)}"
    )
    machine.done(0)


def drop_temporary(machine: Machine, name: str) -> bool:
    """Drop the one of that name; whether there was one."""
    if find_temporary(machine, name) is None:
        return False
    machine.queries.define(f"drop function {_function(name)}")
    return True


def _function(name: str) -> str:
    return f"pg_temp.{quoted(name.lower())}()"
