"""Shutdown of a command at SIGTERM and SIGINT: the first signal asks it to end, a second one ends it at once.

A command that hangs cannot end itself, so a watchdog process does. The watchdog is forked before there are threads. The
interpreter writes the number of each signal into a pipe to the watchdog (`signal.set_wakeup_fd`), even while Python
code hangs. After the deadline the watchdog kills the command and its child processes, and stops an embedded server
that no other process uses.
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

SHUTDOWN_TIMEOUT_S = 30.0  # the time for work in progress, after the first signal
KILL_DELAY_S = 5.0  # the time from the shutdown timeout until the command is killed
SECOND_SIGNAL_TIMEOUT_S = 3.0  # the time from the second signal until the command is killed
_POLL_S = 0.02  # the time between two checks whether the killed processes are gone
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# bytes in the pipe to the watchdog, beside signal numbers and lines with the shutdown timeout
_KILL_NOW = b"!"  # kill the command
_JSON_LOG = b"{"  # standard error is a log in JSON

_pipe_to_watchdog: int | None = None  # the writing end
_watchdog_id = 0  # a process id
_signals_received = 0


def start_watchdog() -> None:
    """Start the watchdog. From now on SIGTERM acts as Ctrl-C, and a second signal kills this process."""
    global _pipe_to_watchdog, _watchdog_id
    reading, writing = os.pipe()
    _watchdog_id = os.fork()
    if _watchdog_id == 0:
        os.close(writing)
        _Watchdog(reading, os.getppid()).watch()
    os.close(reading)
    os.set_blocking(writing, False)
    _pipe_to_watchdog = writing
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    at_signal(_interrupt, kill_all)


def at_signal(
    stop: Callable[[], None], terminate_now: Callable[[], None], *, timeout_s: float = SHUTDOWN_TIMEOUT_S
) -> None:
    """Call `stop` at the first signal, and `terminate_now` at the second one.

    If a signal came before and the command still runs, call `stop` now: Python discards a KeyboardInterrupt that is
    raised in a finalizer or a callback, as at an import.

    The watchdog kills the command `KILL_DELAY_S` after `timeout_s`.
    """
    if _pipe_to_watchdog is not None:
        os.write(_pipe_to_watchdog, f"{timeout_s}\n".encode())

    def handle(number: int, frame: object) -> None:
        global _signals_received
        is_first = not _signals_received  # read before the count rises: the second signal may interrupt this handler
        _signals_received += 1
        (stop if is_first else terminate_now)()

    for number in _SIGNALS:
        signal.signal(number, handle)
    if _signals_received:
        stop()


def log_in_json() -> None:
    """Let the watchdog print its errors as JSON, since standard error is a log in JSON."""
    if _pipe_to_watchdog is not None:
        os.write(_pipe_to_watchdog, _JSON_LOG)


def kill_all() -> NoReturn:
    """Let the watchdog kill this process and its child processes now."""
    assert _pipe_to_watchdog is not None
    os.write(_pipe_to_watchdog, _KILL_NOW)
    while True:
        time.sleep(SECOND_SIGNAL_TIMEOUT_S)


def end_children_and_threads() -> None:
    """After a signal, kill the child processes that still run, and exit at once if threads still run."""
    if not _signals_received:
        return
    for process in set(descendants(os.getpid())) - {_watchdog_id}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        problem = sys.exc_info()[1]
        flush()
        os._exit(problem.code if isinstance(problem, SystemExit) and isinstance(problem.code, int) else 1)


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Watchdog:
    """The watchdog, a process beside the command. It exits when the command has ended.

    `pipe` is the reading end of the pipe from the command, whose process id is `command`.
    """

    def __init__(self, pipe: int, command: int) -> None:
        self._pipe = pipe
        self._command = command
        self._timeout_s = SHUTDOWN_TIMEOUT_S
        self._signals_received = 0
        self._deadline: float | None = None  # set by the first signal

    def watch(self) -> NoReturn:
        """Wait until the command has ended. If it has not at the deadline, kill it."""
        for number in _SIGNALS:  # signals of a terminal or a service manager reach the watchdog, too
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
        """Handle bytes from the pipe: `_KILL_NOW`, `_JSON_LOG`, lines with the shutdown timeout, signal numbers."""
        if _KILL_NOW in received:
            self._deadline = time.monotonic()
            return
        if _JSON_LOG in received:
            from servicebroker.cli.log import log_errors_in_json  # imported here: most commands do not need it

            log_errors_in_json()
            received = received.replace(_JSON_LOG, b"")
        for line in received.translate(None, bytes(_SIGNALS)).split():
            self._timeout_s = float(line)
        for _ in [byte for byte in received if byte in _SIGNALS]:
            self._signals_received += 1
            is_first = self._signals_received == 1
            self._deadline = time.monotonic() + (
                self._timeout_s + KILL_DELAY_S if is_first else SECOND_SIGNAL_TIMEOUT_S
            )

    def _kill(self) -> None:
        from servicebroker.store.embedded import EmbeddedServer  # imported here: only a kill needs it

        processes = [self._command, *descendants(self._command)]
        processes.remove(os.getpid())
        folders = _folders_in_use(processes)
        say("servicebroker: killed, since it had not ended in time.", error=True)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while any(_is_running(process) for process in processes):
            time.sleep(_POLL_S)
        for folder in folders:
            EmbeddedServer.stop_unused(folder)


def descendants(process: int) -> list[int]:
    """Return the ids of all descendants of a process, from /proc; an empty list for process 1."""
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


def _is_running(process: int) -> bool:
    """Return whether the process has a thread that runs. If the main thread is a zombie, others may still run."""
    folder = Path(f"/proc/{process}")
    try:
        is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie or len(list((folder / "task").iterdir())) > 1
    except OSError:
        return False
