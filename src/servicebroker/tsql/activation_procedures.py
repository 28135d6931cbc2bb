"""T-SQL procedures as activation procedures: a resolver for `servicebroker.activation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import psycopg

from servicebroker.model.names import name_parts
from servicebroker.tsql.interpreter.definitions.modules import find_module
from servicebroker.tsql.results import ScriptOutput
from servicebroker.tsql.statement_errors import Message, TsqlError

if TYPE_CHECKING:
    from servicebroker.activation.procedures import Call
    from servicebroker.api.database import Database


@dataclass(frozen=True)
class TsqlProcedure:
    """A stored procedure by name. Its messages go to the log, its result sets are discarded."""

    database: str
    schema: str
    name: str
    worker: Literal["thread"] = "thread"

    def __call__(self, call: Call) -> None:
        """Run the procedure once.

        Raises:
            TsqlError: the error that ended the procedure.
        """
        from servicebroker.tsql.session import Session

        with Session(call.database, _log_listener(call.output)) as session:
            session.call(self.database, self.schema, self.name)


def _log_listener(output: Callable[[str], None]) -> Callable[[ScriptOutput], None]:
    """Return a listener that writes messages and errors to `output`, and drops result sets."""

    def log_output(output_item: ScriptOutput) -> None:
        if isinstance(output_item, Message):
            output(output_item.text)
        elif isinstance(output_item, TsqlError):
            output(output_item.shown())

    return log_output


def resolve(database: Database, name: str) -> TsqlProcedure | None:
    """Return the procedure that `schema.procedure` names in the database, or None if it does not exist."""
    schema, procedure = name_parts("procedure", name, 2)
    try:
        with database.instance.connection() as connection:
            module = find_module(connection, database.database_id, schema, procedure)
    except psycopg.errors.InsufficientPrivilege:  # the role may not run T-SQL
        return None
    return None if module is None else TsqlProcedure(database.name, schema, procedure)
