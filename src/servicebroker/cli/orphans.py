"""Programs that end with the command that has started them, also when the command is killed.

Each program gets an environment variable, which its children inherit. A watcher process reads a pipe that only the
command has open for writing, and that closes when the command dies. The watcher then kills each process with the
variable, and its descendants. Until `exec` a new child holds a copy of the pipe, so the watcher cannot miss it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from servicebroker.cli.shutdown import descendants

MARK = "SERVICEBROKER_STARTED_BY"  # the variable
_MODULE = "servicebroker.cli.orphans"
_LOOK_S = 0.1  # between two scans of /proc: a process that was killed may just have started another one
_GIVE_UP_S = 10.0  # a process that waits for a disk cannot be killed


class Watcher:
    """Watches over the programs that this process starts with `environment()`."""

    def __init__(self) -> None:
        self._mark = uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Start the watcher, if it does not run, and return the variable for the environment of a program.

        Raises:
            OSError: the watcher cannot be started.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, self._mark],
                stdin=subprocess.PIPE,
                start_new_session=True,  # a signal for the command's process group is not for its watcher
            )
        return {MARK: self._mark}


def marked(mark: str) -> set[int]:
    """Return the processes with this mark, and their descendants, as far as /proc tells."""
    text = f"{MARK}={mark}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # of another user, or gone
            if text in path.read_bytes().split(b"\0"):
                process = int(path.parent.name)
                found |= {process, *descendants(process)}
    return found


def watch(mark: str) -> None:
    """Wait for the end of the command, and kill what it has started."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a service manager sends them to every process
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    deadline, looks_left = time.monotonic() + _GIVE_UP_S, 2
    while looks_left and time.monotonic() < deadline:
        found = marked(mark)
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        looks_left = 2 if found else looks_left - 1
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    watch(sys.argv[1])
