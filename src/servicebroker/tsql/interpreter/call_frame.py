"""The state of one batch or one call of a procedure: its variables and temporary tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import SqlType

if TYPE_CHECKING:
    from servicebroker.tsql.context import ExecutionContext


class Signal(Enum):
    """The reason why a list of statements was left before its end."""

    BREAK = "BREAK"
    CONTINUE = "CONTINUE"
    RETURN = "RETURN"


@dataclass(frozen=True, slots=True)
class Jump:
    """A GOTO left a list of statements for this label."""

    label: str


ExitReason = Signal | Jump


@dataclass(slots=True)
class CallFrame:
    """The variables and tables of a batch, procedure, trigger or dynamic SQL. Names are in lower case, with @ or #.

    Attributes:
        procedure: the name of the running procedure, "" in a batch.
        object_id: the object_id of the procedure, @@PROCID.
        types, values: the types and values of the variables.
        tables: the quoted PostgreSQL names of the frame's table variables and temporary tables.
        table_definitions: the column lists of the frame's table variables, as written.
        return_code: the value of RETURN.
        updated_columns: in a trigger, the columns that the statement has set, in lower case; None for all columns.
        is_instead_of_trigger, is_after_trigger: the kind of trigger, if the frame is that of a trigger.
        table_type_ids: the type_id of the table type of each table variable that has one.
        caller_tables: table-valued parameters. They are tables of the caller, and read-only.
        is_module: True for a procedure or trigger, which has dbo's rights; False for a batch or dynamic SQL.
        caller: the database and principal before the module's EXECUTE AS.
        signers: the thumbprints of the certificates that signed the module. Dynamic SQL has those of its module.
        impersonation_depth: the number of EXECUTE AS in effect at the start, which REVERT does not undo.
    """

    procedure: str = ""
    object_id: int = 0
    types: dict[str, SqlType] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    table_definitions: dict[str, str] = field(default_factory=dict)
    return_code: int = 0
    updated_columns: frozenset[str] | None = frozenset()
    is_instead_of_trigger: bool = False
    is_after_trigger: bool = False
    table_type_ids: dict[str, int] = field(default_factory=dict)
    caller_tables: set[str] = field(default_factory=set)
    is_module: bool = False
    caller: ExecutionContext | None = None
    signers: tuple[bytes, ...] = ()
    impersonation_depth: int = 0

    def is_updated(self, column: str) -> bool:
        """Return the value of UPDATE(column) in a trigger."""
        return self.updated_columns is None or column in self.updated_columns

    def declare(self, name: str, kind: SqlType) -> None:
        """Add a variable with the value NULL. A variable that a loop declares again keeps its value."""
        if name not in self.types:
            self.types[name] = kind
            self.values[name] = None

    def type_of(self, name: str) -> SqlType:
        """Return the type of a variable.

        Raises:
            TsqlError: 137 the variable was not declared.
        """
        try:
            return self.types[name]
        except KeyError:
            raise TsqlError(137, f'Must declare the scalar variable "{name}".', severity=15) from None

    def assign(self, name: str, value: object, source: SqlType | None) -> None:
        """Convert a value to the type of a variable and assign it."""
        target = self.type_of(name)
        self.values[name] = value if value is None or source == target else convert(value, source, target)

    def value_of(self, name: str) -> object:
        """Return the value of a variable.

        Raises:
            TsqlError: 137 the variable was not declared.
        """
        self.type_of(name)
        return self.values[name]
