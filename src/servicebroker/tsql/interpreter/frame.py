"""What one batch or one call of a procedure knows: its variables and temporary tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import SqlType

if TYPE_CHECKING:
    from servicebroker.tsql.context import Standing


class Signal(Enum):
    """Why statements were left before their end."""

    BREAK = "BREAK"
    CONTINUE = "CONTINUE"
    RETURN = "RETURN"


@dataclass(frozen=True, slots=True)
class Jump:
    """Statements were left for the label that GOTO names."""

    label: str


Left = Signal | Jump


@dataclass(slots=True)
class Frame:
    """Variables by their name in lower case with @; a batch's frame has no procedure.

    Attributes:
        procedure: the name of the procedure that runs, "" in a batch.
        number: its object_id, @@PROCID.
        types, values: of the variables.
        tables: the quoted PostgreSQL name of table variables and of temporary tables that were made here.
        declared: the columns of table variables that were made here, as they were written.
        code: the return code.
        updated: inside a trigger the columns, in lower case, that the statement has set; None for all of them.
        diverts: whether an INSTEAD OF trigger runs here.
        follows: whether an AFTER trigger runs here.
        row_types: the number of the table type that a table variable was declared with.
        lent: the table-valued parameters, which are tables of the caller.
        is_module: whether statements of a procedure or a trigger run here, which belong to dbo, and not of a text.
        caller: who had called, before the EXECUTE AS of the module.
        signers: the certificates that have signed the module, by their thumbprints; a text of a module has its.
        impersonated: how many EXECUTE AS were open when it began, its own counted: REVERT takes back none of these.
    """

    procedure: str = ""
    number: int = 0
    types: dict[str, SqlType] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    code: int = 0
    updated: frozenset[str] | None = frozenset()
    diverts: bool = False
    follows: bool = False
    row_types: dict[str, int] = field(default_factory=dict)
    lent: set[str] = field(default_factory=set)
    is_module: bool = False
    caller: Standing | None = None
    signers: tuple[bytes, ...] = ()
    impersonated: int = 0

    def has_set(self, column: str) -> bool:
        """UPDATE(column) of a trigger."""
        return self.updated is None or column in self.updated

    def declare(self, name: str, kind: SqlType) -> None:
        """A new variable, NULL. One that a loop declares again keeps its value."""
        if name not in self.types:
            self.types[name] = kind
            self.values[name] = None

    def type_of(self, name: str) -> SqlType:
        """A variable's type.

        Raises:
            TsqlError: 137 it was not declared.
        """
        try:
            return self.types[name]
        except KeyError:
            raise TsqlError(137, f'Must declare the scalar variable "{name}".', severity=15) from None

    def assign(self, name: str, value: object, source: SqlType | None) -> None:
        """Give a variable a value of another type."""
        target = self.type_of(name)
        self.values[name] = value if value is None or source == target else convert(value, source, target)

    def value_of(self, name: str) -> object:
        """A variable's value.

        Raises:
            TsqlError: 137 it was not declared.
        """
        self.type_of(name)
        return self.values[name]
