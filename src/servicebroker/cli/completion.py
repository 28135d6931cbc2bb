"""Shell completion of the names of queues, services and databases.

Completion must be fast, change nothing and print nothing. It connects to a server that runs already, never upgrades the
schema, and offers no names if it cannot connect. Any user who may create a queue chooses its name, and zsh evaluates
the offered words. So only names without characters that are special in a shell are offered.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import Any

import typer

DEFAULT_INSTANCE = "servicebroker-data"  # a folder
TIMEOUT_MS = 1000  # a user takes a longer wait for a hanging shell
_PLAIN = re.compile(r"[\w./:@%+,][\w./:@%+,-]*")  # every shell reads it as one word, and not as an option
_NAMES = {  # each query gets both parameters: $1 the database, $2 the first id that is not a system object
    "queue": (
        "select case q.schema_name when 'dbo' then q.name else q.schema_name || '.' || q.name end "
        "from servicebroker.queues q join servicebroker.databases d using (database_id) where q.queue_id >= $2 "
        "and ($1::text is null or lower(d.name) = lower($1)) order by 1"
    ),
    "service": (
        "select s.name from servicebroker.services s join servicebroker.databases d using (database_id) "
        "where s.service_id >= $2 and ($1::text is null or lower(d.name) = lower($1)) order by 1"
    ),
    "database": "select name from servicebroker.databases where $1::text is null and $2::int > 0 order by 1",
}


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues that begin with the incomplete word."""
    return _complete("queue", context, incomplete)


def complete_service(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of services that begin with the incomplete word."""
    return _complete("service", context, incomplete)


def complete_database(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of broker databases that begin with the incomplete word."""
    return _complete("database", context, incomplete)


def _complete(kind: str, context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of a kind that begin with the incomplete word, in upper or lower case; [] after an error."""
    names: list[str] = []
    database = None if kind == "database" else _option_value(context, "database", "SERVICEBROKER_DATABASE")
    instance = _option_value(context, "instance", "SERVICEBROKER_INSTANCE") or DEFAULT_INSTANCE

    def query() -> None:
        with suppress(Exception):  # a traceback must not interrupt the typed command line
            names.extend(_query_names(kind, instance, database))

    # in a daemon thread, since connecting to a server that does not answer takes too long
    thread = threading.Thread(target=query, daemon=True)
    thread.start()
    thread.join(TIMEOUT_MS / 1000)
    return [name for name in [*names] if _PLAIN.fullmatch(name) and name.lower().startswith(incomplete.lower())]


def _option_value(context: typer.Context, option: str, variable: str) -> str | None:
    """Return the value of an option on the command line, else that of its environment variable, else None."""
    value: Any = context.params.get(option) or os.environ.get(variable)
    return None if value is None else str(value)


def _query_names(kind: str, instance: str, database: str | None) -> list[str]:
    from servicebroker.model.names import FIRST_USER_ID
    from servicebroker.store.connection import connect, is_url
    from servicebroker.store.embedded import EmbeddedServer
    from servicebroker.store.running import fetch

    url = instance if is_url(instance) else EmbeddedServer.running_url(instance)
    if url is None:
        return []
    with connect(url, application_name="servicebroker completion") as connection:
        connection.execute(f"set statement_timeout = {TIMEOUT_MS}")
        rows = fetch(connection, "completion.query_names", _NAMES[kind], (database, FIRST_USER_ID))
        return [name for (name,) in rows]
