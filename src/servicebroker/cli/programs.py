"""Programs that a command starts, supervises and ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from servicebroker.cli.orphans import Watcher

POLL_S = 0.5  # between two looks at the programs
RETRY_PAUSE_S = 5.0  # until a program that failed, or could not be started, is started again
END_POLL_S = 0.02  # between two looks at whether programs have ended

_log = logging.getLogger("servicebroker.activator")
_watcher = Watcher()  # of all programs of this command


class Running:
    """The processes of one program, which end with this process.

    Attributes:
        wanted: how many processes are to be started.
    """

    def __init__(
        self, called: str, command: Sequence[str], environment: Mapping[str, str], minimum: int, maximum: int
    ) -> None:
        self.wanted = minimum
        self._called = called
        self._command = command
        self._environment = os.environ | environment
        self._minimum = minimum
        self._maximum = maximum
        self._processes: list[subprocess.Popen[bytes]] = []
        self._not_before = 0.0

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self._processes)

    def notify(self) -> None:
        """Ask for one more process, up to the maximum."""
        if self.count + self.wanted < self._maximum:
            self.wanted += 1

    def mind(self) -> None:
        """Note processes that have exited, and start the wanted ones."""
        for ended in [process for process in self._processes if process.poll() is not None]:
            self._processes.remove(ended)
            if ended.returncode:
                _log.error("%s has ended with code %d.", self._called, ended.returncode)
                self.notify()
                self._not_before = time.monotonic() + RETRY_PAUSE_S
        missing = self._minimum - self.count - self.wanted
        if missing > 0:
            self.wanted += missing
            self._not_before = max(self._not_before, time.monotonic() + POLL_S)
        while self.wanted > 0 and self.count < self._maximum and time.monotonic() >= self._not_before:
            self._start()

    def ask(self) -> None:
        """Ask all processes to end."""
        for running in self._processes:
            running.terminate()

    def is_over(self) -> bool:
        """Return whether all processes have ended."""
        return all(running.poll() is not None for running in self._processes)

    def kill(self) -> None:
        """Kill processes that have not ended, with the processes that they have started."""
        for running in self._processes:
            if running.poll() is None:
                _log.error("%s did not end in time and is killed.", self._called)
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()

    def _start(self) -> None:
        try:
            environment = self._environment | _watcher.environment()
            started = subprocess.Popen(self._command, env=environment, start_new_session=True)
        except OSError as problem:
            _log.error(
                "%s cannot be started, and is tried again in %g seconds: %s", self._called, RETRY_PAUSE_S, problem
            )
            self._not_before = time.monotonic() + RETRY_PAUSE_S
            return
        self.wanted -= 1
        self._processes.append(started)
        _log.info("%s was started as process %d; %d run.", self._called, started.pid, self.count)


def end(programs: Collection[Running], patience: float, hurries: Callable[[], bool]) -> None:
    """Ask all programs to end. Kill those still running after `patience` seconds, or once `hurries` returns True."""
    for running in programs:
        running.ask()
    deadline = time.monotonic() + patience
    while not hurries() and time.monotonic() < deadline and not all(running.is_over() for running in programs):
        time.sleep(END_POLL_S)
    for running in programs:
        running.kill()
