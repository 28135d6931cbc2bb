"""The child process of a share (partition): it runs rounds when the daemon asks for them (`broker/processes.py`).

Started as `python -m servicebroker.broker.share_process DESCRIPTOR`. It has a relay and a connection to the database,
but no network. Frames, questions about peers and log records go through the pipe to the daemon (`sharing/worker.py`).
When the daemon ends, this process exits immediately.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import closing
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import psycopg

from servicebroker.broker import metrics
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.broker.processes import PROGRAM
from servicebroker.broker.relay import Relay
from servicebroker.broker.shares import DEADLINE_ERRORS, open_share
from servicebroker.broker.sharing.messages import TO_LOG, Begin, Failed, Question, Session, StatusMessage
from servicebroker.broker.sharing.worker import Calls, Surroundings, Worker
from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.store.connection import one_line
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.running import execute
from servicebroker.store.statement_counts import counts_of, database_key_of


class Daemon(Calls):
    """The daemon, at the other end of the pipe."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def hear(self) -> Any:
        """Return the daemon's next message. If the daemon has gone, exit."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            sys.exit(1)

    def say(self, what: object) -> None:
        """Send the daemon a message. If the daemon has gone, exit."""
        try:
            self._connection.send(what)
        except OSError:
            sys.exit(1)

    def ask(self, what: str, about: object) -> Any:
        """Ask the daemon for a value, and wait for it."""
        self.say(Question(what, about))
        return self.hear()


class DaemonsLog(logging.Handler):
    """A log handler that sends records to the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to the daemon's log."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{''.join(traceback.format_exception(*record.exc_info))}"
        extra = {"fields": record.fields} if hasattr(record, "fields") else None
        self._daemon.tell(TO_LOG, "log", record.name, record.levelno, "%s", text, extra=extra)


class ShareServer:
    """The relay of one share in this process, its connection, and the rounds that the daemon asks for."""

    def __init__(self, daemon: Daemon, begin: Begin) -> None:
        self._daemon = daemon
        around = Surroundings(daemon, time.monotonic)
        keys = None if begin.keys is None else KeyFolder(begin.keys)
        self._relay = Relay(
            around.links, around.clock, time.monotonic, Random(), around.here, keys=keys, peers=around.peers
        )
        self._relay.forget(begin.division.shares)
        self._kept = KeptDeliveries(begin.url, around.clock)
        self._opened = open_share(begin.url, around.clock, begin.division, self._kept, follows=begin.follows)
        self._worker = Worker(daemon, around, self._relay, self._opened.store, time.monotonic, self._status)

    def serve(self) -> None:
        """Run rounds until the daemon asks for no more."""
        daemon = self._daemon
        with closing(self._kept), closing(self._opened):
            daemon.say(self._session())
            self._opened.ready()
            daemon.say(self._worker.ready())
            while (order := daemon.hear()) is not None:
                daemon.say(self._worker.round(order))
            daemon.say(self._worker.end())

    def _session(self) -> Session:
        ((pid, began),) = execute(
            self._opened.connection,
            "share_process.session",
            "select pid, backend_start from pg_stat_activity where pid = pg_backend_pid()",
        )
        return Session(pid, began)

    def _status(self) -> StatusMessage:
        forwarding = self._relay.forwarding
        statements = database_key_of(self._opened.connection), counts_of(self._opened.connection).take()
        return StatusMessage(
            self._relay.remembered, forwarding.held, forwarding.observed(), metrics.take_counted(), statements
        )


def _end_with_the_daemon() -> None:
    """Exit when the daemon has ended, which closes the standard input."""
    os.read(0, 1)
    os._exit(1)


def main(descriptor: int) -> None:
    """Serve the daemon at the other end of the socket `descriptor`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a service manager signals all processes; the daemon ends this one
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    with Connection(descriptor) as connection:
        daemon = Daemon(connection)
        daemon.say(PROGRAM)  # first, so that a daemon of another version can detect that
        begin: Begin = daemon.hear()
        logging.basicConfig(handlers=[DaemonsLog(daemon)], level=logging.WARNING)
        logging.getLogger("servicebroker").setLevel(begin.level)
        gc.freeze()  # keeps imported modules out of garbage collections
        try:
            ShareServer(daemon, begin).serve()
        except Exception as problem:
            of_database = isinstance(problem, psycopg.Error | InstanceError)
            text = one_line(problem) if of_database else f"{type(problem).__name__}: {one_line(problem)}"
            is_deadline = isinstance(problem, DEADLINE_ERRORS)
            daemon.say(Failed(of_database, is_deadline, text, traceback.format_exc()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
