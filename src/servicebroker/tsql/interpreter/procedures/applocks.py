"""sp_getapplock and sp_releaseapplock: named locks of sessions and transactions, as advisory locks of PostgreSQL."""

from __future__ import annotations

import psycopg

from servicebroker.model.zero_character import to_postgres
from servicebroker.store import locks
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import bind_arguments, system_procedure
from servicebroker.tsql.interpreter.machine import AppLock, Machine
from servicebroker.tsql.interpreter.simple_expressions import Value
from servicebroker.tsql.interpreter.static_checks import CALL_CHECKS
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Constant, Execute
from servicebroker.tsql.types import INT, NVARCHAR

RESULT_GRANTED, RESULT_TIMED_OUT, RESULT_CANCELLED, RESULT_DEADLOCKED, RESULT_WRONG_CALL = 0, -1, -2, -3, -999
_MODES = {"SHARED": True, "INTENTSHARED": True, "UPDATE": False, "EXCLUSIVE": False}  # True for a shared lock
_RESULT_BY_ERROR = (
    (psycopg.errors.LockNotAvailable, RESULT_TIMED_OUT),
    (psycopg.errors.QueryCanceled, RESULT_CANCELLED),
    (psycopg.errors.DeadlockDetected, RESULT_DEADLOCKED),
)


def _check_constants(statement: Execute) -> None:
    """Refuse a literal lock mode that is not supported. `tsql check` calls this."""
    for position, argument in enumerate(statement.arguments):
        is_mode = argument.name == "@lockmode" or (not argument.name and position == 1)
        if is_mode and isinstance(argument.value, Constant):
            _check_mode(str(argument.value.value).upper(), statement)


CALL_CHECKS["sp_getapplock"] = _check_constants


def _check_mode(mode: str, statement: Execute) -> None:
    if mode not in _MODES:
        raise unsupported(f"The lock mode {mode}", "Use Shared or Exclusive.", statement.line)


@system_procedure("sp_getapplock")
def _get_lock(machine: Machine, statement: Execute) -> int:
    """Wait for a lock. Return 0, or a negative code if it was not granted.

    Raises:
        TsqlError: 201 the name or mode is missing, 40515 the mode is not supported.
    """
    arguments = bind_arguments(
        machine, statement, ("@resource", "@lockmode", "@lockowner", "@locktimeout", "@dbprincipal"), required=2
    )
    mode = _to_text(arguments["@lockmode"]).upper()
    _check_mode(mode, statement)
    is_session_lock = _is_owned_by_session(arguments)
    if not is_session_lock and not machine.transactions.count:
        return RESULT_WRONG_CALL
    timeout = arguments.get("@locktimeout")
    timeout_ms = None if timeout is None or timeout.value is None else convert(timeout.value, timeout.type, INT)
    key, is_shared = _lock_key(machine, arguments), _MODES[mode]
    machine.transactions.set_guard()
    try:
        is_granted = _lock(machine, key, is_shared, is_session_lock, timeout_ms)
    except psycopg.Error as error:
        machine.transactions.undo_statement()
        for kind, code in _RESULT_BY_ERROR:
            if isinstance(error, kind):
                return code
        raise
    if is_granted and is_session_lock:
        machine.app_locks.append(AppLock(key, is_shared))
    return RESULT_GRANTED if is_granted else RESULT_TIMED_OUT


def _lock(machine: Machine, key: str, is_shared: bool, is_session_lock: bool, timeout_ms: int | None) -> bool:
    """Take the advisory lock. Return False if it is not free and the timeout is 0.

    `timeout_ms` is None for the session's own lock timeout, and negative to wait without limit.
    """
    name = f"advisory{'' if is_session_lock else '_xact'}_lock{'_shared' if is_shared else ''}"
    lock = (locks.TSQL_APPLICATION, key)
    if timeout_ms == 0:
        rows = fetch(machine.connection, "applocks.lock.try_lock", f"select pg_try_{name}($1::int, hashtext($2))", lock)
        return bool(rows[0][0])
    ((saved_timeout,),) = fetch(machine.connection, "applocks.lock.timeout", "select current_setting('lock_timeout')")
    if timeout_ms is not None:
        _set_timeout(machine, str(max(timeout_ms, 0)))
    try:
        fetch(machine.connection, "applocks.lock", f"select pg_{name}($1::int, hashtext($2))", lock)
    except psycopg.Error:
        if timeout_ms is not None and not machine.transactions.count:  # in a transaction the guard resets it
            _set_timeout(machine, saved_timeout)
        raise
    if timeout_ms is not None:
        _set_timeout(machine, saved_timeout)
    return True


def _set_timeout(machine: Machine, setting: str) -> None:
    text = "select set_config('lock_timeout', $1, false)"
    fetch(machine.connection, "applocks.set_timeout", text, (setting,))


@system_procedure("sp_releaseapplock")
def _release_lock(machine: Machine, statement: Execute) -> int:
    """Release a lock of the session. A lock of a transaction is released at its end.

    Raises:
        TsqlError: 201 the name is missing, 1223 the session does not hold the lock.
    """
    arguments = bind_arguments(machine, statement, ("@resource", "@lockowner", "@dbprincipal"), required=1)
    if not _is_owned_by_session(arguments):
        return RESULT_GRANTED
    key = _lock_key(machine, arguments)
    held = [lock for lock in machine.app_locks if lock.key == key]
    if not held:
        raise TsqlError(
            1223,
            "Cannot release the application lock (Database Principal: 'public', Resource: "
            f"'{_to_text(arguments['@resource'])}') because it is not currently held.",
        )
    machine.app_locks.remove(held[-1])
    _unlock(machine, held[-1])
    return RESULT_GRANTED


def release_all(machine: Machine) -> None:
    """Release all locks at the end of the session, because its connection goes back to the pool."""
    while machine.app_locks:
        _unlock(machine, machine.app_locks.pop())


def _unlock(machine: Machine, lock: AppLock) -> None:
    unlock = f"select pg_advisory_unlock{'_shared' if lock.is_shared else ''}($1::int, hashtext($2))"
    fetch(machine.connection, "applocks.unlock", unlock, (locks.TSQL_APPLICATION, lock.key))


def _lock_key(machine: Machine, arguments: dict[str, Value]) -> str:
    return f"{machine.database.database_id} {to_postgres(_to_text(arguments['@resource']))}"


def _is_owned_by_session(arguments: dict[str, Value]) -> bool:
    return "@lockowner" in arguments and _to_text(arguments["@lockowner"]).upper() == "SESSION"


def _to_text(value: Value) -> str:
    return "" if value.value is None else str(convert(value.value, value.type, NVARCHAR))
