"""Opens the instance and the broker database that the options `instance` and `database` name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from servicebroker.engine.catalog.databases import find_database
from servicebroker.engine.security.principals import find_user
from servicebroker.model.errors import InstanceError
from servicebroker.model.security.permissions import User
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.home import check_home, find_home
from servicebroker.store.running import execute, run
from servicebroker.store.server import check_server

APPLICATION = "servicebroker pipeline"  # application_name of a pipeline's connections


class OpenInstance:
    """A running PostgreSQL server, reachable at `url` until `close`.

    The server of a data folder is started or joined, never created.

    Args:
        instance: a URL or a data folder.
        in_task: opened by a Spark task, for a few statements. The driver then has the thread that restarts an
            embedded server.

    Raises:
        InstanceError: there is no such instance.
    """

    def __init__(self, instance: str, *, in_task: bool = False) -> None:
        self._server = None if is_url(instance) else EmbeddedServer.join(instance, watches=not in_task)
        self.url = self._server.url if self._server else instance

    def close(self) -> None:
        """Release the server. An embedded server stops when its last user releases it."""
        if self._server:
            self._server.close()


@dataclass
class OpenDatabase:
    """A connection to a broker database. `user`: the database's user for the role of the connection."""

    instance: OpenInstance
    connection: psycopg.Connection[Any]
    database_id: int
    user: User

    @classmethod
    def open(cls, instance: str, database: str, *, in_task: bool = False) -> OpenDatabase:
        """Connect to the instance, which may start an embedded server, and find the broker database.

        `in_task`: as for `OpenInstance`.

        Raises:
            InstanceError: the instance cannot be reached, the database has no servicebroker schema, its server is
                unsuitable (`check_server`), or it is a restored copy before `servicebroker instance adopt`.
            BrokerError: 911 no such database, 916 no permission to use it.
        """
        opened = OpenInstance(instance, in_task=in_task)
        try:
            connection = connect(opened.url, application_name=APPLICATION)
        except BaseException:
            opened.close()
            raise
        try:
            check_server(connection, opened.url)
            if not has_table(connection, "queues"):
                raise InstanceError(
                    "This PostgreSQL database holds no instance of servicebroker: create one with servicebroker init."
                )
            check_home(find_home(connection), connection.info.dbname)  # refuses a copy that was not adopted
            database_id = run(connection, find_database(database))
            return cls(opened, connection, database_id, run(connection, find_user(database_id)))
        except BaseException:
            connection.close()
            opened.close()
            raise

    def close(self) -> None:
        """Close the connection, and release the server (see `OpenInstance.close`)."""
        self.connection.close()
        self.instance.close()


def has_table(connection: psycopg.Connection[Any], table: str) -> bool:
    """True if the instance has a table of that name."""
    ((is_present,),) = execute(
        connection, "open_database.has_table", "select to_regclass('servicebroker.' || $1::text) is not null", table
    )
    return bool(is_present)
