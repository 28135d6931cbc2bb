"""Connections: one function to open them, one pool per instance."""

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
from servicebroker.store.aio.direct import AsyncDirectConnection, AsyncDirectPool

# UTC and dates of one form everywhere. The rules rely on READ COMMITTED, whatever the server's default is. JIT takes
# seconds to compile a plan that runs for milliseconds. Sessions that only listen are idle for ever. Our functions
# contain a backslash, and are made without the warnings of plpgsql.
_OPTIONS = (
    r"-c timezone=UTC -c jit=off -c idle_session_timeout=0 -c default_transaction_isolation=read\ committed "
    "-c standard_conforming_strings=on -c datestyle=ISO,MDY -c plpgsql.extra_errors=none -c plpgsql.extra_warnings=none"
)
# our own sessions are idle and wait as long as needed, whatever the role's settings for applications are
_NO_TIMEOUTS = " -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
# a vanished machine is given up after half a minute: a vanished server by its waiting clients, and a vanished client by
# the server, which holds the client's locks
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
_KEEPALIVE_OPTIONS = " ".join(f"-c tcp_{name.removeprefix('tcp_')}={value}" for name, value in _KEEPALIVES.items())
# seconds after which one of the unused connections is closed, and so on. After the sessions were lost a pool has more
# than before, since it opens another one for each waiting caller
_IDLE_S = 5.0
ENCODING = "UTF8"  # of the database and of the clients that run verbs: names and texts have any character
_MINIMUM_SERVER = 150000
_WITH_TRANSACTION_TIMEOUT = 170000
_PROXY = (
    "; a proxy refuses the settings of a session: connect to PostgreSQL itself, or let it ignore them "
    "(pgbouncer: pool_mode = session, ignore_startup_parameters = options)."
)


# prefixes that no folder name is likely to have: a scheme, PostgreSQL's without colon or slashes, a host with its port
_URL_PATTERN = re.compile(r"[\w+.-]+(:[\w+.-]+)*:/|postgres\w*(:|//)|[\w.@-]+:\d+(/|$)", re.IGNORECASE)


def is_url(target: str) -> bool:
    """Check whether `target` names a PostgreSQL server, by URL or as `key=value ...`, rather than a data folder.

    Raises:
        InstanceError: it looks like a URL, but not of PostgreSQL: it is unlikely to be meant as a folder. Or it has a
            NUL, behind which libpq reads nothing, or half of a surrogate pair.
    """
    if "\0" in target or not is_encodable(target):
        raise InstanceError("The URL or folder of an instance has a NUL or half of a surrogate pair, and names none.")
    if re.match(r"postgres(ql)?://|\w+ *=", target):
        return True
    if _URL_PATTERN.match(target):
        raise InstanceError(
            f"'{without_password(target)}' is no URL of PostgreSQL: write postgresql://user@host:port/database, or ./ "
            "before the name of a folder."
        )
    return False


async def connect(
    url: str, *, application_name: str = "servicebroker", keeps_timeouts: bool = False
) -> AsyncDirectConnection:
    """Open a connection in autocommit mode, so that BEGIN is always explicit.

    `keeps_timeouts`: with the timeouts of its role, as the connections of applications have them.

    Raises:
        InstanceError: the server cannot be reached, refuses, or is older than PostgreSQL 15; the database is not in
            UTF8.
    """
    try:
        connection = await AsyncDirectConnection.connect(
            url, **_settings(url, application_name, "" if keeps_timeouts else _NO_TIMEOUTS)
        )
    except psycopg.Error as problem:
        advice = _PROXY if "unsupported startup parameter" in str(problem) else ""
        reason = without_quoted_secrets(one_line(problem), url)
        raise Unreachable(f"Cannot connect to PostgreSQL: {reason}{advice}") from None
    if connection.info.server_version < _MINIMUM_SERVER:
        version = connection.info.server_version // 10000
        await connection.close()
        raise InstanceError(f"servicebroker needs PostgreSQL 15 or newer; this server is {version}.")
    if (encoding := connection.info.parameter_status("server_encoding")) not in (ENCODING, None):
        database = connection.info.dbname
        await connection.close()
        raise InstanceError(
            f"servicebroker needs a PostgreSQL database with the encoding {ENCODING}; the encoding of '{database}' is "
            f"{encoding}. Make another one: CREATE DATABASE ... TEMPLATE template0 ENCODING '{ENCODING}'."
        )
    await _set_up(url, connection)
    if connection.info.server_version >= _WITH_TRANSACTION_TIMEOUT and not keeps_timeouts:
        await connection.execute("set transaction_timeout = 0")  # refused as a startup option before 17
    return connection


