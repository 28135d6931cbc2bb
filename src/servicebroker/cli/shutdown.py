"""Shutdown of a command at SIGTERM and SIGINT: the first signal asks it to end, the second one ends it at once.

A command that hangs is ended from outside. A guard process is forked before there are threads. The signal handler of
the interpreter, which needs no lock of Python, writes each signal into a pipe to it. When the time is over, the guard
kills the command and the processes that it has started, and stops an embedded server without users.
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

PATIENCE_S = 30.0  # for the work in progress to end
GRACE_S = 5.0  # after that, until a command that has not ended is killed
AT_ONCE_S = 3.0  # from the second signal until then
_POLL_S = 0.02  # between two looks at whether the killed processes are gone
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_KILL_NOW = b"!"  # asks the guard to kill the command
_IN_JSON = b"{"  # tells the guard that standard error is a log in JSON

_pipe_to_guard: int | None = None  # the writing end; the guard of this process reads the other one
_guard = 0  # process id of the guard
_asked = 0  # number of signals so far


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
    """Call `ask` at the first signal, `hurry` at a second one, in the main thread; the guard waits for `patience`."""
    if _pipe_to_guard is not None:
        os.write(_pipe_to_guard, f"{patience}\n".encode())

    def handle(number: int, frame: object) -> None:
        global _asked
        _asked += 1
        (ask if _asked == 1 else hurry)()

    for number in _SIGNALS:
        signal.signal(number, handle)


def say_in_json() -> None:
    """Tell the guard that standard error is a log in JSON."""
    if _pipe_to_guard is not None:
        os.write(_pipe_to_guard, _IN_JSON)


def kill_all() -> NoReturn:
    """Have this process killed now, with the processes that it has started."""
    assert _pipe_to_guard is not None
    os.write(_pipe_to_guard, _KILL_NOW)
    while True:
        time.sleep(AT_ONCE_S)


def leave_nothing() -> None:
    """After a command that was asked to end, kill the processes that it has started, and end its threads."""
    if not _asked:
        return
    for process in set(descendants(os.getpid())) - {_guard}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        ended = sys.exc_info()[1]
        flush()
        os._exit(ended.code if isinstance(ended, SystemExit) and isinstance(ended.code, int) else 1)


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Guard:
    """The guard: a process beside a command, which ends with it."""

    def __init__(self, pipe: int, command: int) -> None:
        self._pipe = pipe
        self._command = command
        self._patience = PATIENCE_S
        self._asked = 0
        self._deadline: float | None = None

    def watch(self) -> NoReturn:
        """Wait until the command has ended or its time is over; then kill it."""
        for number in _SIGNALS:  # signals of a terminal or a service manager reach the guard, too
            signal.signal(number, signal.SIG_IGN)
        while self._deadline is None or time.monotonic() < self._deadline:
            pause = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if select.select([self._pipe], [], [], pause)[0]:
                told = os.read(self._pipe, 4096)
                if not told:
                    os._exit(0)
                self._hear(told)
        self._kill()
        os._exit(1)

    def _hear(self, told: bytes) -> None:
        """Read numbers of signals, and lines with the patience in seconds."""
        if _KILL_NOW in told:
            self._deadline = time.monotonic()
            return
        if _IN_JSON in told:
            from servicebroker.cli.log import say_errors_in_json  # loaded here, since other commands do without it

            say_errors_in_json()
            told = told.replace(_IN_JSON, b"")
        for line in told.translate(None, bytes(_SIGNALS)).split():
            self._patience = float(line)
        for _ in [byte for byte in told if byte in _SIGNALS]:
            self._asked += 1
            seconds = self._patience + GRACE_S if self._asked == 1 else AT_ONCE_S
            self._deadline = time.monotonic() + seconds

    def _kill(self) -> None:
        from servicebroker.store.embedded import EmbeddedServer  # loaded here, since commands do without it

        ended = [self._command, *descendants(self._command)]
        ended.remove(os.getpid())
        folders = _folders_in_use(ended)
        say("servicebroker: killed, since it was to end and had not.", error=True)
        for process in ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while any(_lives(process) for process in ended):
            time.sleep(_POLL_S)
        for folder in folders:
            EmbeddedServer.stop_unused(folder)


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and theirs, as far as /proc tells; none for process 1."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children[int(path.read_text().rpartition(")")[2].split()[1])].append(int(path.parent.name))
    found = [] if process == 1 else list(children[process])
    for one in found:
        found.extend(children[one])
    return found


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
    """Return whether a thread of the process runs: a zombie has a single thread, which is over."""
    place = Path(f"/proc/{process}")
    try:
        over = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not over or len(list((place / "task").iterdir())) > 1
    except OSError:
        return False
