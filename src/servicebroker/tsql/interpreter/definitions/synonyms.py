"""CREATE SYNONYM and DROP SYNONYM; what finds the object behind one is `Writer.synonym`."""

from __future__ import annotations

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.faces import face, telling
from servicebroker.store.running import fetch
from servicebroker.tsql.context import database_of
from servicebroker.tsql.interpreter.definitions.ddl_events import tell_of_synonym
from servicebroker.tsql.interpreter.definitions.modules import check_no_table, drop_modules
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Definition


@defines("CREATE", "SYNONYM")
def _create(machine: Machine, statement: Definition) -> None:
    """What it names need not be there.

    Raises:
        BrokerError: 262, 2760 the user may not.
        TsqlError: 2714 the name is taken.
    """
    machine.transactions.check()
    name, base = statement.name, statement.clauses["base"]
    database, schema = database_of(machine, name), name.schema or "dbo"
    creator = database.user.name
    machine.allow(Use("CREATE SYNONYM", schema, name.own), database=database)
    machine.transactions.guard()
    try:
        check_no_table(machine, database, schema, name.own)
        written = ".".join("[" + part.replace("]", "]]") + "]" if part else "" for part in base.parts)
        rows = fetch(
            machine.connection,
            "synonyms.create",
            "insert into servicebroker.tsql_modules (database_id, schema_name, name, kind, definition, creator) "
            f"values ($1, $2, $3, 'SN', $4, $5) on conflict do nothing returning {telling(6)}",
            (database.database_id, schema, name.own, written, creator, creator, face()),
        )
        if not rows:
            raise TsqlError(2714, f"There is already an object named '{name.own}' in the database.", state=3)
    except BaseException:
        machine.transactions.undo()
        raise
    machine.queries.synonyms.forget()
    tell_of_synonym(machine, database, statement)


@defines("DROP", "SYNONYM")
def _drop(machine: Machine, statement: Definition) -> None:
    """Raises: TsqlError: 3701 there is none, or the user may not."""
    drop_modules(machine, statement, "synonym", "SN")
    machine.queries.synonyms.forget()
