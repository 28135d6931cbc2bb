"""Detect connections whose session on the server has ended while their socket stays open.

A proxy that loses its connection to the server may keep the client's socket open and answer its keepalives. A statement
then waits for ever for its result, and a listener for notifications. One thread of the process checks for that.

If a statement has waited for `SUSPICION_S`, or a listener for `LISTENER_CHECK_S`, the thread asks the server over
a new connection whether the session still exists. If not, it shuts the socket down, so that the waiting thread or task
gets the error of a lost connection. If the server does not answer, it is down or slow, and nothing is shut down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.model.reporting import report

SAMPLE_INTERVAL_S = 1.0
SUSPICION_S = 5.0  # few statements run longer, and a check is cheap
LISTENER_CHECK_S = 20.0  # so that a lost listener is replaced within half a minute
_CONNECT_TIMEOUT_S = 5
_ANSWER_TIMEOUT_S = 5.0  # the new connection may be lost like those that it checks

# The process id of a session, and its start, because ids are reused. The start is NULL if the role may not see it.
SESSION = "select pid, backend_start from pg_stat_get_activity(pg_backend_pid())"
_EXISTING = "select pid, backend_start from pg_stat_get_activity(null) where pid = any(%s)"

AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
Session: TypeAlias = tuple[int, datetime | None]

_LOG = logging.getLogger("servicebroker")


@dataclass(slots=True)
class _Watched:
    """A watched connection. `waits_since` and `asked_at` are times of time.monotonic()."""

    url: str
    session: Session
    is_listening: bool
    waits_since: float | None = None
    asked_at: float = 0.0


_watched: WeakKeyDictionary[AnyConnection, _Watched] = WeakKeyDictionary()
_lock = threading.Lock()
_is_running = False


def watch(connection: AnyConnection, url: str, session: Session) -> None:
    """Watch a connection until it is closed."""
    global _is_running
    with _lock:
        _watched[connection] = _Watched(url, session, is_listening=False, asked_at=time.monotonic())
        if not _is_running:
            _is_running = True
            threading.Thread(target=_run, name="servicebroker lost sessions", daemon=True).start()


def watch_listener(connection: AnyConnection) -> None:
    """Watch a connection also while it waits for notifications."""
    if connection in _watched:
        _watched[connection].is_listening = True


def shut_down_socket(connection: AnyConnection) -> None:
    """Shut down the socket of a connection, so that a thread that waits for the server gets an error."""
    with (
        contextlib.suppress(OSError, psycopg.Error),  # already closed
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)


def _run() -> None:
    global _is_running
    while True:
        time.sleep(SAMPLE_INTERVAL_S)
        with _lock:
            watched = {connection: each for connection, each in _watched.items() if not connection.closed}
            if not watched:
                _watched.clear()
                _is_running = False
                return
        by_url: dict[str, dict[AnyConnection, _Watched]] = defaultdict(dict)
        for connection in _suspects(watched, time.monotonic()):
            by_url[watched[connection].url][connection] = watched[connection]
        for url, suspects in by_url.items():
            _judge(url, suspects)


def _suspects(watched: dict[AnyConnection, _Watched], now: float) -> Iterable[AnyConnection]:
    """Return the connections whose sessions have to be checked now."""
    for connection, each in watched.items():
        is_waiting = connection.pgconn.transaction_status == TransactionStatus.ACTIVE
        each.waits_since = (each.waits_since or now) if is_waiting else None
        has_waited = each.waits_since is not None and now - each.waits_since >= SUSPICION_S
        pause = SUSPICION_S if has_waited else LISTENER_CHECK_S
        if (has_waited or each.is_listening) and now - each.asked_at >= pause:
            each.asked_at = now
            yield connection


def _judge(url: str, suspects: dict[AnyConnection, _Watched]) -> None:
    """Ask the server which sessions exist, and shut down the sockets of the others."""
    try:
        with psycopg.connect(
            url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S, application_name="servicebroker lost sessions"
        ) as other:
            deadline = threading.Timer(_ANSWER_TIMEOUT_S, shut_down_socket, (other,))
            deadline.start()
            try:
                pids = [each.session[0] for each in suspects.values()]
                existing: dict[int, datetime | None] = dict(other.execute(_EXISTING, (pids,)).fetchall())
            finally:
                deadline.cancel()
    except psycopg.Error as problem:
        report(_LOG, logging.DEBUG, "whether sessions still exist is not known: %s", problem)
        return
    for connection, (pid, start) in ((connection, each.session) for connection, each in suspects.items()):
        is_replaced = pid in existing and start and existing[pid] and existing[pid] != start
        if (pid not in existing or is_replaced) and not connection.closed:
            text = "PostgreSQL has no session %s any more, and nobody closed the connection: it is closed."
            report(_LOG, logging.WARNING, text, pid)
            shut_down_socket(connection)


def _forget() -> None:
    """Watch nothing in a forked child, which has neither the connections nor the thread of its parent."""
    global _is_running, _lock
    _watched.clear()
    _is_running, _lock = False, threading.Lock()


os.register_at_fork(after_in_child=_forget)
