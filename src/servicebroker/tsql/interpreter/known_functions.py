"""What calls of user-defined functions need to know, which PostgreSQL keeps in the functions' comments."""

from __future__ import annotations

import json

from servicebroker.tsql.interpreter.remembered import Remembered
from servicebroker.tsql.scope import Column, UserFunction
from servicebroker.tsql.types import parse_type


class UserFunctions(Remembered[UserFunction]):
    """By the quoted PostgreSQL name. PostgreSQL keeps what calls need to know, as the function's comment.

    Attributes:
        any_called: whether the session has named one, which may ask who works.
    """

    any_called = False

    def __getitem__(self, name: str) -> UserFunction:
        found = super().__getitem__(name)
        self.any_called = True
        return found

    def _look(self, name: str) -> UserFunction | None:
        rows = self._machine.connection.run_prepared("select obj_description(to_regproc($1), 'pg_proc')", (name,))
        return _noted(rows[0][0]) if rows[0][0] else None


def note_of(function: UserFunction) -> str:
    """The comment that says how a function is called."""
    return json.dumps(
        {
            "parameters": [str(of) for of in function.parameters],
            "defaults": function.defaults,
            "returns": None if function.returns is None else str(function.returns),
            "columns": [(column.name, str(column.type)) for column in function.columns],
        }
    )


def _noted(note: str) -> UserFunction | None:
    try:
        said = json.loads(note)
        return UserFunction(
            tuple(parse_type(of) for of in said["parameters"]),
            tuple(said["defaults"]),
            None if said["returns"] is None else parse_type(said["returns"]),
            tuple(Column(name, parse_type(of)) for name, of in said["columns"]),
        )
    except (ValueError, KeyError, TypeError):  # a function that T-SQL has not made
        return None
