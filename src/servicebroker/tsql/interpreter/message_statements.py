"""PRINT, RAISERROR and THROW."""

from __future__ import annotations

import logging
import re
from uuid import UUID

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.procedures.user_messages import UserMessage, find_message
from servicebroker.tsql.interpreter.simple_expressions import Value
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Expression, Print, Raiserror, Throw
from servicebroker.tsql.types import INT, NVARCHAR, SqlType

_LOG = logging.getLogger("servicebroker.tsql")
_RAISED_ERROR_NUMBER = 50_000  # the number of RAISERROR with a text, and the lowest number of THROW
_MIN_MESSAGE_NUMBER = 13_000  # the lowest number of sys.messages that RAISERROR accepts
_MAX_PRINT_CHARS = 4000
_MAX_RAISERROR_CHARS = 2047
_MAX_THROW_CHARS = 2048
_PLACEHOLDER = re.compile(
    r"%(?P<flags>[-+ 0#]*)(?P<width>\*|[0-9]{1,9})?(?:\.(?P<precision>\*|[0-9]{1,9}))?(?:h|l|I64)?"
    r"(?P<kind>[diosuxXsS%])"
)


@runs(Print)
def _print(machine: Machine, statement: Print) -> None:
    value, source = evaluate(machine, statement.value)
    if isinstance(value, bytes | bytearray | memoryview):
        text = "0x" + bytes(value).hex().upper()
    else:
        text = "" if value is None else _to_text(value, source)
    machine.emit(Message(text[:_MAX_PRINT_CHARS]))
    machine.record_success(0)


def _to_text(value: object, source: SqlType | None) -> str:
    if isinstance(value, str):
        return value
    return str(convert(value, source, NVARCHAR))


@runs(Raiserror)
def _raiserror(machine: Machine, statement: Raiserror) -> None:
    """Run RAISERROR: emit a message up to severity 10, raise an error above.

    Raises:
        TsqlError: 2732 an invalid number, 18054 no message has the number, 2754 a severity above 18 without WITH LOG.
    """
    message = evaluate(machine, statement.message)
    severity = _evaluate_integer(machine, statement.severity, 16)
    state = _evaluate_integer(machine, statement.state, 1)
    values = [evaluate(machine, argument) for argument in statement.arguments]
    number, options = _RAISED_ERROR_NUMBER, set(statement.options)
    if isinstance(message.value, int):
        number = message.value
        stored = _find_message(machine, number, severity, state)
        text = format_message(stored.text, values)
        severity = stored.severity if severity < 0 else severity
        options |= {"LOG"} if stored.is_event_logged else set()
    else:
        text = format_message(_to_text(message.value, message.type) if message.value is not None else "", values)
    if severity > 18 and "LOG" not in options:
        raise TsqlError(2754, "Error severity levels greater than 18 can only be specified by members of the sysadmin "
                        "role, using the WITH LOG option.")  # fmt: skip
    if "LOG" in options:
        _LOG.warning("Error: %s, Severity: %s, State: %s. %s", number, severity, state, text)
    if severity <= 10:
        is_urgent = "NOWAIT" in statement.options
        machine.emit(Message(text, number, severity, state, statement.line, machine.frame.procedure, is_urgent))
        machine.record_success(0)
        machine.error_number = number if "SETERROR" in statement.options else 0
        return
    error = TsqlError(number, text, severity=severity, state=state)
    error.is_raised = True
    raise error


def _find_message(machine: Machine, number: int, severity: int, state: int) -> UserMessage:
    """Return the message of sp_addmessage that has a number.

    Raises:
        TsqlError: 2732 the number is invalid, 18054 no message has it.
    """
    if number < _MIN_MESSAGE_NUMBER or number == _RAISED_ERROR_NUMBER:
        raise TsqlError(2732, f"Error number {number} is invalid. The number must be from 13000 through "
                        "2147483647 and it cannot be 50000.")  # fmt: skip
    stored = find_message(machine, number)
    if stored is None:
        raise TsqlError(18054, f"Error {number}, severity {severity}, state {state} was raised, but no message "
                        "with that error number was found in sys.messages.")  # fmt: skip
    return stored


def _evaluate_integer(machine: Machine, expression: Expression, default: int) -> int:
    """Return the value of an expression as int, `default` for NULL."""
    value, source = evaluate(machine, expression)
    return default if value is None else int(convert(value, source, INT))


