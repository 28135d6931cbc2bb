"""SET option: what changes something here, what is known to change nothing, and the rest, which is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate
from servicebroker.tsql.parser.grammar import SET_OPTIONS
from servicebroker.tsql.statement_errors import TsqlError, syntax_error, unsupported
from servicebroker.tsql.syntax import Expression, SetOption
from servicebroker.tsql.types import INT, SqlType
from servicebroker.tsql.whole_numbers import is_whole, whole_number

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

# they say how text, NULL and errors are treated, and this is how they are treated; or they ask for figures
ALWAYS_ON = frozenset({"ANSI_NULLS", "ANSI_WARNINGS", "QUOTED_IDENTIFIER", "ANSI_NULL_DFLT_ON", "ARITHABORT"})
ALWAYS_ON |= {"CONCAT_NULL_YIELDS_NULL", "ANSI_DEFAULTS"}
ALWAYS_OFF = frozenset({"NUMERIC_ROUNDABORT", "ARITHIGNORE", "ANSI_NULL_DFLT_OFF", "FMTONLY"})
ALWAYS_OFF |= {"CURSOR_CLOSE_ON_COMMIT", "PARSEONLY", "FORCEPLAN", "REMOTE_PROC_TRANSACTIONS", "SHOWPLAN_ALL"}
ALWAYS_OFF |= {"SHOWPLAN_TEXT", "SHOWPLAN_XML"}
WITHOUT_EFFECT = frozenset({"STATISTICS IO", "STATISTICS TIME", "STATISTICS XML", "STATISTICS PROFILE", "LANGUAGE"})
WITHOUT_EFFECT |= {
    "DATEFORMAT",
    "DATEFIRST",
    "DEADLOCK_PRIORITY",
    "TEXTSIZE",
    "QUERY_GOVERNOR_COST_LIMIT",
    "ANSI_PADDING",
    "FIPS_FLAGGER",
    "NO_BROWSETABLE",
    "RESULT_SET_CACHING",
}
_DONE = frozenset({"CONTEXT_INFO", "IDENTITY_INSERT"})
_SWITCHES = frozenset({"NOCOUNT", "XACT_ABORT", "IMPLICIT_TRANSACTIONS", "NOEXEC"})
_CONTEXT = SqlType("binary", 128)
SNAPSHOT = "SNAPSHOT"
# under these, what a transaction has read from stays as it was to its end; see `Queries`
HOLDING = frozenset({"REPEATABLE READ", "SERIALIZABLE"})
_LEVELS = frozenset({"READ UNCOMMITTED", "READ COMMITTED", SNAPSHOT}) | HOLDING


def set_option(machine: Machine, statement: SetOption) -> None:
    """Do what SET says.

    Raises:
        TsqlError: 40515 for what would change something that cannot be changed here, 195 for a word that is no option.
    """
    check_options(statement)
    for option in statement.options:
        _set_one(machine, option, statement.value.upper(), statement)


def check_options(statement: SetOption) -> None:
    """Refuse what never runs; `tsql check` asks this too. Raises as `set_option`."""
    for option in statement.options:
        _check_one(option, statement.value.upper(), statement)


def _set_one(machine: Machine, option: str, value: str, statement: SetOption) -> None:
    if option == "NOCOUNT":
        machine.nocount = value == "ON"
    elif option == "XACT_ABORT":
        machine.xact_abort = value == "ON"
    elif option == "IMPLICIT_TRANSACTIONS":
        machine.implicit = value == "ON"
    elif option == "NOEXEC":
        machine.no_execution = value == "ON"
    elif option == "ROWCOUNT":
        machine.row_limit = _evaluated(machine, value, statement)
    elif option == "IDENTITY_INSERT":
        machine.queries.identity_insert(statement.value)
    elif option == "LOCK_TIMEOUT":
        _lock_timeout(machine, value, statement)
    elif option == "CONTEXT_INFO":
        given, source = evaluate(machine, Expression(statement.value, statement.line))
        machine.context_info = None if given is None else convert(given, source, _CONTEXT)
    elif option == "TRANSACTION ISOLATION LEVEL":
        _isolation_level(machine, value, statement)


def _isolation_level(machine: Machine, level: str, statement: SetOption) -> None:
    """For what follows; a transaction that has begun keeps its snapshot, and one without gets none."""
    transactions = machine.transactions
    if transactions.count and level != machine.isolation and transactions.has_begun():
        if level == SNAPSHOT:
            raise TsqlError(
                3951, f"Transaction failed in database '{machine.database.name}' because the statement was run under "
                "snapshot isolation but the transaction did not start in snapshot isolation.",
            )  # fmt: skip
        if transactions.snapshot:
            raise unsupported(
                f"SET TRANSACTION ISOLATION LEVEL {level} in a transaction of SNAPSHOT", "Say it before BEGIN "
                "TRANSACTION.", statement.line,
            )  # fmt: skip
    machine.isolation = level
    if transactions.count and not transactions.has_begun():
        transactions.begin_as(snapshot=level == SNAPSHOT)


def _check_one(option: str, value: str, statement: SetOption) -> None:
    if option == "TRANSACTION ISOLATION LEVEL":
        if value not in _LEVELS:
            raise TsqlError(102, f"Incorrect syntax near '{value}'.", severity=15)
    elif option in ALWAYS_ON | ALWAYS_OFF:
        if value not in ("ON", "OFF"):
            raise syntax_error(statement.value, statement.line)
        if value != ("ON" if option in ALWAYS_ON else "OFF"):
            raise unsupported(f"SET {option} {value}", "Leave it out.", statement.line)
    elif option in _SWITCHES:
        if value not in ("ON", "OFF"):
            raise syntax_error(statement.value, statement.line)
    elif option in ("LOCK_TIMEOUT", "ROWCOUNT"):
        if value[:1] != "@":
            _number(value, -1 if option == "LOCK_TIMEOUT" else 0)
    elif option in WITHOUT_EFFECT | _DONE:
        pass
    elif option in SET_OPTIONS:
        raise unsupported(f"SET {option}", "Leave it out.", statement.line)
    else:
        raise TsqlError(195, f"'{option}' is not a recognized SET option.", severity=15)


def _number(value: str, least: int) -> int:
    number = whole_number(value) if is_whole(value) else None
    if number is None or number < least or number > 2**31 - 1:
        raise syntax_error(value, 0)
    return number


def _evaluated(machine: Machine, value: str, statement: SetOption, least: int = 0) -> int:
    """A number, or that of a variable, in which NULL is 0."""
    if value[:1] == "@":
        given, source = evaluate(machine, Expression(statement.value, statement.line))
        value = str(convert(given, source, INT) or 0)
    return _number(value, least)


def _lock_timeout(machine: Machine, value: str, statement: SetOption) -> None:
    """Milliseconds; -1 waits for ever, 0 not at all, which PostgreSQL counts from 1."""
    number = _evaluated(machine, value, statement, -1)
    limit = 0 if number == -1 else max(number, 1)
    machine.set_server_option("lock_timeout", str(limit))
