"""Binding of a CREATE, ALTER or DROP to its operation: each clause becomes a field.

The parser stores a clause under the name of the operation's field, so that a new field needs no line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Operation
from servicebroker.tsql.interpreter.evaluation import evaluate_integer, evaluate_text
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.names import api_name
from servicebroker.tsql.syntax import Constant, Definition, Expression, Name, Variable

T = TypeVar("T")

_KINDS_WITH_SCHEMA = frozenset({"QUEUE", "XML SCHEMA COLLECTION"})  # kinds whose names have two parts
# kinds of objects in error texts, by clause
_SHOWN_KINDS = {"schema_collection": "XML schema collection", "queue": "queue"}


def bind_operation(
    machine: Machine, statement: Definition, operation: type[Operation[T]], **extra_fields: object
) -> Operation[T]:
    """Make the operation of a statement. `extra_fields` are values of fields that no clause sets.

    Raises:
        BrokerError: 9609 the statement names an object of another database.
    """
    name = api_name(statement.name) if statement.kind in _KINDS_WITH_SCHEMA else statement.name.object
    return operation(**{"name": name, **_field_values(machine, statement.clauses, operation), **extra_fields})


def _field_values(machine: Machine, clauses: Mapping[str, Any], operation: type[Operation[Any]]) -> dict[str, Any]:
    """Return the fields that have a clause.

    A required field without a clause gets an empty text, so that the operation refuses it.
    """
    values: dict[str, Any] = {}
    for field in fields(operation):  # type: ignore[arg-type] # each is a dataclass
        value = _field_value(machine, field, clauses[field.name]) if field.name in clauses else None
        if value is not None:
            values[field.name] = value
        elif field.default is MISSING and field.type != "bool" and field.name != "name":
            values[field.name] = ""
    return values


def _field_value(machine: Machine, field: Field[Any], clause: object) -> object:
    """Return the value of a clause in the type of its field."""
    match clause:
        case Name() if field.name in _SHOWN_KINDS:
            return _name_in_current_database(machine, _SHOWN_KINDS[field.name], clause)
        case Constant() | Variable() | Expression() | Name():  # a name is taken as text
            is_number = "int" in str(field.type).split(" | ") and clause != Constant("DEFAULT")
            return (evaluate_integer if is_number else evaluate_text)(machine, clause)
        case _:
            return clause


def _name_in_current_database(machine: Machine, kind: str, name: Name) -> str:
    """Return the name of an object, which must be in the current database, in the form for an operation.

    Raises:
        BrokerError: 9609 the name begins with another database.
    """
    if name.database and name.database.lower() != machine.database.name.lower():
        raise BrokerError(9609, kind, str(name), 1)
    return api_name(name)
