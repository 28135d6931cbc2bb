# Made from aio/connection.py by tools/make_sync.py: change that file, then run `make sync`.
"""Open connections to PostgreSQL, one by one or as a pool."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from servicebroker.model.errors import InstanceError, Unreachable
from servicebroker.model.hidden_passwords import without_password, without_quoted_secrets
from servicebroker.model.names import is_encodable
from servicebroker.store import lost_sessions
from servicebroker.store.direct import DirectConnection, DirectPool

# Times are in UTC, and dates in ISO form. The verbs need READ COMMITTED, whatever the server's default is. JIT takes
# seconds to compile a plan that runs for milliseconds. Sessions that only listen stay idle. The functions of the schema
# contain a backslash, and are created without the warnings of plpgsql.
_OPTIONS = (
    r"-c timezone=UTC -c jit=off -c idle_session_timeout=0 -c default_transaction_isolation=read\ committed "
    "-c standard_conforming_strings=on -c datestyle=ISO,MDY -c plpgsql.extra_errors=none -c plpgsql.extra_warnings=none"
)
# for sessions that servicebroker uses itself: the timeouts of the role are meant for applications
_NO_TIMEOUTS = " -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
# A connection to a vanished machine fails after about 30 s, on both sides: clients stop waiting for a vanished server,
# and the server releases the locks of a vanished client.
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
_KEEPALIVE_OPTIONS = " ".join(f"-c tcp_{name.removeprefix('tcp_')}={value}" for name, value in _KEEPALIVES.items())
# An unused connection of a pool is closed after this time. A pool may have many: after its sessions were lost, it opens
# a connection for each waiting caller.
_MAX_IDLE_S = 5.0
ENCODING = "UTF8"  # the encoding of database and clients: names and texts may have any character
_MIN_SERVER_VERSION = 150000
_TRANSACTION_TIMEOUT_VERSION = 170000  # the first server version with this setting
_PROXY = (
    "; a proxy refuses the settings of a session: connect to PostgreSQL itself, or let it ignore them "
    "(pgbouncer: pool_mode = session, ignore_startup_parameters = options)."
)

# prefixes of a URL: a scheme, "postgres" without colon or slashes, or a host with a port. No folder is called so.
_URL_PATTERN = re.compile(r"[\w+.-]+(:[\w+.-]+)*:/|postgres\w*(:|//)|[\w.@-]+:\d+(/|$)", re.IGNORECASE)


def is_url(target: str) -> bool:
    """Check whether `target` names a PostgreSQL server, by URL or as `key=value ...`, rather than a data folder.

    Raises:
        InstanceError: it looks like a URL, but not of PostgreSQL. Or it has a NUL, where libpq stops reading, or
            half of a surrogate pair.
    """
    if "\0" in target or not is_encodable(target):
        raise InstanceError("The URL or folder of the instance must not have a NUL or half of a surrogate pair.")
    if re.match(r"postgres(ql)?://|\w+ *=", target):
        return True
    if _URL_PATTERN.match(target):
        raise InstanceError(
            f"'{without_password(target)}' is not a PostgreSQL URL: write postgresql://user@host:port/database, or ./ "
            "before the name of a folder."
        )
    return False


def connect(url: str, *, application_name: str = "servicebroker", keeps_timeouts: bool = False) -> DirectConnection:
    """Open a connection in autocommit mode, so that BEGIN is always explicit.

    `keeps_timeouts`: keep the timeouts of the role, as for connections of applications.

    Raises:
        InstanceError: the server cannot be reached, refuses, or is older than PostgreSQL 15; the database is not in
            UTF8.
    """
    try:
        connection = DirectConnection.connect(
            url, **_settings(url, application_name, "" if keeps_timeouts else _NO_TIMEOUTS)
        )
    except psycopg.Error as problem:
        advice = _PROXY if "unsupported startup parameter" in str(problem) else ""
        reason = without_quoted_secrets(one_line(problem), url)
        raise Unreachable(f"Cannot connect to PostgreSQL: {reason}{advice}") from None
    try:
        if connection.info.server_version < _MIN_SERVER_VERSION:
            version = connection.info.server_version // 10000
            raise InstanceError(f"servicebroker needs PostgreSQL 15 or newer; this server is {version}.")
        if (encoding := connection.info.parameter_status("server_encoding")) not in (ENCODING, None):
            database = connection.info.dbname
            raise InstanceError(
                f"servicebroker needs a PostgreSQL database with the encoding {ENCODING}; the encoding of '{database}' "
                f"is {encoding}. Make another one: CREATE DATABASE ... TEMPLATE template0 ENCODING '{ENCODING}'."
            )
        _set_up(url, connection)
        if connection.info.server_version >= _TRANSACTION_TIMEOUT_VERSION and not keeps_timeouts:
            connection.execute("set transaction_timeout = 0")  # refused as a startup option before 17
    except BaseException:  # also when the task is cancelled
        connection.close()
        raise
    return connection


def pool(url: str, size: int) -> DirectPool:
    """Return a pool of at most `size` connections, which is not open yet, and opens connections as needed."""
    return DirectPool(
        url,
        connection_class=DirectConnection,
        kwargs=_settings(url, "servicebroker"),
        min_size=1,
        max_size=size,
        max_idle=_MAX_IDLE_S,
        reconnect_timeout=5,  # seconds; then the next caller tries again, without the growing pauses of the pool
        configure=partial(_set_up, url),
        open=False,
        name="servicebroker",
    )


def _set_up(url: str, connection: DirectConnection) -> None:
    """Watch the session for its loss. Repeat the settings that PGTZ, PGDATESTYLE or a proxy may have overridden."""
    ((pid, start),) = (connection.execute(lost_sessions.SESSION)).fetchall()
    lost_sessions.watch(connection, url, (pid, start))
    reported = connection.info.parameter_status("TimeZone"), connection.info.parameter_status("DateStyle")
    if reported != ("UTC", "ISO, MDY"):
        connection.execute("set timezone = 'UTC'")
        connection.execute("set datestyle = 'ISO, MDY'")
        connection.execute("set default_transaction_isolation = 'read committed'")
        connection.execute("set jit = off")
        connection.execute("set idle_session_timeout = 0")


def urls_of_hosts(url: str) -> dict[str, str]:
    """Return a URL for each host of a URL with several hosts. Empty if it has one host, or `hostaddr`."""
    parameters = conninfo_to_dict(url)
    hosts, ports = str(parameters.get("host") or "").split(","), str(parameters.get("port") or "").split(",")
    if len(hosts) < 2 or parameters.get("hostaddr"):
        return {}
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    return {
        host if len(set(ports)) == 1 else f"{host}:{port}": make_conninfo(
            url, host=host, port=port or None, target_session_attrs="any"
        )
        for host, port in zip(hosts, ports, strict=True)
    }


def for_another_driver(url: str, application_name: str) -> str:
    """Return the URL with the settings that `connect` adds, for another driver that uses libpq."""
    return make_conninfo(url, **_parameters(url, application_name, _NO_TIMEOUTS))


def _settings(url: str, application_name: str, options: str = "") -> dict[str, Any]:
    """Return the arguments with which psycopg opens a connection. `options`: further settings of the session."""
    return {
        **_parameters(url, application_name, options),
        "autocommit": True,
        # the driver must prepare nothing: at a ROLLBACK it would run DEALLOCATE ALL, which drops statements of
        # direct.py
        "prepare_threshold": None,
    }


def _parameters(url: str, application_name: str, options: str) -> dict[str, Any]:
    """Return the connection parameters of libpq that are added to the URL's."""
    parameters = conninfo_to_dict(url)
    # PostgreSQL uses the last of several values of a setting
    all_options = f"{_KEEPALIVE_OPTIONS} {parameters.get('options') or ''} {_OPTIONS}{options}"
    return {
        **{name: value for name, value in _KEEPALIVES.items() if name not in parameters},
        "application_name": application_name,
        "client_encoding": ENCODING,  # takes precedence over the URL and PGCLIENTENCODING
        "options": all_options,
        "connect_timeout": 10,
    }


def one_line(problem: Exception) -> str:
    """Return a driver's message on one line."""
    text = str(problem).replace("\n\tIs the server", ". Is the server")  # libpq's advice is a line of its own
    return " ".join(text.split()) or type(problem).__name__
