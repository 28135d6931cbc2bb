"""Errors and messages of T-SQL statements: number, level, text, line and procedure."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.model.errors import LONGEST_TEXT, BrokerError
from servicebroker.model.wording import cut
from servicebroker.overriding import override

# (level, state) in SQL Server, of errors that do not have level 16 and state 1
_LEVELS_AND_STATES = {
    **dict.fromkeys((102, 103, 105, 111, 113, 119, 130, 132, 133, 135, 136, 144, 145, 147, 156, 174, 178), (15, 1)),
    **dict.fromkeys((1033, 4145), (15, 1)),
    134: (15, 2), 137: (15, 2), 195: (15, 10), 220: (16, 2), 232: (16, 3), 235: (16, 0), 242: (16, 3), 293: (16, 0),
    352: (15, 1), 529: (16, 2), 535: (16, 0), 1087: (15, 2), 8114: (16, 5), 8115: (16, 2), 8169: (16, 2),
    10742: (15, 1), 11719: (15, 1), 11720: (15, 1), 11721: (15, 1), 11723: (15, 1), 11741: (15, 1),
}  # fmt: skip


class TsqlError(BrokerError):
    """A T-SQL statement failed, or text could not be parsed.

    Attributes:
        number: the number in SQL Server, for example 8429, 2627 or 102.
        severity: the level, from 10 (information) to 25.
        state: 1 to 255.
        text: the message.
        line: the first line of the statement, in the script or in the procedure's definition; 0 if unknown.
        procedure: the name of the procedure, "" outside of procedures.
        is_raised: True for RAISERROR, to which SET XACT_ABORT does not apply.
        undoes: True to roll back the transaction, whatever the number, since the statement has already changed rows.
        ends_batch: True to end the batch, whatever the number, as THROW does.
        cause: an error that is reported before this one. CATCH handles only this one.
        is_relative: True if `line` counts from the first line of the statement. `at` then adds that line.
    """

    is_raised = False
    undoes = False
    ends_batch = False
    cause: TsqlError | None = None
    is_relative = False

    def __init__(
        self, number: int, text: str, *, severity: int = 16, state: int = 1, line: int = 0, procedure: str = ""
    ) -> None:
        usual_severity, usual_state = _LEVELS_AND_STATES.get(number, (16, 1))
        self.number = number
        self.severity = usual_severity if severity == 16 else severity
        self.state = usual_state if state == 1 else state
        self.text = cut(text, LONGEST_TEXT)
        self.hint = ""
        self.line = line
        self.procedure = procedure
        Exception.__init__(self, str(self))

    def shown(self) -> str:
        """Return the two lines that SQL Server's tools print: the headline, then the text."""
        return f"{self.headline()}\n{self.text}"

    @override
    def __str__(self) -> str:
        return f"{self.headline()}: {self.text}"

    def headline(self) -> str:
        """Return the first line: number, level, state, procedure and line."""
        return _headline(self)

    def at(self, line: int, procedure: str) -> TsqlError:
        """Set line and procedure of the error, unless they are set, and return the error."""
        if not line or (self.line and not self.is_relative):
            return self
        self.line, self.procedure = line + max(self.line - 1, 0), procedure
        self.is_relative = False
        return self


class Message(NamedTuple):
    """A message without rows: PRINT, RAISERROR up to level 10, a warning.

    `number` and `severity` are 0 for PRINT. `is_urgent` is True for RAISERROR WITH NOWAIT.
    """

    text: str
    number: int = 0
    severity: int = 0
    state: int = 0
    line: int = 0
    procedure: str = ""
    is_urgent: bool = False

    def headline(self) -> str:
        """Return the first line, as `TsqlError.headline`."""
        return _headline(self)


def _headline(output: TsqlError | Message) -> str:
    where = f", Procedure {output.procedure}" if output.procedure else ""
    return f"Msg {output.number}, Level {output.severity}, State {output.state}{where}, Line {output.line}"


def syntax_error(near: str, line: int) -> TsqlError:
    """Build error 102: the word is not allowed here."""
    return TsqlError(SYNTAX_ERROR, f"Incorrect syntax near '{near}'.", severity=15, line=line)


def condition_expected(near: str = "") -> TsqlError:
    """Build error 4145: a value was written where a condition is required."""
    text = "An expression of non-boolean type specified in a context where a condition is expected"
    return TsqlError(4145, f"{text}, near '{near[-20:]}'." if near else f"{text}.", severity=15)


def no_linked_server(name: str) -> TsqlError:
    """Build error 7202: a name of four parts refers to another server."""
    return TsqlError(7202, f"Could not find server '{name}' in sys.servers. Linked servers are not supported here.")


def unknown_function_error(name: str) -> TsqlError:
    """Build error 4121: there is no user-defined function of this name."""
    return TsqlError(
        4121,
        f'Cannot find either column "{name.split(".")[0]}" or the user-defined function or aggregate "{name}", or the '
        "name is ambiguous.",
    )


ASSIGNED_TWICE = (
    "The column name '{0}' is specified more than once in the SET clause or column list of an INSERT. A column cannot "
    "be assigned more than one value in the same clause. Modify the clause to make sure that a column is updated only "
    "once. If this statement updates or inserts columns into a view, column aliasing can conceal the duplication in "
    "your code."
)
SYNTAX_ERROR = 102
UNSUPPORTED_ERROR = 40515


def unsupported(feature: str, advice: str, line: int) -> TsqlError:
    """Build error 40515: the construct is known and not supported. `advice` names the replacement."""
    return TsqlError(UNSUPPORTED_ERROR, f"{feature} is not supported here. {advice}", line=line)