def format_message(text: str, values: list[Value]) -> str:
    """Fill in the %d, %i, %s, %u, %x and %o of a text, as printf does.

    Raises:
        TsqlError: 2786 a value has another kind than its placeholder, 2787 a placeholder is malformed.
    """
    remaining = list(values)
    number = 0

    def fill_placeholder(match: re.Match[str]) -> str:
        nonlocal number
        kind = match["kind"]
        if kind == "%":
            return "%"
        width = _field_size(match["width"], remaining)
        precision = _field_size(match["precision"], remaining)
        number += 1
        value = remaining.pop(0).value if remaining else None
        if value is None:
            field = "(null)"
        elif kind in "sS":
            if not isinstance(value, str | UUID):
                raise _type_mismatch(number)
            field = str(value)[:precision]
        elif isinstance(value, int) and not isinstance(value, bool):
            field = _format_integer(value, kind, match["flags"], precision)
        else:
            raise _type_mismatch(number)
        if width is None:
            return field
        if "-" in match["flags"]:
            return field.ljust(width)
        return field.rjust(width, "0" if "0" in match["flags"] and kind not in "sS" else " ")

    for percent in re.finditer("%", text):
        text_before = text[: percent.start()]
        is_escaped = (len(text_before) - len(text_before.rstrip("%"))) % 2
        if not is_escaped and not _PLACEHOLDER.match(text, percent.start()):
            raise TsqlError(2787, f"Invalid format specification: '{text[percent.start() : percent.start() + 10]}'.")
    return _PLACEHOLDER.sub(fill_placeholder, text)[:_MAX_RAISERROR_CHARS]


def _field_size(size: str | None, remaining: list[Value]) -> int | None:
    """Return a width or precision, at most the length of an error text; None without one. "*" takes the next value."""
    if size == "*":
        value = remaining.pop(0).value if remaining else 0
        return min(value, _MAX_RAISERROR_CHARS) if isinstance(value, int) else 0
    return None if size is None else min(int(size), _MAX_RAISERROR_CHARS)


def _format_integer(value: int, kind: str, flags: str, precision: int | None) -> str:
    """Format an integer as printf does. %u, %x and %o show a negative number as unsigned, of 32 bits."""
    if kind in "di":
        digits = str(abs(value)).rjust(precision or 0, "0")
        sign = "-" if value < 0 else "+" if "+" in flags else " " if " " in flags else ""
        return sign + digits
    unsigned = value % 2**32 if value < 0 else value
    prefix = {"x": "0x", "X": "0X", "o": "0"}.get(kind, "") if "#" in flags else ""
    return prefix + format(unsigned, {"u": "d"}.get(kind, kind)).rjust(precision or 0, "0")


def _type_mismatch(number: int) -> TsqlError:
    return TsqlError(2786, f"The data type of substitution parameter {number} does not match the expected type of the "
                     "format specification.")  # fmt: skip


@runs(Throw)
def _throw(machine: Machine, statement: Throw) -> None:
    """Run THROW. Without arguments it raises the error of the CATCH block again. It always ends the batch.

    Raises:
        TsqlError: the error; 10704 there is no CATCH block, 35100 the number is out of range.
    """
    if statement.number is None or statement.message is None or statement.state is None:
        if not machine.caught_errors:
            raise TsqlError(
                10704, "To rethrow an error, a THROW statement must be used inside a CATCH block.", severity=15
            )
        caught = machine.caught_errors[-1]
        rethrown = TsqlError(
            caught.number, caught.text, severity=caught.severity, state=caught.state, line=caught.line,
            procedure=caught.procedure,
        )  # fmt: skip
        rethrown.ends_batch = True
        raise rethrown
    number = _evaluate_integer(machine, statement.number, 0)
    if number < _RAISED_ERROR_NUMBER:
        raise TsqlError(35100, f"Error number {number} in the THROW statement is outside the valid range. Specify an "
                        "error number in the valid range of 50000 to 2147483647.")  # fmt: skip
    value, source = evaluate(machine, statement.message)
    error = TsqlError(
        number,
        "" if value is None else _to_text(value, source)[:_MAX_THROW_CHARS],
        state=_evaluate_integer(machine, statement.state, 1),
    )
    error.ends_batch = True
    raise error
