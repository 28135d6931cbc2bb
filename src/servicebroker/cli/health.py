"""Health of a program over HTTP, for orchestrators: `/livez` and `/readyz`.

The answer is 200 with `ok`, or 503 with the reason. Liveness asks nothing of PostgreSQL: to restart a program does not
bring its database back. A program that has a loop beats in it, and is not live if the loop hangs. Readiness asks
PostgreSQL on a connection of its own, at most once a second, however many ask. Connecting to a silent server takes
longer than a probe waits. So a thread asks, and probes that wait for it do not use up the places of the HTTP server,
where liveness would be refused too. What PostgreSQL says goes to the log only, since it names servers and roles.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from servicebroker.cli.http_server import parse_address, served
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect, one_line
from servicebroker.store.lost_sessions import hang_up

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

BEAT_TIMEOUT_S = 30.0  # a loop without waits; a long handler of asyncio may block it for less
ANSWER_TIMEOUT_S = 3.0  # PostgreSQL answers `select 1` within that, or the program is not ready
NO_ANSWER = "PostgreSQL gives no answer: see the log of the program."
REUSE_S = 1.0  # an answer of PostgreSQL is good for so long: probes cost one connection a second at most

_log = logging.getLogger("servicebroker.health")


class Health:
    """The health of this process.

    `is_ending` says whether the program was asked to end. `is_working` says whether it does its work, beyond being
    connected; a program without such a check always does. `beat_timeout_s`: a loop that has not turned for so long
    hangs.
    """

    def __init__(self, is_ending: Callable[[], bool], beat_timeout_s: float = BEAT_TIMEOUT_S) -> None:
        self.is_working: Callable[[], bool] = lambda: True
        self._is_ending = is_ending
        self._beat_timeout_s = beat_timeout_s
        self._has_begun = False
        self._url: str | None = None
        self._beat_at: float | None = None
        self._lock = threading.Lock()
        self._question: threading.Event | None = None  # set when the thread that asks PostgreSQL has its answer
        self._asked_at = 0.0
        self._answer = ""
        self._answered_at = float("-inf")
        self._last_problem = ""

    def begin(self, url: str | None) -> None:
        """Note that the program has begun its work, on the PostgreSQL of this URL, which is asked if it is known."""
        self._url = url
        self._has_begun = True

    def beat(self) -> None:
        """Note that the program's loop has turned. From the first beat on the next ones are expected."""
        self._beat_at = time.monotonic()

    def liveness(self) -> str:
        """Return why the program should be restarted; an empty text if it is live, or ends its work."""
        if self._is_ending():
            return ""
        if self._beat_at is not None and (silent := time.monotonic() - self._beat_at) > self._beat_timeout_s:
            return f"The program's loop has not turned for {silent:.0f} seconds."
        return ""

    def readiness(self) -> str:
        """Return why the program cannot do its work now; an empty text if it is ready."""
        if self._is_ending():
            return "The program is ending."
        if not self._has_begun:
            return "The program has not begun."
        if not self.is_working():
            return "Processes of the program are missing."
        return self.liveness() or ("" if self._url is None else self._ask_postgres(self._url))

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

    def _ask_postgres(self, url: str) -> str:
        """Return why the program is not ready; an empty text if PostgreSQL answers.

        An answer of the last second is reused. While a thread asks after a failure, the failure is the answer.
        """
        with self._lock:
            is_new = self._question is None and time.monotonic() - self._answered_at > REUSE_S
            if is_new:
                self._question = threading.Event()
                self._asked_at = time.monotonic()
                threading.Thread(target=self._find_answer, args=(url, self._question), daemon=True).start()
            question = self._question
            if question is None or (self._answer and not is_new):
                return self._answer
            left_s = self._asked_at + ANSWER_TIMEOUT_S - time.monotonic()
        has_answer = question.wait(max(0.0, left_s))
        with self._lock:
            if not has_answer and self._question is question:
                self._answer = NO_ANSWER
            return self._answer

    def _find_answer(self, url: str, question: threading.Event) -> None:
        """Ask PostgreSQL, log a failure that is new, and wake the probes that wait."""
        answer = NO_ANSWER
        try:
            problem = _ask(url)
            if problem and problem != self._last_problem:
                _log.warning("The program is not ready: %s", problem)
            self._last_problem = problem
            answer = NO_ANSWER if problem else ""
        finally:
            with self._lock:
                self._answer, self._answered_at, self._question = answer, time.monotonic(), None
            question.set()


def _ask(url: str) -> str:
    try:
        with connect(url, application_name="servicebroker health") as connection:
            deadline = threading.Timer(ANSWER_TIMEOUT_S, hang_up, (connection,))
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
def health_served(
    address: str | None, is_ending: Callable[[], bool], beat_timeout_s: float = BEAT_TIMEOUT_S
) -> Iterator[Health]:
    """Answer probes at HOST:PORT as long as the block runs, if an address is given.

    Raises:
        BrokerError: 402 no HOST:PORT.
        InstanceError: nothing can listen there.
    """
    health = Health(is_ending, beat_timeout_s)
    if address is None:
        yield health
        return
    host, port = parse_address("--health", address)
    with served(health, host, port, subject="The health") as found:
        _log.info("Probes are answered at http://%s:%d/livez and /readyz.", host or "0.0.0.0", found)
        yield health
