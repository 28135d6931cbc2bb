"""Making a PostgreSQL database ready for an instance."""

from __future__ import annotations

from servicebroker.engine.catalog import ensure_database
from servicebroker.store.connection import connect
from servicebroker.store.migrations import migrate
from servicebroker.store.running import run_alone

_SYSTEM_DATABASE = "msdb"


def prepare(url: str) -> None:
    """Bring the schema up to date; the first time this makes it.

    Raises:
        InstanceError: the server cannot be reached or used.
    """
    with connect(url) as connection:
        migrate(connection)
        run_alone(connection, ensure_database(_SYSTEM_DATABASE))
