"""Shares whose rounds run in child processes; their inboxes and all connections stay in the daemon (decision 253).

The thread of such a share asks its child process for each round, and sends it the received frames. After the commit
the child returns frames for links, false claims of peers, and log records. The daemon sends, counts and writes them.
So the code of the network knows nothing of processes. During a round the child may ask the daemon for facts that only
the daemon has. `sharing/remote_relay.py` has the questions and answers; this file has the pipe and the process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psycopg

from servicebroker.broker.peers import Peers
from servicebroker.broker.sharing.messages import (
    Begin,
    Done,
    Failed,
    MissedDeadline,
    ProcessExited,
    Question,
    Session,
    Unstartable,
)
from servicebroker.broker.sharing.remote_relay import RemoteRelay
from servicebroker.broker.transport.links import Arrival, Links
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.store.connection import connect, one_line
from servicebroker.store.running import execute

MODULE = "servicebroker.broker.share_process"
CLOSE_TIMEOUT_S = 5.0  # seconds for a process to end by itself, and then for its database session


def program_on_disk() -> list[tuple[str, int]]:
    """Return the program's files with their times. They differ for a process that starts after an upgrade."""
    package = Path(__file__).parents[1]
    return sorted((str(file.relative_to(package)), file.stat().st_mtime_ns) for file in package.rglob("*.py"))


PROGRAM = program_on_disk()  # the program on disk at the start of this process


class ShareProcess(RemoteRelay):
    """The relay of one share, in a process that ends with `close`, or with this process.

    One thread runs its rounds. `interrupt` may be called from any thread.
    """

    def __init__(
        self, begin: Begin, links: Links, peers: Peers, here: Callable[[], LocalInstance],
        clock: Callable[[], datetime], seconds: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__(links, peers, here, clock, seconds)
        self._is_idle = self._is_ready = False  # the process waits for a question; it has connected
        self._url = begin.url
        self._session: Session | None = None
        try:
            self._connection, child_end = Pipe()
            with child_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(child_end.fileno())],
                    stdin=subprocess.PIPE,  # the process ends when the other end is closed
                    pass_fds=[child_end.fileno()],
                    start_new_session=True,  # Ctrl-C reaches only this process, which lets the child finish
                )
        except OSError as problem:  # for example at the user's limit of processes
            raise Unstartable(
                f"The daemon cannot start another process: {one_line(problem)}. "
                "Raise the limit of processes (ulimit -u, TasksMax), or give a lower --processes."
            ) from problem
        with suppress(ProcessExited):  # `ready` raises it
            self._say(begin)

    def ready(self) -> None:
        """Wait until the process has connected to the database.

        Raises:
            Unstartable: the process runs another version of the program, or did not start.
            ProcessExited, InstanceError: the process has not connected.
        """
        if self._is_ready:
            return
        try:
            if self._hear() != PROGRAM:
                raise Unstartable(
                    "Another version was installed since the daemon began, so it can start no process: restart "
                    "servicebroker serve."
                )
            self._session = self._hear()
            self.take(self._hear())
        except ProcessExited as gone:
            if self._process.wait() >= 0:  # the process was not killed
                raise Unstartable(f"A process {self.ending} at its start. The log has the cause.") from gone
            raise
        self._is_ready = True

    def close(self) -> None:
        """End the process and its transaction, and add its counts to the daemon's."""
        assert self._process.stdin is not None
        impatient = threading.Timer(CLOSE_TIMEOUT_S if self._is_idle else 0.0, self._process.kill)
        with ExitStack() as stack:
            stack.callback(self._end_session)
            stack.callback(self._process.wait)
            stack.enter_context(self._process.stdin)  # the process ends when its standard input is closed
            stack.enter_context(self._connection)
            stack.callback(impatient.cancel)
            impatient.start()
            if self._is_idle:
                with suppress(InstanceError, RuntimeError):
                    self._say(None)
                    self.take(self._hear())
            self._process.wait()

    def _end_session(self) -> None:
        """End the session of a killed process: a backend that waits for a lock or standby does not notice the kill."""
        if self._session is None or self._process.returncode == 0:
            return
        with (
            suppress(psycopg.Error, InstanceError),
            connect(self._url) as connection,
        ):  # without a server there is no session
            execute(
                connection,
                "processes.end_session",
                "select pg_terminate_backend(pid, $3) from pg_stat_activity where pid = $1 and backend_start = $2",
                *self._session,
                int(CLOSE_TIMEOUT_S * 1000),
            )

    def interrupt(self, timeout: float) -> None:
        """Kill the process, because a commit may wait for a standby for ever. Its own thread ends the session."""
        self._process.kill()

    @property
    def ending(self) -> str:
        """The way in which the process has ended. Waits for the end."""
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed ({signal.Signals(-code).name})" if -code in set(signal.Signals) else f"was killed ({-code})"

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    # ---------------------------------------------------------------- rounds

    @override
    def round(self, arrivals: list[Arrival]) -> int:
        """Have the process run one round, and answer its questions. Returns the number of messages.

        Raises:
            ProcessExited: the process was killed. Its committed work is in the database.
            MissedDeadline, InstanceError, RuntimeError: the round has failed.
        """
        self._say(self.order(arrivals))
        while isinstance(answer := self._hear(), Question):
            self._say(self.answer(answer))
        return self.take(answer)

    @override
    def take(self, done: Done) -> int:
        """Make the calls of a committed round. The process waits for the next order."""
        assert isinstance(done, Done)
        self._is_idle = True
        return super().take(done)

    def _say(self, message: object) -> None:
        self._is_idle = False
        try:
            self._connection.send(message)
        except OSError as problem:
            raise ProcessExited from problem

    def _hear(self) -> Any:
        try:
            message = self._connection.recv()
        except (EOFError, OSError) as problem:
            raise ProcessExited from problem
        if isinstance(message, Failed):
            failure = _error_of(message)
            failure.add_note(message.trace)
            raise failure
        return message


def _error_of(failed: Failed) -> Exception:
    if failed.is_deadline:
        return MissedDeadline(failed.text)
    return InstanceError(failed.text) if failed.is_of_database else RuntimeError(failed.text)
