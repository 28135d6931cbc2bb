"""CREATE SYNONYM and DROP SYNONYM. `Writer.synonym` returns the base object of a synonym."""

from __future__ import annotations

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.names import bracketed
from servicebroker.store.running import fetch
from servicebroker.tsql.context import database_of
from servicebroker.tsql.interpreter.definitions.ddl_events import post_synonym_event
from servicebroker.tsql.interpreter.definitions.modules import check_no_relation, drop_modules
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Definition


@defines("CREATE", "SYNONYM")
def _create(machine: Machine, statement: Definition) -> None:
    """Run CREATE SYNONYM. The base object need not exist.

    Raises:
        BrokerError: 262 or 2760 the user may not.
        TsqlError: 2714 the name is taken.
    """
    machine.transactions.check_not_doomed()
    name, base = statement.name, statement.clauses["base"]
    database, schema = database_of(machine, name), name.schema or "dbo"
    creator = database.user.name
    machine.authorize(Use("CREATE SYNONYM", schema, name.object), database=database)
    machine.transactions.set_guard()
    try:
        check_no_relation(machine, database, schema, name.object)
        rows = fetch(
            machine.connection,
            "synonyms.create",
            "insert into servicebroker.tsql_modules (database_id, schema_name, name, kind, definition, creator) "
            f"values ($1, $2, $3, 'SN', $4, $5) on conflict do nothing returning {audit_context_sql(6)}",
            (database.database_id, schema, name.object, bracketed(*base.parts), creator, creator, client_kind()),
        )
        if not rows:
            raise TsqlError(2714, f"There is already an object named '{name.object}' in the database.", state=3)
    except BaseException:
        machine.transactions.undo_statement()
        raise
    machine.queries.synonyms.invalidate()
    post_synonym_event(machine, database, statement)


@defines("DROP", "SYNONYM")
def _drop(machine: Machine, statement: Definition) -> None:
    """Run DROP SYNONYM.

    Raises:
        TsqlError: 3701 the synonym does not exist, or no permission.
    """
    drop_modules(machine, statement, "synonym", "SN")
    machine.queries.synonyms.invalidate()