def pool(url: str, size: int) -> AsyncDirectPool:
    """Return a pool of such connections, not open yet; it opens them as needed, at most `size`."""
    return AsyncDirectPool(
        url,
        connection_class=AsyncDirectConnection,
        kwargs=_settings(url, "servicebroker"),
        min_size=1,
        max_size=size,
        max_idle=_IDLE_S,
        reconnect_timeout=5,  # then the next caller tries again, instead of waiting out ever longer pauses
        configure=partial(_set_up, url),
        open=False,
        name="servicebroker",
    )


async def _set_up(url: str, connection: AsyncDirectConnection) -> None:
    """Watch the session. Apply its settings if PGTZ, PGDATESTYLE or a proxy without options has overridden them."""
    ((pid, start),) = await (await connection.execute(lost_sessions.SESSION)).fetchall()
    lost_sessions.watch(connection, url, (pid, start))
    reported = connection.info.parameter_status("TimeZone"), connection.info.parameter_status("DateStyle")
    if reported != ("UTC", "ISO, MDY"):
        await connection.execute("set timezone = 'UTC'")
        await connection.execute("set datestyle = 'ISO, MDY'")
        await connection.execute("set default_transaction_isolation = 'read committed'")
        await connection.execute("set jit = off")
        await connection.execute("set idle_session_timeout = 0")


def urls_of_hosts(url: str) -> dict[str, str]:
    """Return a URL for each host of a URL of several; none if it names one, or addresses beside the hosts."""
    given = conninfo_to_dict(url)
    hosts, ports = str(given.get("host") or "").split(","), str(given.get("port") or "").split(",")
    if len(hosts) < 2 or given.get("hostaddr"):
        return {}
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    return {
        host if len(set(ports)) == 1 else f"{host}:{port}": make_conninfo(
            url, host=host, port=port or None, target_session_attrs="any"
        )
        for host, port in zip(hosts, ports, strict=True)
    }


def for_another_driver(url: str, application_name: str) -> str:
    """Return the URL with the settings that `connect` adds, for other drivers that use libpq."""
    return make_conninfo(url, **_parameters(url, application_name, _NO_TIMEOUTS))


def _settings(url: str, application_name: str, more: str = "") -> dict[str, Any]:
    return {
        **_parameters(url, application_name, more),
        "autocommit": True,
        # at a ROLLBACK the driver would run DEALLOCATE ALL for its own prepared statements, and drop ours too
        "prepare_threshold": None,
    }


def _parameters(url: str, application_name: str, more: str) -> dict[str, Any]:
    given = conninfo_to_dict(url)
    options = f"{_KEEPALIVE_OPTIONS} {given.get('options') or ''} {_OPTIONS}{more}"  # the last one wins
    return {
        **{name: value for name, value in _KEEPALIVES.items() if name not in given},
        "application_name": application_name,
        "client_encoding": ENCODING,  # above that of the URL and of PGCLIENTENCODING
        "options": options,
        "connect_timeout": 10,
    }


def one_line(problem: Exception) -> str:
    """Return a driver's message on one line."""
    return " ".join(str(problem).split()) or type(problem).__name__
