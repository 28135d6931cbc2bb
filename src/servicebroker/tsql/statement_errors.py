"""What T-SQL says when a statement fails: a number, a level, and where."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.model.errors import LONGEST_TEXT, BrokerError
from servicebroker.model.wording import cut


class TsqlError(BrokerError):
    """A T-SQL statement was refused, or text could not be parsed.

    Attributes:
        number: of SQL Server's list, for example 8429, 2627 or 102.
        severity: the level: 10 (information) to 25.
        state: 1 to 255.
        text: the message.
        line: where the statement begins, 0 when that is not known: of the script, inside a procedure of its text.
        procedure: its name, "" outside of procedures.
        is_raised: whether RAISERROR said it, so that SET XACT_ABORT does not count.
        undoes: whether the transaction is rolled back whatever the number, since what was done before it stands.
        ends_batch: whether what follows in the batch is left out whatever the number, as after THROW.
    """

    is_raised = False
    undoes = False
    ends_batch = False

    def __init__(
        self, number: int, text: str, *, severity: int = 16, state: int = 1, line: int = 0, procedure: str = ""
    ) -> None:
        self.number = number
        self.severity = severity
        self.state = state
        self.text = cut(text, LONGEST_TEXT)
        self.hint = ""
        self.line = line
        self.procedure = procedure
        Exception.__init__(self, str(self))

    def shown(self) -> str:
        """The familiar two lines: where and how bad, then the text."""
        return f"{self.headline()}\n{self.text}"

    def __str__(self) -> str:
        return f"{self.headline()}: {self.text}"

    def headline(self) -> str:
        """Where it has happened, and how bad it is: the first of the two lines."""
        where = f", Procedure {self.procedure}" if self.procedure else ""
        return f"Msg {self.number}, Level {self.severity}, State {self.state}{where}, Line {self.line}"

    def at(self, line: int, procedure: str) -> TsqlError:
        """The same error at a place, unless it has one."""
        if self.line or not line:
            return self
        self.line, self.procedure = line, procedure
        return self


class Message(NamedTuple):
    """What a script says without a result set: PRINT, RAISERROR up to level 10, warnings.

    `number` and `severity` are 0 for PRINT.
    """

    text: str
    number: int = 0
    severity: int = 0
    state: int = 0
    line: int = 0
    procedure: str = ""


def syntax_error(near: str, line: int) -> TsqlError:
    """102: the text cannot go on with this word."""
    return TsqlError(SYNTAX_ERROR, f"Incorrect syntax near '{near}'.", severity=15, line=line)


def condition_expected(near: str = "") -> TsqlError:
    """4145: a value stands where a condition is expected."""
    text = "An expression of non-boolean type specified in a context where a condition is expected"
    return TsqlError(4145, f"{text}, near '{near[-20:]}'." if near else f"{text}.", severity=15)


def no_linked_server(name: str) -> TsqlError:
    """7202: a name of four parts is of another server."""
    return TsqlError(7202, f"Could not find server '{name}' in sys.servers. Linked servers are not supported here.")


SYNTAX_ERROR = 102
UNSUPPORTED_ERROR = 40515


def unsupported(what: str, instead: str, line: int) -> TsqlError:
    """What is understood but not done here; `instead` says what to write."""
    return TsqlError(UNSUPPORTED_ERROR, f"{what} is not supported here. {instead}", line=line)
