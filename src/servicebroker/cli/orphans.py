"""A watcher process that kills the child processes of a command if the command is killed.

Each child gets an environment variable with a random token, which its own children inherit. The watcher reads a pipe
from the command, and the pipe closes when the command dies. The watcher then kills each process with the token, and
its descendants. Between fork and exec a new child has the pipe open too, so it is not missed.
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

TOKEN_VARIABLE = "SERVICEBROKER_STARTED_BY"
_MODULE = "servicebroker.cli.orphans"
_SCAN_INTERVAL_S = 0.1  # the time between two scans of /proc
_EMPTY_SCANS = 2  # empty scans in a row before the watcher exits: a killed process may have started another
_TIMEOUT_S = 10.0  # a process that waits for a disk cannot be killed


class Watcher:
    """Starts the watcher, for the children that this process starts with `environment()`."""

    def __init__(self) -> None:
        self._token = uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Start the watcher unless it runs, and return the variable for the environment of a child.

        Raises:
            OSError: the watcher cannot be started.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, self._token],
                stdin=subprocess.PIPE,
                start_new_session=True,  # a signal for the command's process group is not for its watcher
            )
        return {TOKEN_VARIABLE: self._token}


def find_processes(token: str) -> set[int]:
    """Return the ids of the processes with this token, and of their descendants, from /proc."""
    variable = f"{TOKEN_VARIABLE}={token}".encode()
    process_ids = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # a process of another user, or one that has ended
            if variable in path.read_bytes().split(b"\0"):
                process_id = int(path.parent.name)
                process_ids |= {process_id, *descendants(process_id)}
    return process_ids


def watch(token: str) -> None:
    """Wait until the command has ended, and kill the processes with the token."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a service manager sends them to every process
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    deadline, scans_left = time.monotonic() + _TIMEOUT_S, _EMPTY_SCANS
    while scans_left and time.monotonic() < deadline:
        process_ids = find_processes(token)
        for process_id in process_ids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, signal.SIGKILL)
        scans_left = _EMPTY_SCANS if process_ids else scans_left - 1
        time.sleep(_SCAN_INTERVAL_S)


if __name__ == "__main__":
    watch(sys.argv[1])
