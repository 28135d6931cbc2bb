"""Run commands of `servicebroker` in forked processes: importing it in each takes 0.7 s of processor time.

A process that has imported the package forks one for each command. The child runs the command's `main` with its own
arguments, folder, environment and streams. Tests can signal and kill it like any other process. Only test_cli.py starts
the command without this.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any

LOADED = (
    "servicebroker.broker.daemon",
    "servicebroker.activation.host",
    "servicebroker.tsql.session",
    "typer.rich_utils",
    "pyspark.sql",  # without pyarrow and deltalake, which start threads
    "servicebroker.pipeline.run",
    "servicebroker.pipeline.sinks.maintenance",
)
_ENVIRONMENT = dict(os.environ)  # without the variables of the first test that runs a command
CHEAP_SCRYPT_COST, SHIPPED_SCRYPT_COST = 2**4, 2**15
_MAX_REQUEST_BYTES = 1 << 20  # of arguments and environment


class Command:
    """A process of `servicebroker`, with the methods of `subprocess.Popen`."""

    def __init__(
        self,
        *arguments: object,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = True,
        cwd: Path | None = None,
        env: Mapping[str, str] = os.environ,
        start_new_session: bool = False,
        warnings: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self.stdout, out = _stream(stdout, 1, text)
        self.stderr, err = _stream(stderr, 2, text)
        self._ended, child_end = os.pipe()
        request = {
            "arguments": [*map(str, arguments)],
            "folder": str(cwd or Path.cwd()),
            "environment": dict(env),
            "session": start_new_session,
            "warnings": warnings,
        }
        origin = _origin()
        socket.send_fds(origin, [json.dumps(request).encode()], [out, err, child_end])
        for descriptor in {out, err, child_end} - {1, 2}:
            os.close(descriptor)
        self.pid = int(os.read(self._ended, 16))

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("servicebroker", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self.returncode = int(os.read(self._ended, 16))
        os.close(self._ended)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Return all output of both streams until the end."""
        with ThreadPoolExecutor(2) as readers:
            outputs = [readers.submit(stream.read) if stream else None for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        self._close()
        out, err = (output.result() if output else None for output in outputs)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        self.wait()

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def run_command(*arguments: object, timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return the result."""
    process = Command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    out, err = process.communicate(timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def _stream(expected: int | IO[Any] | None, usual: int, text: bool) -> tuple[IO[Any] | None, int]:
    """Return this process's end of a stream, if it is a pipe, and the descriptor for the child."""
    if expected == subprocess.PIPE:
        ours, theirs = os.pipe()
        return os.fdopen(ours, "r" if text else "rb"), theirs
    if expected is None:
        return None, usual
    return None, os.dup(expected if isinstance(expected, int) else expected.fileno())


@functools.cache
def _origin() -> socket.socket:
    """Return the connection to the process from which commands are forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, __file__, str(number)], pass_fds=[number], stdin=subprocess.DEVNULL, env=_ENVIRONMENT
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _fork_as_asked(requests_socket: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request, and report its exit code. In a forked process, return the request."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests_socket, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    waiting.unregister(key.fileobj)
                    key.data()
                    continue
                text, descriptors, *_ = socket.recv_fds(requests_socket, _MAX_REQUEST_BYTES, 3)
                if not text:
                    return None
                *stream_fds, answer_fd = descriptors
                pid = os.fork()
                if not pid:
                    for way, number in zip(stream_fds, (1, 2), strict=True):
                        os.dup2(way, number)
                    request: dict[str, Any] = json.loads(text)
                    return request
                os.write(answer_fd, b"%16d" % pid)
                for way in stream_fds:
                    os.close(way)
                process_fd = os.pidfd_open(pid)
                waiting.register(process_fd, selectors.EVENT_READ, functools.partial(_tell, pid, process_fd, answer_fd))


def _tell(pid: int, process_fd: int, answer_fd: int) -> None:
    """Report the exit code of a process that has ended."""
    os.close(process_fd)
    os.write(answer_fd, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(answer_fd)


def _become(request: dict[str, Any]) -> None:
    """Become the process that `python -m servicebroker.cli.main` would be."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["warnings"]:
        import warnings

        warnings.simplefilter("error")
    from servicebroker.cli import main

    sys.path[0] = os.getcwd()
    sys.argv = [str(main.__file__), *request["arguments"]]
    main.main()


def cheapen_passwords() -> None:
    """Make password hashing cheap in this process: a normal hash costs 0.1 s of processor time and 32 MB."""
    from servicebroker.store.keys import sealing

    sealing.SCRYPT_COST = CHEAP_SCRYPT_COST


def _load() -> None:
    """Import the modules of commands, and exclude their objects from garbage collection in forked processes."""
    from typer.testing import CliRunner

    from servicebroker.cli.main import COMMANDS, app

    for name in (*LOADED, *(f"servicebroker.cli.{place.module}" for place in COMMANDS.values())):
        with suppress(ImportError):  # modules of packages that are not installed
            import_module(name)
    CliRunner().invoke(app, ["--version"])  # typer imports some modules at the first call
    cheapen_passwords()
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load()
    with socket.socket(fileno=int(sys.argv[1])) as asks:
        wanted = _fork_as_asked(asks)
    if wanted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(wanted)
