"""Runs SET options. Some change the session, some have no effect, some are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.date_texts import ORDERS, US_ENGLISH, DateSettings, settings_of_language
from servicebroker.tsql.interpreter.evaluation import evaluate
from servicebroker.tsql.parser.unsupported_statements import SET_OPTIONS
from servicebroker.tsql.statement_errors import TsqlError, syntax_error, unsupported
from servicebroker.tsql.syntax import Expression, SetOption
from servicebroker.tsql.tokens import string_value, unquote
from servicebroker.tsql.types import INT, NVARCHAR, SqlType
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

# options that can only be ON, or only OFF; the other value is refused
ALWAYS_ON = frozenset({"ANSI_NULLS", "ANSI_WARNINGS", "QUOTED_IDENTIFIER", "ANSI_NULL_DFLT_ON", "ARITHABORT"})
ALWAYS_ON |= {"CONCAT_NULL_YIELDS_NULL", "ANSI_DEFAULTS"}
ALWAYS_OFF = frozenset({"NUMERIC_ROUNDABORT", "ARITHIGNORE", "ANSI_NULL_DFLT_OFF", "FMTONLY"})
ALWAYS_OFF |= {"PARSEONLY", "FORCEPLAN", "REMOTE_PROC_TRANSACTIONS", "SHOWPLAN_ALL"}
ALWAYS_OFF |= {"SHOWPLAN_TEXT", "SHOWPLAN_XML"}
OPTIONS_WITHOUT_EFFECT = frozenset({"STATISTICS IO", "STATISTICS TIME", "STATISTICS XML", "STATISTICS PROFILE"})
OPTIONS_WITHOUT_EFFECT |= {
    "DEADLOCK_PRIORITY",
    "TEXTSIZE",
    "QUERY_GOVERNOR_COST_LIMIT",
    "ANSI_PADDING",
    "FIPS_FLAGGER",
    "NO_BROWSETABLE",
    "RESULT_SET_CACHING",
}
_HANDLED_OPTIONS = frozenset({"CONTEXT_INFO", "IDENTITY_INSERT"})
DATE_OPTIONS = frozenset({"DATEFORMAT", "DATEFIRST", "LANGUAGE"})
_SWITCHES = frozenset({"CURSOR_CLOSE_ON_COMMIT", "NOCOUNT", "XACT_ABORT", "IMPLICIT_TRANSACTIONS", "NOEXEC"})
_CONTEXT_INFO_TYPE = SqlType("binary", 128)
SNAPSHOT = "SNAPSHOT"
# levels under which a transaction locks the tables that it reads; see `Queries._read_locks`
LOCKING_LEVELS = frozenset({"REPEATABLE READ", "SERIALIZABLE"})
READ_COMMITTED = "READ COMMITTED"
ISOLATION_NUMBERS = {  # the number of each level in sys.dm_exec_sessions
    "READ UNCOMMITTED": 1, READ_COMMITTED: 2, "REPEATABLE READ": 3, "SERIALIZABLE": 4, SNAPSHOT: 5
}  # fmt: skip


def set_option(machine: Machine, statement: SetOption) -> None:
    """Run SET.

    Raises:
        TsqlError: 40515 the option cannot be changed here, 195 the word is not an option.
    """
    check_options(statement)
    for option in statement.options:
        _set_option(machine, option, statement.value.upper(), statement)


def check_options(statement: SetOption) -> None:
    """Refuse a SET that never runs. `tsql check` calls this too. Raises as `set_option`."""
    for option in statement.options:
        _check_option(option, statement.value.upper(), statement)


def _set_option(machine: Machine, option: str, value: str, statement: SetOption) -> None:
    if option == "NOCOUNT":
        machine.nocount = value == "ON"
    elif option == "XACT_ABORT":
        machine.xact_abort = value == "ON"
    elif option == "IMPLICIT_TRANSACTIONS":
        machine.is_implicit = value == "ON"
    elif option == "CURSOR_CLOSE_ON_COMMIT":
        machine.closes_cursors = value == "ON"
    elif option == "NOEXEC":
        machine.is_noexec = value == "ON"
    elif option == "ROWCOUNT":
        machine.row_limit = _evaluate_number(machine, value, statement)
    elif option == "IDENTITY_INSERT":
        machine.queries.set_identity_insert(statement.value)
    elif option == "LOCK_TIMEOUT":
        _set_lock_timeout(machine, value, statement)
    elif option == "CONTEXT_INFO":
        context_info, source = evaluate(machine, Expression(statement.value, statement.line))
        machine.context_info = None if context_info is None else convert(context_info, source, _CONTEXT_INFO_TYPE)
    elif option in DATE_OPTIONS:
        value = statement.value
        if value[:1] == "@":
            evaluated, source = evaluate(machine, Expression(statement.value, statement.line))
            value = str(convert(evaluated, source, NVARCHAR) or "")
        machine.set_dates(_change_dates(machine.dates, option, value, statement))
    elif option == "TRANSACTION ISOLATION LEVEL":
        _set_isolation_level(machine, value, statement)


def _change_dates(dates: DateSettings, option: str, value: str, statement: SetOption) -> DateSettings:
    """Return the settings after SET DATEFORMAT, DATEFIRST or LANGUAGE.

    Raises:
        TsqlError: 2740 an unknown language, 2741 no order, 2742 no day from 1 to 7.
    """
    value = unquote(value)
    value = string_value(value) if value[-1:] == "'" else value
    if option == "LANGUAGE":
        settings = settings_of_language(value)
        if settings is None:
            raise TsqlError(
                2740, f"SET LANGUAGE failed because '{value}' is not an official language name or a language alias on "
                "this SQL Server."
            )  # fmt: skip
        return settings
    if option == "DATEFORMAT":
        if value.lower() not in ORDERS:
            raise TsqlError(2741, f"SET DATEFORMAT date order '{value}' is invalid.")
        return dates._replace(order=value.lower())
    if not is_whole(value):
        raise syntax_error(value, statement.line)
    if not 1 <= parse_whole_number(value) <= 7:
        raise TsqlError(2742, f"SET DATEFIRST {value} is out of range.")
    return dates._replace(first=parse_whole_number(value))


def _set_isolation_level(machine: Machine, level: str, statement: SetOption) -> None:
    """Set the level for later transactions.

    A transaction whose BEGIN has not been sent takes the new level too.

    Raises:
        TsqlError: 3951 or 40515 a transaction that has begun would enter or leave SNAPSHOT.
    """
    transactions = machine.transactions
    if transactions.count and level != machine.isolation and transactions.has_begun():
        if level == SNAPSHOT:
            raise TsqlError(
                3951, f"Transaction failed in database '{machine.database.name}' because the statement was run under "
                "snapshot isolation but the transaction did not start in snapshot isolation.",
            )  # fmt: skip
        if transactions.is_snapshot:
            raise unsupported(
                f"SET TRANSACTION ISOLATION LEVEL {level} in a transaction of SNAPSHOT", "Set it before BEGIN "
                "TRANSACTION.", statement.line,
            )  # fmt: skip
    machine.isolation = level
    if transactions.count and not transactions.has_begun():
        transactions.change_isolation(snapshot=level == SNAPSHOT)


def _check_option(option: str, value: str, statement: SetOption) -> None:
    """Refuse an unknown or unsupported option, and a value that it cannot have."""
    if option == "TRANSACTION ISOLATION LEVEL":
        if value not in ISOLATION_NUMBERS:
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
            _parse_number(value, -1 if option == "LOCK_TIMEOUT" else 0)
    elif option in DATE_OPTIONS:
        if value[:1] != "@":
            _change_dates(US_ENGLISH, option, statement.value, statement)
    elif option in OPTIONS_WITHOUT_EFFECT | _HANDLED_OPTIONS:
        pass
    elif option in SET_OPTIONS:
        raise unsupported(f"SET {option}", "Leave it out.", statement.line)
    else:
        raise TsqlError(195, f"'{option}' is not a recognized SET option.", severity=15)


def _parse_number(value: str, minimum: int) -> int:
    """Return the number of SET ROWCOUNT or LOCK_TIMEOUT.

    Raises:
        TsqlError: 102 the text is not a whole number from `minimum` to the maximum of int.
    """
    number = parse_whole_number(value) if is_whole(value) else None
    if number is None or number < minimum or number > 2**31 - 1:
        raise syntax_error(value, 0)
    return number


def _evaluate_number(machine: Machine, value: str, statement: SetOption, minimum: int = 0) -> int:
    """Return a number, or the value of a variable, where NULL is 0."""
    if value[:1] == "@":
        evaluated, source = evaluate(machine, Expression(statement.value, statement.line))
        value = str(convert(evaluated, source, INT) or 0)
    return _parse_number(value, minimum)


def _set_lock_timeout(machine: Machine, value: str, statement: SetOption) -> None:
    """Set the lock timeout in milliseconds. -1 waits without limit. 0 does not wait, which is 1 ms in PostgreSQL."""
    timeout_ms = _evaluate_number(machine, value, statement, -1)
    postgres_timeout_ms = 0 if timeout_ms == -1 else max(timeout_ms, 1)
    machine.set_server_option("lock_timeout", str(postgres_timeout_ms))
