"""Health of a program over HTTP, for orchestrators: `/livez` and `/readyz`.

The answer is 200 with `ok`, or 503 with the reason.

Liveness does not query PostgreSQL, since restarting a program does not help when its database is down. A program with
a loop records a heartbeat in each turn, and is not live if the loop hangs.

Readiness queries PostgreSQL on a connection of its own, at most once a second for all probes together. Connecting to a
server that does not answer takes longer than a probe waits. So a thread queries, and a probe waits `ANSWER_TIMEOUT_S`
for it. Otherwise waiting probes would take all request slots of the HTTP server, and liveness would be refused too.
Errors of PostgreSQL go to the log only, since they name servers and roles.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from servicebroker.cli.http_server import parse_address, serve_wsgi
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect, one_line
from servicebroker.store.lost_sessions import shut_down_socket

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

HEARTBEAT_TIMEOUT_S = 30.0  # longer than a coroutine should block the event loop
ANSWER_TIMEOUT_S = 3.0  # the time for `select 1`; after it the program is not ready
NO_ANSWER = "PostgreSQL gives no answer: see the log of the program."
REUSE_S = 1.0  # an answer of PostgreSQL is reused this long, so that probes open at most one connection a second

_log = logging.getLogger("servicebroker.health")


class Health:
    """The health of this process, and the WSGI application that reports it.

    Args:
        is_ending: returns True after the program was asked to end. It is then live, but not ready.
        heartbeat_timeout_s: the loop hangs if it has recorded no heartbeat for this long.

    Attributes:
        is_working: returns True if the program does its work; a program may set its own check.
    """

    def __init__(self, is_ending: Callable[[], bool], heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S) -> None:
        self.is_working: Callable[[], bool] = lambda: True
        self._is_ending = is_ending
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._has_begun = False
        self._url: str | None = None
        self._heartbeat_at: float | None = None
        self._lock = threading.Lock()
        self._query_done: threading.Event | None = None  # set when the query in progress has ended; None without one
        self._queried_at = 0.0
        self._answer = ""
        self._answered_at = float("-inf")
        self._last_problem = ""

    def begin(self, url: str | None) -> None:
        """Record that the program has started its work. Readiness queries PostgreSQL at `url`, unless it is None."""
        self._url = url
        self._has_begun = True

    def record_heartbeat(self) -> None:
        """Record that the program's loop turns. Liveness requires further heartbeats after the first one."""
        self._heartbeat_at = time.monotonic()

    def liveness(self) -> str:
        """Return why the program should be restarted; '' if it is live or is ending."""
        if self._is_ending() or self._heartbeat_at is None:
            return ""
        age_s = time.monotonic() - self._heartbeat_at
        if age_s > self._heartbeat_timeout_s:
            return f"The program's main loop has not completed a round for {age_s:.0f} seconds."
        return ""

    def readiness(self) -> str:
        """Return why the program cannot do its work now; '' if it is ready."""
        if self._is_ending():
            return "The program is ending."
        if not self._has_begun:
            return "The program has not begun."
        if not self.is_working():
            return "Processes of the program are missing."
        return self.liveness() or ("" if self._url is None else self._postgres_problem(self._url))

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, as a WSGI application."""
        probe = {"/livez": self.liveness, "/readyz": self.readiness}.get(environ["PATH_INFO"])
        if probe is None:
            status, text = "404 Not Found", "Ask /livez or /readyz."
        else:
            problem = probe()
            status, text = ("503 Service Unavailable", problem) if problem else ("200 OK", "ok")
        content = f"{text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(content)))]
        start_response(status, [*headers, ("Cache-Control", "no-store")])
        return [content]

    def _postgres_problem(self, url: str) -> str:
        """Return `NO_ANSWER` if PostgreSQL does not answer, else ''.

        An answer of the last second is reused. While a new query runs after a failed one, the failure is reported.
        """
        with self._lock:
            is_new = self._query_done is None and time.monotonic() - self._answered_at > REUSE_S
            if is_new:
                self._query_done = threading.Event()
                self._queried_at = time.monotonic()
                threading.Thread(target=self._query_postgres, args=(url, self._query_done), daemon=True).start()
            query_done = self._query_done
            if query_done is None or (self._answer and not is_new):
                return self._answer
            remaining_s = self._queried_at + ANSWER_TIMEOUT_S - time.monotonic()
        has_answer = query_done.wait(max(0.0, remaining_s))
        with self._lock:
            if not has_answer and self._query_done is query_done:
                self._answer = NO_ANSWER
            return self._answer

    def _query_postgres(self, url: str, query_done: threading.Event) -> None:
        """Query PostgreSQL, log a failure unless it is the same as the last one, and wake the waiting probes."""
        answer = NO_ANSWER
        try:
            problem = _select_one(url)
            if problem and problem != self._last_problem:
                _log.warning("The program is not ready: %s", problem)
            self._last_problem = problem
            answer = NO_ANSWER if problem else ""
        finally:
            with self._lock:
                self._answer, self._answered_at, self._query_done = answer, time.monotonic(), None
            query_done.set()


def _select_one(url: str) -> str:
    """Run `select 1` on a new connection. Return the error, '' for none."""
    try:
        with connect(url, application_name="servicebroker health") as connection:
            deadline = threading.Timer(ANSWER_TIMEOUT_S, shut_down_socket, (connection,))
            deadline.daemon = True
            deadline.start()
            try:
                connection.execute("select 1")
            finally:
                deadline.cancel()
    except InstanceError as problem:
        return str(problem)
    except psycopg.Error as problem:
        return f"PostgreSQL gives no answer: {one_line(problem)}"
    return ""


@contextmanager
def serve_health(
    address: str | None, is_ending: Callable[[], bool], heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
) -> Iterator[Health]:
    """Answer probes at HOST:PORT during the block. With None there are no probes, and the `Health` has no effect.

    Raises:
        BrokerError: 402 `address` is not HOST:PORT.
        InstanceError: the address cannot be bound.
    """
    health = Health(is_ending, heartbeat_timeout_s)
    if address is None:
        yield health
        return
    host, port = parse_address("--health", address)
    with serve_wsgi(health, host, port, subject="The health") as bound_port:
        _log.info("Probes are answered at http://%s:%d/livez and /readyz.", host or "0.0.0.0", bound_port)
        yield health
