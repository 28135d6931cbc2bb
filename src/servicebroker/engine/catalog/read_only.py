"""ALTER DATABASE SET READ_ONLY and READ_WRITE: triggers prevent every write into a READ_ONLY database.

The triggers raise 3906. They exist only while the database is READ_ONLY: on its T-SQL tables, on the tables of its
queues, and for its rows of shared tables. Its broker is off meanwhile, so messages to it wait.
"""

from __future__ import annotations

from servicebroker.engine.catalog.alter import renew_routes, renew_versions
from servicebroker.model.errors import BrokerError
from servicebroker.model.names import postgres_name
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


# tables with rows of all databases, which definitions or conversations write
_SHARED_TABLES = (
    *("conversation_endpoints", "event_notifications", "broker_priorities", "routes", "services", "queues"),
    *("service_contracts", "message_types", "xml_schema_collections", "remote_service_bindings", "certificates"),
    *("master_keys", "permissions", "role_members", "principals", "tsql_modules", "tsql_schemas", "tsql_types"),
)


def set_read_only(database_id: int, name: str) -> Steps[None]:
    """Set the database to READ_ONLY. The caller has locked it."""
    rows = yield SQL("set_read_only", (database_id,))
    if rows:
        yield renew_versions()
        yield renew_routes(database_id)  # messages parked for its services may have a route to another instance
        yield _set_write_triggers(database_id, name, True)


def set_read_write(database_id: int, name: str) -> Steps[bool]:
    """Set the database to READ_WRITE. Returns True if its broker was enabled before and has to be enabled again."""
    yield _set_write_triggers(database_id, name, False)
    rows = yield SQL("set_read_write", (database_id,))
    return bool(rows and rows[0][0])


def check_writable(database_id: int) -> Steps[None]:
    """Raise an error if the database is READ_ONLY.

    Raises:
        BrokerError: 3906 the database is READ_ONLY.
    """
    rows = yield SQL("check_writable", (database_id,))
    if rows:
        raise BrokerError(3906, *rows[0])


def _set_write_triggers(database_id: int, name: str, is_read_only: bool) -> Statement:
    return SQL(
        "set_write_triggers", (database_id, name, postgres_name(name, "dbo"), list(_SHARED_TABLES), is_read_only)
    )
