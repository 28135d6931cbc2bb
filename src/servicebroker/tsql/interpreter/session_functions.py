"""What expressions ask of the session: @@ROWCOUNT, ERROR_NUMBER(), DB_NAME() and their like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.store import locks
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import fetch
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.definitions.object_definitions import UPDATED
from servicebroker.tsql.types import INT, SqlType

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_NAME = SqlType("nvarchar", 128)
_TEXT = SqlType("nvarchar", 4000)
_BIG = SqlType("decimal", None, 38, 0)
_SMALL = SqlType("smallint")

Known = tuple[Callable[["Machine"], object], SqlType]


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


KNOWN: dict[str, Known] = {
    "@@rowcount": (lambda machine: machine.rowcount, INT),
    "@@error": (lambda machine: machine.error, INT),
    "@@trancount": (lambda machine: machine.transactions.count, INT),
    "@@spid": (lambda machine: machine.spid, _SMALL),
    "@@nestlevel": (lambda machine: len(machine.frames) - 1, INT),
    "@@identity": (lambda machine: machine.identity, _BIG),
    "@@fetch_status": (lambda machine: machine.fetch_status, INT),
    "@@procid": (lambda machine: machine.frame.number, INT),
    "@@servername": (lambda machine: "servicebroker", _NAME),
    "@@servicename": (lambda machine: "servicebroker", _NAME),
    "@@version": (lambda machine: f"servicebroker {version('servicebroker')}", _TEXT),
    "@@language": (lambda machine: "us_english", _NAME),
    "@@datefirst": (lambda machine: 7, SqlType("tinyint")),
    "@@max_precision": (lambda machine: 38, SqlType("tinyint")),
    "scope_identity": (lambda machine: machine.identity, _BIG),
    "xact_state": (lambda machine: machine.transactions.state, _SMALL),
    "error_number": (_caught("number"), INT),
    "error_message": (_caught("text"), _TEXT),
    "error_severity": (_caught("severity"), INT),
    "error_state": (_caught("state"), INT),
    "error_line": (_caught("line"), INT),
    "error_procedure": (_caught("procedure"), _NAME),
    "db_id": (_db_id, _SMALL),
    "db_name": (lambda machine: machine.database.name, _NAME),
    "user_name": (lambda machine: machine.database.user.name, _NAME),
    "current_user": (lambda machine: machine.database.user.name, _NAME),
    "session_user": (lambda machine: machine.database.user.name, _NAME),
    "user": (lambda machine: machine.database.user.name, _NAME),
    "suser_name": (lambda machine: machine.login, _NAME),
    "suser_sname": (lambda machine: machine.login, _NAME),
    "system_user": (lambda machine: machine.login, _NAME),
    "original_login": (lambda machine: machine.context.original_login, _NAME),
    "app_name": (lambda machine: "servicebroker", _NAME),
    "host_name": (lambda machine: "localhost", _NAME),
    "trigger_nestlevel": (lambda machine: machine.trigger_level, INT),
}


class Functions(Mapping[str, object]):
    """The names of `KNOWN`, and their values as they are now."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getitem__(self, name: str) -> object:
        if name.startswith(UPDATED):
            return int(self._machine.frame.has_set(name.removeprefix(UPDATED)))
        return KNOWN[name][0](self._machine)

    def __contains__(self, name: object) -> bool:
        return name in KNOWN

    def __iter__(self) -> Iterator[str]:
        return iter(KNOWN)

    def __len__(self) -> int:
        return len(KNOWN)


_FIRST_SPID, _LAST_SPID = 51, 32_767
_TAKE = (
    "select n from generate_series($1::int, $2::int) n where pg_try_advisory_lock($3::int, n) limit 1"  # the first free
)
_SPIDS = locks.TSQL_SESSION


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
    rows = fetch(machine.connection, "session_functions.spid_of", _TAKE, (_FIRST_SPID, _LAST_SPID, _SPIDS))
    if not rows:
        raise TsqlError(701, "There are more than 32,717 sessions.")
    _taken[machine.connection] = int(rows[0][0])
    return _taken[machine.connection]
