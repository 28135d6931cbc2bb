"""Functions that return values of the session, such as @@ROWCOUNT, ERROR_NUMBER() and DB_NAME()."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.model.zero_character import to_postgres
from servicebroker.overriding import override
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import offset_minutes
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.definitions.object_definitions import UPDATED_PREFIX
from servicebroker.tsql.translation.text_writer import DOCUMENT_PREFIX, OFFSET_PREFIX

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def _caught_error_value(attribute: str) -> Callable[[Machine], object]:
    """Return a function such as ERROR_NUMBER(): an attribute of the error that the innermost CATCH block handles."""

    def value(machine: Machine) -> object:
        if not machine.caught_errors:
            return None
        attribute_value = getattr(machine.caught_errors[-1], attribute)
        return attribute_value or None if attribute == "procedure" else attribute_value  # NULL outside of procedures

    return value


def _db_id(machine: Machine) -> object:
    rows = fetch(machine.connection, "session_functions.db_id", "select tsql.db_id($1)", (machine.database.name,))
    return rows[0][0]


def _cursor_states(machine: Machine) -> object:
    """Return the state of each cursor as JSON: 1 open, 0 open without rows, -1 closed."""
    results = {name: cursor.result for name, cursor in machine.cursors.items()}
    return json.dumps({name: -1 if result is None else int(bool(result.rows)) for name, result in results.items()})


def serialize_session_context(machine: Machine) -> str:
    """Return the values of sp_set_session_context as JSON for PostgreSQL."""
    items = machine.session_context.items()
    return json.dumps({to_postgres(key): None if value is None else to_postgres(value) for key, value in items})


def serialize_caught_error(machine: Machine) -> str:
    """Return the error that the innermost CATCH handles, as JSON for PostgreSQL."""
    names = ("number", "message", "severity", "state", "line", "procedure")
    values = {name: SESSION_FUNCTIONS[f"error_{name}"](machine) for name in names}
    return json.dumps({name: to_postgres(value) if isinstance(value, str) else value for name, value in values.items()})


def _columns_updated(machine: Machine) -> bytes | None:
    """Return COLUMNS_UPDATED(): a bit for each updated column of the trigger's table, by column_id.

    None outside a trigger.
    """
    frame = machine.frame
    table = frame.tables.get("inserted") or frame.tables.get("deleted")
    columns = machine.queries.columns.get(table, ()) if table is not None else ()
    bits = sum(1 << column.number - 1 for column in columns if frame.is_updated(column.name.lower()))
    return bits.to_bytes((columns[-1].number + 7) // 8, "little") if columns else None


# ANSI_WARNINGS, ANSI_PADDING, ANSI_NULLS, ARITHABORT, QUOTED_IDENTIFIER, ANSI_NULL_DFLT_ON, CONCAT_NULL_YIELDS_NULL
_USUAL_OPTIONS = 8 | 16 | 32 | 64 | 256 | 1024 | 4096


def _options(machine: Machine) -> int:
    """Return @@OPTIONS: a bit for each SET option that is ON."""
    options = _USUAL_OPTIONS
    for bit, is_on in ((2, machine.is_implicit), (512, machine.nocount), (16384, machine.xact_abort)):
        options |= bit if is_on else 0
    return options


_COMPATIBLE = "Microsoft SQL Server compatible - 16.0.1000.0"  # drivers read the version from it

SESSION_FUNCTIONS: dict[str, Callable[[Machine], object]] = {
    "@@rowcount": lambda machine: machine.rowcount,
    "@@error": lambda machine: machine.error_number,
    "@@trancount": lambda machine: machine.transactions.count,
    "@@spid": lambda machine: machine.spid,
    "@@options": _options,
    "@@datefirst": lambda machine: machine.dates.first,
    "@@language": lambda machine: machine.dates.language,
    "@@nestlevel": lambda machine: len(machine.frames) - 1,
    "@@identity": lambda machine: machine.identity,
    "@@fetch_status": lambda machine: machine.fetch_status,
    "@@procid": lambda machine: machine.frame.object_id,
    "@@version": lambda machine: f"{_COMPATIBLE} (servicebroker {version('servicebroker')})",
    "scope_identity": lambda machine: machine.scope_identity,
    "xact_state": lambda machine: machine.transactions.state,
    "error_number": _caught_error_value("number"),
    "error_message": _caught_error_value("text"),
    "error_severity": _caught_error_value("severity"),
    "error_state": _caught_error_value("state"),
    "error_line": _caught_error_value("line"),
    "error_procedure": _caught_error_value("procedure"),
    "db_id": _db_id,
    "db_name": lambda machine: machine.database.name,
    "user_name": lambda machine: machine.database.user.name,
    "current_user": lambda machine: machine.database.user.name,
    "session_user": lambda machine: machine.database.user.name,
    "user": lambda machine: machine.database.user.name,
    "suser_name": lambda machine: machine.login,
    "suser_sname": lambda machine: machine.login,
    "system_user": lambda machine: machine.login,
    "original_login": lambda machine: machine.context.original_login,
    "context_info": lambda machine: machine.context_info,
    "columns_updated": _columns_updated,
    "rowcount_big": lambda machine: machine.rowcount,
    "@@cursor_rows": lambda machine: machine.cursor_rows,
    "cursor states": _cursor_states,  # for CURSOR_STATUS
    "session context": lambda machine: serialize_session_context(machine),
    "trigger_nestlevel": lambda machine: machine.trigger_level,
}


def _document_of(machine: Machine, variable: str) -> str:
    """Return the document whose handle is in a variable.

    Raises:
        TsqlError: 8179 the handle is unknown.
    """
    handle = machine.frame.values[variable]
    if not isinstance(handle, int) or handle not in machine.xml_documents:
        raise TsqlError(8179, f"Could not find prepared statement with handle {handle or 0}.")
    return machine.xml_documents[handle]


# functions by the prefix of their names; the rest of a name is the function's argument
PREFIXED_FUNCTIONS: dict[str, Callable[[Machine, str], object]] = {
    OFFSET_PREFIX: lambda machine, name: offset_minutes(machine.frame.values[name]),
    DOCUMENT_PREFIX: _document_of,
}


class SessionFunctions(Mapping[str, object]):
    """The names of `SESSION_FUNCTIONS`, with their current values."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @override
    def __getitem__(self, name: str) -> object:
        if name.startswith(UPDATED_PREFIX):
            return int(self._machine.frame.is_updated(name.removeprefix(UPDATED_PREFIX)))
        for prefix, function in PREFIXED_FUNCTIONS.items():
            if name.startswith(prefix):
                return function(self._machine, name.removeprefix(prefix))
        return SESSION_FUNCTIONS[name](self._machine)

    @override
    def __contains__(self, name: object) -> bool:
        return name in SESSION_FUNCTIONS

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(SESSION_FUNCTIONS)

    @override
    def __len__(self) -> int:
        return len(SESSION_FUNCTIONS)


_session_numbers: WeakKeyDictionary[DirectConnection, int] = WeakKeyDictionary()


def session_number(machine: Machine) -> int:
    """Return @@SPID, a number that no other open connection of the instance has.

    PostgreSQL keeps the number as a lock until the connection is closed.

    Raises:
        TsqlError: 701 there are too many sessions.
    """
    known_number = _session_numbers.get(machine.connection)
    if known_number is not None:
        return known_number
    ((number,),) = fetch(machine.connection, "session_functions.session_number", "select tsql.spid()", ())
    if number is None:
        raise TsqlError(701, "There are more than 32,717 sessions.")
    _session_numbers[machine.connection] = int(number)
    return int(number)
