"""Completion of names by the shell: queues, services and databases of the instance that the command line names.

Completion is a look that must be fast, harmless and silent. It reads a server that runs; it starts none, upgrades
nothing, and offers nothing where it cannot connect. Names come from whoever may create a queue, and zsh evaluates what
is offered. So only names without characters that mean something to a shell are offered.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import Any

import typer

DEFAULT_INSTANCE = "servicebroker-data"  # a folder
TIMEOUT_MS = 1000  # a shell that waits longer feels stuck
_PLAIN = re.compile(r"[\w./:@%+,][\w./:@%+,-]*")  # a name that no shell takes for more than a word, or for an option
_NAMES = {
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
    """Return the queues whose name begins so."""
    return _complete("queue", context, incomplete)


def complete_service(context: typer.Context, incomplete: str) -> list[str]:
    """Return the services whose name begins so."""
    return _complete("service", context, incomplete)


def complete_database(context: typer.Context, incomplete: str) -> list[str]:
    """Return the broker databases whose name begins so."""
    return _complete("database", context, incomplete)


def _complete(kind: str, context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of a kind that begin so, in any case; none where something fails."""
    found: list[str] = []
    database = None if kind == "database" else _given(context, "database", "SERVICEBROKER_DATABASE")
    instance = _given(context, "instance", "SERVICEBROKER_INSTANCE") or DEFAULT_INSTANCE

    def look() -> None:
        with suppress(Exception):  # a traceback in the middle of a command line helps nobody
            found.extend(_names(kind, instance, database))

    # a thread, which the end of the process ends: connecting to a silent server takes longer than a person waits
    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    looker.join(TIMEOUT_MS / 1000)
    return [name for name in [*found] if _PLAIN.fullmatch(name) and name.lower().startswith(incomplete.lower())]


def _given(context: typer.Context, option: str, variable: str) -> str | None:
    """Return the value of an option on the command line, else that of its variable, else its default."""
    value: Any = context.params.get(option) or os.environ.get(variable)
    return None if value is None else str(value)


def _names(kind: str, instance: str, database: str | None) -> list[str]:
    from servicebroker.model import names
    from servicebroker.store.connection import connect, is_url
    from servicebroker.store.embedded import EmbeddedServer
    from servicebroker.store.running import fetch

    url = instance if is_url(instance) else EmbeddedServer.running_url(instance)
    if url is None:
        return []
    with connect(url, application_name="servicebroker completion") as connection:
        connection.execute(f"set statement_timeout = {TIMEOUT_MS}")
        rows = fetch(connection, "completion.names", _NAMES[kind], (database, names.FIRST_USER_ID))
        return [name for (name,) in rows]
