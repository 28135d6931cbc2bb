"""sp_getapplock and sp_releaseapplock: names that sessions lock, as advisory locks of PostgreSQL."""

from __future__ import annotations

import psycopg

from servicebroker.model.zero_character import to_postgres
from servicebroker.store import locks
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import named_arguments, system
from servicebroker.tsql.interpreter.foresight import CALLS
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.simple import Value
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Constant, Execute
from servicebroker.tsql.types import INT, NVARCHAR

GRANTED, TIMED_OUT, CANCELLED, DEADLOCKED, WRONG_CALL = 0, -1, -2, -3, -999
_MODES = {"SHARED": True, "INTENTSHARED": True, "UPDATE": False, "EXCLUSIVE": False}  # whether it is shared
_FAILED = (
    (psycopg.errors.LockNotAvailable, TIMED_OUT),
    (psycopg.errors.QueryCanceled, CANCELLED),
    (psycopg.errors.DeadlockDetected, DEADLOCKED),
)


def _check_constants(statement: Execute) -> None:
    """Refuse a mode that stands in the text and is not there."""
    for place, one in enumerate(statement.arguments):
        is_mode = one.name == "@lockmode" or (not one.name and place == 1)
        if is_mode and isinstance(one.value, Constant):
            _check_mode(str(one.value.value).upper(), statement)


CALLS["sp_getapplock"] = _check_constants


def _check_mode(mode: str, statement: Execute) -> None:
    if mode not in _MODES:
        raise unsupported(f"The lock mode {mode}", "Use Shared or Exclusive.", statement.line)


@system("sp_getapplock")
def _get(machine: Machine, statement: Execute) -> int:
    """Wait for a lock; 0, or below it why it was not granted.

    Raises:
        TsqlError: 201 without a name or a mode, 40515 for a mode that is not there.
    """
    given = named_arguments(
        machine, statement, ("@resource", "@lockmode", "@lockowner", "@locktimeout", "@dbprincipal"), required=2
    )
    mode = _text(given["@lockmode"]).upper()
    _check_mode(mode, statement)
    of_session = _of_session(given)
    if not of_session and not machine.transactions.count:
        return WRONG_CALL
    timeout = given.get("@locktimeout")
    milliseconds = None if timeout is None or timeout.value is None else convert(timeout.value, timeout.type, INT)
    key, shared = _key(machine, given), _MODES[mode]
    machine.transactions.guard()
    try:
        granted = _lock(machine, key, shared, of_session, milliseconds)
    except psycopg.Error as problem:
        machine.transactions.undo()
        for kind, code in _FAILED:
            if isinstance(problem, kind):
                return code
        raise
    if granted and of_session:
        machine.app_locks.append((key, shared))
    return GRANTED if granted else TIMED_OUT


def _lock(machine: Machine, key: str, shared: bool, of_session: bool, milliseconds: int | None) -> bool:
    name = f"advisory{'' if of_session else '_xact'}_lock{'_shared' if shared else ''}"
    lock = (locks.TSQL_APPLICATION, key)
    if milliseconds == 0:
        rows = fetch(machine.connection, "applocks.lock.try_lock", f"select pg_try_{name}($1::int, hashtext($2))", lock)
        return bool(rows[0][0])
    ((before,),) = fetch(machine.connection, "applocks.lock.timeout", "select current_setting('lock_timeout')")
    if milliseconds is not None:
        _set_timeout(machine, str(max(milliseconds, 0)))
    try:
        fetch(machine.connection, "applocks.lock", f"select pg_{name}($1::int, hashtext($2))", lock)
    except psycopg.Error:
        if milliseconds is not None and not machine.transactions.count:  # the savepoint takes it back otherwise
            _set_timeout(machine, before)
        raise
    if milliseconds is not None:
        _set_timeout(machine, before)
    return True


def _set_timeout(machine: Machine, setting: str) -> None:
    text = "select set_config('lock_timeout', $1, false)"
    fetch(machine.connection, "applocks.set_timeout", text, (setting,))


@system("sp_releaseapplock")
def _release(machine: Machine, statement: Execute) -> int:
    """Give back a lock of the session; one of a transaction goes when that ends.

    Raises:
        TsqlError: 201 without a name, 1223 the session does not hold it.
    """
    given = named_arguments(machine, statement, ("@resource", "@lockowner", "@dbprincipal"), required=1)
    if not _of_session(given):
        return GRANTED
    key = _key(machine, given)
    held = [lock for lock in machine.app_locks if lock[0] == key]
    if not held:
        raise TsqlError(
            1223,
            "Cannot release the application lock (Database Principal: 'public', Resource: "
            f"'{_text(given['@resource'])}') because it is not currently held.",
        )
    machine.app_locks.remove(held[-1])
    _unlock(machine, *held[-1])
    return GRANTED


def release_all(machine: Machine) -> None:
    """The session ends, and its connection serves others."""
    while machine.app_locks:
        _unlock(machine, *machine.app_locks.pop())


def _unlock(machine: Machine, key: str, shared: bool) -> None:
    unlock = f"select pg_advisory_unlock{'_shared' if shared else ''}($1::int, hashtext($2))"
    fetch(machine.connection, "applocks.unlock", unlock, (locks.TSQL_APPLICATION, key))


def _key(machine: Machine, given: dict[str, Value]) -> str:
    return f"{machine.database.database_id} {to_postgres(_text(given['@resource']))}"


def _of_session(given: dict[str, Value]) -> bool:
    return "@lockowner" in given and _text(given["@lockowner"]).upper() == "SESSION"


def _text(value: Value) -> str:
    return "" if value.value is None else str(convert(value.value, value.type, NVARCHAR))
