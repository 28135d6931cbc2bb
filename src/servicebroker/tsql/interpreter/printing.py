"""PRINT, RAISERROR and THROW."""

from __future__ import annotations

import logging
import re
from uuid import UUID

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import evaluate
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.simple import Value
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Expression, Print, Raiserror, Throw
from servicebroker.tsql.types import INT, NVARCHAR, SqlType

_LOG = logging.getLogger("servicebroker.tsql")
_LONGEST = 4000  # characters of PRINT
_LONGEST_ERROR = 2047
_PLACE = re.compile(
    r"%(?P<flags>[-+ 0#]*)(?P<width>\*|[0-9]{1,9})?(?:\.(?P<precision>\*|[0-9]{1,9}))?(?:h|l|I64)?"
    r"(?P<kind>[diosuxXsS%])"
)


@runs(Print)
def _print(machine: Machine, statement: Print) -> None:
    value, source = evaluate(machine, statement.value)
    if isinstance(value, bytes | bytearray | memoryview):
        text = "0x" + bytes(value).hex().upper()
    else:
        text = "" if value is None else _as_text(value, source)
    machine.say(Message(text[:_LONGEST]))
    machine.done(0)


def _as_text(value: object, source: SqlType | None) -> str:
    if isinstance(value, str):
        return value
    return str(convert(value, source, NVARCHAR))


@runs(Raiserror)
def _raiserror(machine: Machine, statement: Raiserror) -> None:
    message = evaluate(machine, statement.message)
    severity = _number(machine, statement.severity, 16)
    state = _number(machine, statement.state, 1)
    values = [evaluate(machine, one) for one in statement.arguments]
    if isinstance(message.value, int):
        if message.value < 13000:
            raise TsqlError(2732, f"Error number {message.value} is invalid. The number must be from 13000 through "
                            "2147483647 and it cannot be 50000.")  # fmt: skip
        raise TsqlError(18054, f"Error {message.value}, severity {severity}, state {state} was raised, but no message "
                        "with that error number was found in sys.messages.")  # fmt: skip
    filled = formatted(_as_text(message.value, message.type) if message.value is not None else "", values)
    if severity > 18 and "LOG" not in statement.options:
        raise TsqlError(2754, "Error severity levels greater than 18 can only be specified by members of the sysadmin "
                        "role, using the WITH LOG option.")  # fmt: skip
    if "LOG" in statement.options:
        _LOG.warning("Error: 50000, Severity: %s, State: %s. %s", severity, state, filled)
    number = 50000
    if severity <= 10:
        machine.say(Message(filled, number, severity, state, statement.line, machine.frame.procedure))
        machine.done(0)
        machine.error = number if "SETERROR" in statement.options else 0
        return
    error = TsqlError(number, filled, severity=severity, state=state)
    error.is_raised = True
    raise error


def _number(machine: Machine, expression: Expression, otherwise: int) -> int:
    value, source = evaluate(machine, expression)
    return otherwise if value is None else int(convert(value, source, INT))


def formatted(text: str, values: list[Value]) -> str:
    """The text with its %d, %i, %s, %u, %x and %o filled in, as printf does it.

    Raises:
        TsqlError: 2786 a value of another kind than its place, 2787 a place that is none.
    """
    left = list(values)
    number = 0

    def fill(found: re.Match[str]) -> str:
        nonlocal number
        kind = found["kind"]
        if kind == "%":
            return "%"
        width = _star(found["width"], left)
        precision = _star(found["precision"], left)
        number += 1
        value = left.pop(0).value if left else None
        if value is None:
            shown = "(null)"
        elif kind in "sS":
            if not isinstance(value, str | UUID):
                raise _mismatch(number)
            shown = str(value)[:precision]
        elif isinstance(value, int) and not isinstance(value, bool):
            shown = _integer(value, kind, found["flags"], precision)
        else:
            raise _mismatch(number)
        if width is None:
            return shown
        if "-" in found["flags"]:
            return shown.ljust(width)
        return shown.rjust(width, "0" if "0" in found["flags"] and kind not in "sS" else " ")

    for place in re.finditer("%", text):
        before = text[: place.start()]
        escaped = (len(before) - len(before.rstrip("%"))) % 2
        if not escaped and not _PLACE.match(text, place.start()):
            raise TsqlError(2787, f"Invalid format specification: '{text[place.start() : place.start() + 10]}'.")
    return _PLACE.sub(fill, text)[:_LONGEST_ERROR]


def _star(said: str | None, left: list[Value]) -> int | None:
    """A width or a precision, at most as long as the text of an error can be."""
    if said == "*":
        value = left.pop(0).value if left else 0
        return min(value, _LONGEST_ERROR) if isinstance(value, int) else 0
    return None if said is None else min(int(said), _LONGEST_ERROR)


def _integer(value: int, kind: str, flags: str, precision: int | None) -> str:
    if kind in "di":
        shown = str(abs(value)).rjust(precision or 0, "0")
        sign = "-" if value < 0 else "+" if "+" in flags else " " if " " in flags else ""
        return sign + shown
    unsigned = value % 2**32 if value < 0 else value
    prefix = {"x": "0x", "X": "0X", "o": "0"}.get(kind, "") if "#" in flags else ""
    return prefix + format(unsigned, {"u": "d"}.get(kind, kind)).rjust(precision or 0, "0")


def _mismatch(number: int) -> TsqlError:
    return TsqlError(2786, f"The data type of substitution parameter {number} does not match the expected type of the "
                     "format specification.")  # fmt: skip


@runs(Throw)
def _throw(machine: Machine, statement: Throw) -> None:
    if statement.number is None or statement.message is None or statement.state is None:
        if not machine.caught:
            raise TsqlError(
                10704, "To rethrow an error, a THROW statement must be used inside a CATCH block.", severity=15
            )
        caught = machine.caught[-1]
        again = TsqlError(
            caught.number, caught.text, severity=caught.severity, state=caught.state, line=caught.line,
            procedure=caught.procedure,
        )  # fmt: skip
        again.ends_batch = True
        raise again
    number = _number(machine, statement.number, 0)
    if number < 50000:
        raise TsqlError(35100, f"Error number {number} in the THROW statement is outside the valid range. Specify an "
                        "error number in the valid range of 50000 to 2147483647.")  # fmt: skip
    value, source = evaluate(machine, statement.message)
    error = TsqlError(
        number, "" if value is None else _as_text(value, source)[:2048], state=_number(machine, statement.state, 1)
    )
    error.ends_batch = True
    raise error
