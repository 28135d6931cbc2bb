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
    """A procedure of the catalog, by name; what it says goes to the log, its result sets to nobody."""

    database: str
    schema: str
    name: str
    worker: Literal["thread"] = "thread"

    def __call__(self, call: Call) -> None:
        """Run it once, as activation does.

        Raises:
            TsqlError: the error that ended it.
        """
        from servicebroker.tsql.session import Session

        with Session(call.database, _log_listener(call.output)) as session:
            session.call(self.database, self.schema, self.name)


def _log_listener(output: Callable[[str], None]) -> Callable[[ScriptOutput], None]:
    def tell(said: ScriptOutput) -> None:
        if isinstance(said, Message):
            output(said.text)
        elif isinstance(said, TsqlError):
            output(said.shown())

    return tell


def resolve(database: Database, name: str) -> TsqlProcedure | None:
    """The procedure that `schema.procedure` means in the database; None when it has none of that name."""
    schema, own = name_parts("procedure", name, 2)
    try:
        with database.instance.connection() as connection:
            found = find_module(connection, database.database_id, schema, own)
    except psycopg.errors.InsufficientPrivilege:  # a role that was not meant to run T-SQL
        return None
    return None if found is None else TsqlProcedure(database.name, schema, own)
