"""Check that a PostgreSQL server gives each connection its own session, and makes commits durable."""

from __future__ import annotations

from typing import Any

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect
from servicebroker.store.running import execute

ALLOW_LOSS = "servicebroker.allow_data_loss"  # a setting: on for a database whose messages may be lost, as in tests

_ADVICE = "connect to PostgreSQL itself, or through a proxy that gives each connection a session of its own"
_DURABILITY = ("fsync", "full_page_writes", "synchronous_commit")


def check_server(connection: psycopg.Connection[Any], url: str) -> None:
    """Refuse a server that would lose messages or locks. Runs two statements if there is no proxy.

    Raises:
        InstanceError: a proxy shares sessions between transactions, or drops the isolation level; commits do not wait
            for the disk, and the database does not allow that.
    """
    check_sessions(connection, url)
    ((allowed, *durable),) = execute(
        connection,
        "server.check_server",
        f"select coalesce(current_setting('{ALLOW_LOSS}', true), ''), "
        + ", ".join(f"current_setting('{name}')" for name in _DURABILITY),
    )
    off = [name for name, value in zip(_DURABILITY, durable, strict=True) if value == "off"]
    if off and allowed not in ("on", "true", "1", "yes"):
        raise InstanceError(
            f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: a crash would lose messages that were "
            "already acknowledged. Switch on what is off, or, where messages may be lost, "
            f"ALTER DATABASE ... SET {ALLOW_LOSS} = on."
        )


def check_sessions(connection: psycopg.Connection[Any], url: str) -> None:
    """Refuse a proxy that does not give each connection its own session. Runs one statement if there is no proxy.

    Raises:
        InstanceError: a proxy shares sessions between transactions, or drops the isolation level.
    """
    ((backend, isolation),) = execute(
        connection,
        "server.check_sessions",
        "select pg_backend_pid(), current_setting('default_transaction_isolation')",
    )
    if backend != connection.info.backend_pid and _shares_sessions(connection, url):
        raise InstanceError(
            "A proxy in front of PostgreSQL pools sessions by transaction, so group locks, LISTEN and prepared "
            f"statements would be lost after each; {_ADVICE} (pgbouncer: pool_mode = session)."
        )
    if isolation != "read committed":
        raise InstanceError(
            f"A proxy drops the settings of sessions, and the default isolation is {isolation}, with which readers "
            f"fail: {_ADVICE}, or ALTER ROLE ... SET default_transaction_isolation = 'read committed'."
        )


def _shares_sessions(connection: psycopg.Connection[Any], url: str) -> bool:
    """Check whether a proxy changes the session of a connection between transactions."""
    sessions = {_session(connection)}
    with connect(url) as other:
        for _ in range(3):
            with other.transaction():
                if _session(other) in sessions:
                    return True
                sessions |= {_session(connection), _session(connection)}  # a proxy may rotate them
    return len(sessions) > 1


def _session(connection: psycopg.Connection[Any]) -> int:
    ((pid,),) = execute(connection, "server.session", "select pg_backend_pid()")
    return int(pid)
