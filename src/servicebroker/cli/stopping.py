"""How a command ends at SIGTERM and SIGINT: asked by the first one, at once by the second, in time whatever hangs.

What nothing inside the process can end is ended from outside: a guard, forked before there are threads, is told of each
signal by the interpreter's own handler, which needs no lock of Python's. It kills the command when its time is over,
with the processes that it has started, and leaves the embedded server for it.
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

PATIENCE = 30.0  # seconds that the work in progress has to end
GRACE = 5.0  # further seconds until a command that has not ended is killed
AT_ONCE = 3.0  # seconds from the second signal until then
_LOOK = 0.02  # seconds between two looks whether the killed ones have gone
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_AT_ONCE = b"!"  # what the guard is told to kill the command now
_IN_JSON = b"{"  # what it is told when standard error is a log in JSON

_guarded: int | None = None  # the descriptor that the guard of this process reads at the other end
_guard = 0  # its process
_asked = 0  # how many signals came


def guarded() -> None:
    """From now on SIGTERM is as Ctrl-C, a second signal ends this process at once, and a guard sees to both."""
    global _guarded, _guard
    reading, writing = os.pipe()
    _guard = os.fork()
    if _guard == 0:
        os.close(writing)
        _Guard(reading, os.getppid()).watch()
    os.close(reading)
    os.set_blocking(writing, False)
    _guarded = writing
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    at_signal(_interrupt, kill_all)


def at_signal(ask: Callable[[], None], hurry: Callable[[], None], *, patience: float = PATIENCE) -> None:
    """The first signal asks, a second one hurries, both in the main thread; then the guard waits for the patience."""
    if _guarded is not None:
        os.write(_guarded, f"{patience}\n".encode())

    def handle(number: int, frame: object) -> None:
        global _asked
        _asked += 1
        (ask if _asked == 1 else hurry)()

    for number in _SIGNALS:
        signal.signal(number, handle)


def say_in_json() -> None:
    """Tell the guard that standard error is a log in JSON."""
    if _guarded is not None:
        os.write(_guarded, _IN_JSON)


def kill_all() -> NoReturn:
    """Have this process killed now, with those that it has started."""
    assert _guarded is not None
    os.write(_guarded, _AT_ONCE)
    while True:
        time.sleep(AT_ONCE)


def leave_nothing() -> None:
    """A command that was asked to end is over: so is what it has started, and its threads that would go on."""
    if not _asked:
        return
    for process in set(descendants(os.getpid())) - {_guard}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if any(not one.daemon for one in threading.enumerate() if one is not threading.main_thread()):
        ended = sys.exc_info()[1]
        flush()
        os._exit(ended.code if isinstance(ended, SystemExit) and isinstance(ended.code, int) else 1)


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Guard:
    """The process beside a command, which ends with it."""

    def __init__(self, pipe: int, command: int) -> None:
        self._pipe = pipe
        self._command = command
        self._patience = PATIENCE
        self._asked = 0
        self._deadline: float | None = None

    def watch(self) -> NoReturn:
        """Until the command has ended, or its time is over."""
        for number in _SIGNALS:  # those of the terminal, or of a service manager, come to it, too
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
        """Numbers of signals, and lines that say how long the patience is."""
        if _AT_ONCE in told:
            self._deadline = time.monotonic()
            return
        if _IN_JSON in told:
            from servicebroker.cli.log import say_errors_in_json  # no other command is to load it for this

            say_errors_in_json()
            told = told.replace(_IN_JSON, b"")
        for line in told.translate(None, bytes(_SIGNALS)).split():
            self._patience = float(line)
        for _ in [byte for byte in told if byte in _SIGNALS]:
            self._asked += 1
            seconds = self._patience + GRACE if self._asked == 1 else AT_ONCE
            self._deadline = time.monotonic() + seconds

    def _kill(self) -> None:
        from servicebroker.store.embedded import EmbeddedServer  # no command is to load it for this

        ended = [self._command, *descendants(self._command)]
        ended.remove(os.getpid())
        folders = _folders_in_use(ended)
        say("servicebroker: killed, since it was to end and had not.", error=True)
        for process in ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while any(_lives(process) for process in ended):
            time.sleep(_LOOK)
        for folder in folders:
            EmbeddedServer.stop_unused(folder)


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and theirs, as far as /proc tells; none of whose who adopts any."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children[int(path.read_text().rpartition(")")[2].split()[1])].append(int(path.parent.name))
    found = [] if process == 1 else list(children[process])
    for one in found:
        found.extend(children[one])
    return found


def _folders_in_use(processes: list[int]) -> set[Path]:
    """The data folders that these processes have open."""
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
    """Whether a thread of it runs: what only waits to be buried has a single one, which is over."""
    place = Path(f"/proc/{process}")
    try:
        over = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not over or len(list((place / "task").iterdir())) > 1
    except OSError:
        return False
