"""Child processes that a command starts, restarts and ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from servicebroker.cli.orphans import Watcher

POLL_S = 0.5  # the time between two checks for exited processes
RETRY_PAUSE_S = 5.0  # the pause before a program that failed, or did not start, is started again
END_POLL_S = 0.02  # the time between two checks whether all processes have ended

_log = logging.getLogger("servicebroker.activator")
_watcher = Watcher()  # kills the processes of all programs if this command is killed


class ProcessGroup:
    """The processes of one program. They end with this process, even if it is killed.

    The owner calls `update` every `POLL_S` seconds.

    Args:
        name: the name of the program in the log.
        command: the program and its arguments.
        environment: variables beside those of this process.
        minimum: the number of processes that always run.
        maximum: the largest number of processes.

    Attributes:
        to_start: the number of processes that `update` is to start.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], minimum: int, maximum: int
    ) -> None:
        self.to_start = minimum
        self._name = name
        self._command = command
        self._environment = os.environ | environment
        self._minimum = minimum
        self._maximum = maximum
        self._processes: list[subprocess.Popen[bytes]] = []
        self._earliest_start = 0.0  # `time.monotonic()` of the earliest start

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self._processes)

    def request_one(self) -> None:
        """Request one more process, unless the maximum is reached."""
        if self.count + self.to_start < self._maximum:
            self.to_start += 1

    def update(self) -> None:
        """Remove processes that have exited, replace failed ones, and start the requested ones."""
        for exited in [process for process in self._processes if process.poll() is not None]:
            self._processes.remove(exited)
            if exited.returncode:
                _log.error(
                    "%s has ended with code %d%s.", self._name, exited.returncode, self._describe_end(exited.pid)
                )
                self.request_one()
                self._earliest_start = time.monotonic() + RETRY_PAUSE_S
        missing = self._minimum - self.count - self.to_start
        if missing > 0:
            self.to_start += missing
            self._earliest_start = max(self._earliest_start, time.monotonic() + POLL_S)
        while self.to_start > 0 and self.count < self._maximum and time.monotonic() >= self._earliest_start:
            self._start()

    def terminate(self) -> None:
        """Send SIGTERM to all processes."""
        for process in self._processes:
            process.terminate()

    def have_all_ended(self) -> bool:
        """Return whether all processes have ended."""
        return all(process.poll() is not None for process in self._processes)

    def kill(self) -> None:
        """Kill processes that have not ended, with their children."""
        for process in self._processes:
            if process.poll() is None:
                _log.error("%s did not end in time and is killed.", self._name)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _variables_of_next(self) -> dict[str, str]:
        """Return environment variables for the next process alone."""
        return {}

    def _note_start(self, process_id: int) -> None:
        """Note that the next process was started."""

    def _describe_end(self, process_id: int) -> str:
        """Return the work of a process that has failed, as the end of a sentence; '' if it is unknown."""
        return ""

    def _start(self) -> None:
        try:
            environment = self._environment | _watcher.environment() | self._variables_of_next()
            started = subprocess.Popen(self._command, env=environment, start_new_session=True)
        except OSError as problem:
            _log.error("%s cannot be started, and is tried again in %g seconds: %s", self._name, RETRY_PAUSE_S, problem)
            self._earliest_start = time.monotonic() + RETRY_PAUSE_S
            return
        self.to_start -= 1
        self._processes.append(started)
        self._note_start(started.pid)
        _log.info("%s was started as process %d; %d run.", self._name, started.pid, self.count)


def end(groups: Collection[ProcessGroup], timeout_s: float, must_kill: Callable[[], bool]) -> None:
    """Send SIGTERM to all processes. Kill the others after `timeout_s`, or as soon as `must_kill` returns True."""
    for group in groups:
        group.terminate()
    deadline = time.monotonic() + timeout_s
    while not must_kill() and time.monotonic() < deadline and not all(group.have_all_ended() for group in groups):
        time.sleep(END_POLL_S)
    for group in groups:
        group.kill()
