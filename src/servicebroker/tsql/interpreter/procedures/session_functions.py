"""What expressions ask of the session: @@ROWCOUNT, ERROR_NUMBER(), DB_NAME() and their like."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.model.zero_character import to_postgres
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import fetch
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.definitions.object_definitions import UPDATED

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def _caught(attribute: str) -> Callable[[Machine], object]:
    def value(machine: Machine) -> object:
        error = machine.caught[-1] if machine.caught else None
        return (
            None
            if error is None
            else getattr(error, attribute) or None
            if attribute == "procedure"
            else getattr(error, attribute)
        )

    return value


def _db_id(machine: Machine) -> object:
    rows = fetch(machine.connection, "session_functions.db_id", "select tsql.db_id($1)", (machine.database.name,))
    return rows[0][0]


def _cursor_states(machine: Machine) -> object:
    """1 open, 0 open without rows, -1 closed."""
    found = {name: cursor.found for name, cursor in machine.cursors.items()}
    return json.dumps({name: -1 if rows is None else int(bool(rows.rows)) for name, rows in found.items()})


def session_context(machine: Machine) -> str:
    """What sp_set_session_context has set, as JSON that PostgreSQL reads."""
    known = machine.session_context.items()
    return json.dumps({to_postgres(key): None if said is None else to_postgres(said) for key, said in known})


def _columns_updated(machine: Machine) -> bytes | None:
    """A bit, by its column_id, for each column of the trigger's table that was set; None outside of a trigger."""
    frame = machine.frame
    table = frame.tables.get("inserted") or frame.tables.get("deleted")
    columns = machine.queries.columns.get(table, ()) if table is not None else ()
    bits = sum(1 << column.number - 1 for column in columns if frame.has_set(column.name.lower()))
    return bits.to_bytes((columns[-1].number + 7) // 8, "little") if columns else None


KNOWN: dict[str, Callable[[Machine], object]] = {
    "@@rowcount": lambda machine: machine.rowcount,
    "@@error": lambda machine: machine.error,
    "@@trancount": lambda machine: machine.transactions.count,
    "@@spid": lambda machine: machine.spid,
    "@@nestlevel": lambda machine: len(machine.frames) - 1,
    "@@identity": lambda machine: machine.identity,
    "@@fetch_status": lambda machine: machine.fetch_status,
    "@@procid": lambda machine: machine.frame.number,
    "@@version": lambda machine: f"servicebroker {version('servicebroker')}",
    "scope_identity": lambda machine: machine.scope_identity,
    "xact_state": lambda machine: machine.transactions.state,
    "error_number": _caught("number"),
    "error_message": _caught("text"),
    "error_severity": _caught("severity"),
    "error_state": _caught("state"),
    "error_line": _caught("line"),
    "error_procedure": _caught("procedure"),
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
    "cursor states": _cursor_states,  # what CURSOR_STATUS looks into
    "session context": lambda machine: session_context(machine),
    "trigger_nestlevel": lambda machine: machine.trigger_level,
}


KNOWN_BY: dict[str, Callable[[Machine, str], object]] = {}  # by how the name of what is asked begins


class Functions(Mapping[str, object]):
    """The names of `KNOWN`, and their values as they are now."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getitem__(self, name: str) -> object:
        if name.startswith(UPDATED):
            return int(self._machine.frame.has_set(name.removeprefix(UPDATED)))
        for begin, known in KNOWN_BY.items():
            if name.startswith(begin):
                return known(self._machine, name.removeprefix(begin))
        return KNOWN[name](self._machine)

    def __contains__(self, name: object) -> bool:
        return name in KNOWN

    def __iter__(self) -> Iterator[str]:
        return iter(KNOWN)

    def __len__(self) -> int:
        return len(KNOWN)


_taken: WeakKeyDictionary[DirectConnection, int] = WeakKeyDictionary()


def spid_of(machine: Machine) -> int:
    """The number of the session's connection, which no other one of the instance has now.

    PostgreSQL keeps it, as a lock, until the connection is closed.

    Raises:
        TsqlError: 701 there are too many sessions.
    """
    known = _taken.get(machine.connection)
    if known is not None:
        return known
    ((number,),) = fetch(machine.connection, "session_functions.spid_of", "select tsql.spid()", ())
    if number is None:
        raise TsqlError(701, "There are more than 32,717 sessions.")
    _taken[machine.connection] = int(number)
    return int(number)
