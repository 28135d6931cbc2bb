"""Shutdown of a command at SIGTERM and SIGINT: the first signal asks it to end, a second one ends it at once.

A command that hangs cannot end itself, so a guard process watches it. The guard is forked before there are threads. The
interpreter writes the number of each signal into a pipe to the guard (`signal.set_wakeup_fd`), also while Python code
hangs. After the deadline the guard kills the command and the processes that it has started. It also stops an embedded
server that nobody uses any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from servicebroker.cli.output import flush, say

PATIENCE_S = 30.0  # time for work in progress after the first signal
GRACE_S = 5.0  # time after PATIENCE_S until the command is killed
AT_ONCE_S = 3.0  # time from the second signal until the command is killed
_POLL_S = 0.02  # between two checks whether the killed processes are gone
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_KILL_NOW = b"!"  # asks the guard to kill the command
_IN_JSON = b"{"  # tells the guard that standard error is a log in JSON

_pipe_to_guard: int | None = None  # the writing end; the guard reads from the other end
_guard = 0  # process id of the guard
_signals_received = 0


def guard() -> None:
    """Start the guard. From now on SIGTERM acts as Ctrl-C, and a second signal ends this process at once."""
    global _pipe_to_guard, _guard
    reading, writing = os.pipe()
    _guard = os.fork()
    if _guard == 0:
        os.close(writing)
        _Guard(reading, os.getppid()).watch()
    os.close(reading)
    os.set_blocking(writing, False)
    _pipe_to_guard = writing
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    at_signal(_interrupt, kill_all)


def at_signal(ask: Callable[[], None], hurry: Callable[[], None], *, patience: float = PATIENCE_S) -> None:
    """Call `ask` at the first signal, `hurry` at a second one. The guard waits for `patience` seconds."""
    if _pipe_to_guard is not None:
        os.write(_pipe_to_guard, f"{patience}\n".encode())

    def handle(number: int, frame: object) -> None:
        global _signals_received
        is_first = not _signals_received  # known before the count rises: the second signal may interrupt this handler
        _signals_received += 1
        (ask if is_first else hurry)()

    for number in _SIGNALS:
        signal.signal(number, handle)


def say_in_json() -> None:
    """Tell the guard that standard error is a log in JSON."""
    if _pipe_to_guard is not None:
        os.write(_pipe_to_guard, _IN_JSON)


def kill_all() -> NoReturn:
    """Ask the guard to kill this process now, with the processes that it has started."""
    assert _pipe_to_guard is not None
    os.write(_pipe_to_guard, _KILL_NOW)
    while True:
        time.sleep(AT_ONCE_S)


def leave_nothing() -> None:
    """If a signal asked the command to end, kill the processes that it has started, and exit if threads still run."""
    if not _signals_received:
        return
    for process in set(descendants(os.getpid())) - {_guard}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        problem = sys.exc_info()[1]
        flush()
        os._exit(problem.code if isinstance(problem, SystemExit) and isinstance(problem.code, int) else 1)


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Guard:
    """The guard: a process beside the command. It exits when the command has ended."""

    def __init__(self, pipe: int, command: int) -> None:
        self._pipe = pipe
        self._command = command
        self._patience = PATIENCE_S
        self._signals_received = 0
        self._deadline: float | None = None

    def watch(self) -> NoReturn:
        """Wait until the command has ended. If it has not at the deadline, kill it."""
        for number in _SIGNALS:  # signals of a terminal or a service manager reach the guard, too
            signal.signal(number, signal.SIG_IGN)
        while self._deadline is None or time.monotonic() < self._deadline:
            pause = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if select.select([self._pipe], [], [], pause)[0]:
                received = os.read(self._pipe, 4096)
                if not received:  # the command has ended
                    os._exit(0)
                self._handle(received)
        self._kill()
        os._exit(1)

    def _handle(self, received: bytes) -> None:
        """Handle signal numbers, `_KILL_NOW`, `_IN_JSON`, and lines with the patience in seconds."""
        if _KILL_NOW in received:
            self._deadline = time.monotonic()
            return
        if _IN_JSON in received:
            from servicebroker.cli.log import say_errors_in_json  # imported here: most commands do not need it

            say_errors_in_json()
            received = received.replace(_IN_JSON, b"")
        for line in received.translate(None, bytes(_SIGNALS)).split():
            self._patience = float(line)
        for _ in [byte for byte in received if byte in _SIGNALS]:
            self._signals_received += 1
            seconds = self._patience + GRACE_S if self._signals_received == 1 else AT_ONCE_S
            self._deadline = time.monotonic() + seconds

    def _kill(self) -> None:
        from servicebroker.store.embedded import EmbeddedServer  # imported here: only a kill needs it

        processes = [self._command, *descendants(self._command)]
        processes.remove(os.getpid())
        folders = _folders_in_use(processes)
        say("servicebroker: killed, since it had not ended in time.", error=True)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while any(_lives(process) for process in processes):
            time.sleep(_POLL_S)
        for folder in folders:
            EmbeddedServer.stop_unused(folder)


def descendants(process: int) -> list[int]:
    """Return the child processes of a process and their descendants, from /proc; an empty list for process 1."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children[int(path.read_text().rpartition(")")[2].split()[1])].append(int(path.parent.name))
    processes = [] if process == 1 else list(children[process])
    for child in processes:
        processes.extend(children[child])
    return processes


def _folders_in_use(processes: list[int]) -> set[Path]:
    """Return the data folders that these processes have open."""
    folders = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    file = descriptor.readlink()
                    if file.name == "in-use" and (file.parent / "postgresql").is_dir():
                        folders.add(file.parent)
    return folders


def _lives(process: int) -> bool:
    """Return whether a thread of the process runs. A process whose main thread is a zombie may still have others."""
    folder = Path(f"/proc/{process}")
    try:
        is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie or len(list((folder / "task").iterdir())) > 1
    except OSError:
        return False
