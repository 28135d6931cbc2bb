"""Making a PostgreSQL database ready for an instance."""

from __future__ import annotations

from servicebroker.engine.databases import ensure_system_objects
from servicebroker.store.connection import connect
from servicebroker.store.migrations import check_whole, migrate
from servicebroker.store.running import execute, run_alone
from servicebroker.store.server import check_server
from servicebroker.store.server_clock import Clock
from servicebroker.store.server_time import follow


def prepare(url: str, clock: Clock | None = None) -> None:
    """Bring the schema up to date, and what every instance has; the first time this makes both.

    `clock`, when it is the server's, is set by it.

    On a standby the primary does that, so there both must be there.

    Raises:
        InstanceError: the server cannot be reached or used, or is not fit for an instance.
    """
    with connect(url) as connection:
        check_server(connection, url)
        if clock is not None:
            follow(clock, connection)
        ((is_standby,),) = execute(connection, "select pg_is_in_recovery()")
        if is_standby:
            check_whole(connection)
            return
        migrate(connection)
        run_alone(connection, ensure_system_objects())
