"""The operation of a CREATE, an ALTER or a DROP, made from the clauses of its text.

The parser puts a clause under the name of the operation's field, so that a new field needs no line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Operation
from servicebroker.tsql.interpreter.conversations import written
from servicebroker.tsql.interpreter.evaluation import integer, text
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.syntax import Constant, Definition, Expression, Name, Variable

T = TypeVar("T")

_WITH_SCHEMA = frozenset({"QUEUE", "XML SCHEMA COLLECTION"})  # kinds whose names have two parts
_WORDS = {"schema_collection": "XML schema collection", "queue": "queue"}  # what an error calls an object of a clause


def bound(machine: Machine, statement: Definition, operation: type[Operation[T]], **more: object) -> Operation[T]:
    """Return the value of the statement; `more` are fields whose values are no clauses.

    Raises:
        BrokerError: 9609 an object of another database is named.
    """
    name = written(statement.name) if statement.kind in _WITH_SCHEMA else statement.name.own
    return operation(**{"name": name, **_given(machine, statement.clauses, operation), **more})


def _given(machine: Machine, clauses: Mapping[str, Any], operation: type[Operation[Any]]) -> dict[str, Any]:
    """Return the fields that the clauses give; a text that is missing and must be there is empty."""
    given: dict[str, Any] = {}
    for field in fields(operation):  # type: ignore[arg-type] # each is a dataclass
        value = _value(machine, field, clauses[field.name]) if field.name in clauses else None
        if value is not None:
            given[field.name] = value
        elif field.default is MISSING and field.type != "bool" and field.name != "name":
            given[field.name] = ""
    return given


def _value(machine: Machine, field: Field[Any], said: object) -> object:
    """Return what a clause says, as the field has it."""
    match said:
        case Name() if field.name in _WORDS:
            return _written_here(machine, _WORDS[field.name], said)
        case Constant() | Variable() | Expression() | Name():  # a name stands for a text
            is_number = "int" in str(field.type).split(" | ") and said != Constant("DEFAULT")
            return (integer if is_number else text)(machine, said)
        case _:
            return said


def _written_here(machine: Machine, kind: str, name: Name) -> str:
    """Return the name of something that must be in the current database, as an operation wants it.

    Raises:
        BrokerError: 9609 it is said to be in another database.
    """
    if name.database and name.database.lower() != machine.database.name.lower():
        raise BrokerError(9609, kind, str(name), 1)
    return written(name)
