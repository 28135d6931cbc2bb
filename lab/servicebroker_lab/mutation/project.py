"""The tree that mutants are planted in, and the copies in which tests run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

PACKAGES = ("engine", "store", "protocol", "broker", "activation", "pipeline", "tsql", "dashboard", "testing")
# Released migrations stay as they are, and a test holds their digests.
LEFT_OUT = ("store/migrations/",)
ENOUGH_BYTES = 8 * 1024**3  # bytes, as in tests/conftest.py
MARK = "SERVICEBROKER_MUTANTS_RUN"  # a variable that every process of a run inherits


@dataclass(frozen=True)
class Project:
    """A tree with code, its tests, and a folder for all that is kept of them."""

    root: Path
    cache: Path
    sources: str = "src/servicebroker"
    packages: tuple[str, ...] = PACKAGES
    tests: str = "tests"
    pytest_options: tuple[str, ...] = ("-n", "0", "--seed", "1")

    def files(self, package: str) -> list[str]:
        """Return the paths, below the root, of the files of a package that can be changed."""
        sources = self.root / self.sources
        files = sorted(file for end in ("py", "sql") for file in (sources / package).rglob(f"*.{end}"))
        relative = [file.relative_to(sources).as_posix() for file in files]
        return [f"{self.sources}/{path}" for path in relative if not path.startswith(LEFT_OUT)]

    def package_of(self, path: str) -> str:
        """Return the package of a file."""
        return path.removeprefix(f"{self.sources}/").partition("/")[0]

    def test_files(self, chosen: Sequence[str] = ()) -> list[str]:
        """Return the paths of all test files, or of those below the chosen folders."""
        files = (file.relative_to(self.root).as_posix() for file in (self.root / self.tests).rglob("test_*.py"))
        return sorted(file for file in files if not chosen or file.startswith(tuple(chosen)))


class Copies:
    """Some copies of the tree, one for each thread that runs tests."""

    def __init__(self, project: Project, count: int) -> None:
        self.count = count
        self._free: SimpleQueue[Copy] = SimpleQueue()
        for number in range(count):
            copy = Copy(project, f"tree{number}")
            copy.refresh()
            self._free.put(copy)

    @contextlib.contextmanager
    def lend(self) -> Iterator[Copy]:
        """Lend a copy that nobody uses; wait for it if all are in use."""
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)


class DeadlinePassed(Exception):
    """The tests ran past their deadline."""


class Copy:
    """A copy of the tree, in which files are changed and tests run."""

    def __init__(self, project: Project, name: str) -> None:
        self._project = project
        self.root = project.cache / name
        self._changes = 0

    def refresh(self) -> None:
        """Copy what has changed since the last time, and remove what is gone."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self._project.root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        expected = {name for name in listed if name and (self._project.root / name).is_file()}
        for name in expected:
            source, target = self._project.root / name, self.root / name
            if not target.exists() or _stamp(source) != _stamp(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        for target in self.root.rglob("*"):
            if (
                target.is_file()
                and target.suffix != ".pyc"
                and target.relative_to(self.root).as_posix() not in expected
            ):
                target.unlink()

    @contextlib.contextmanager
    def with_text(self, path: str, text: str) -> Iterator[None]:
        """Write a text into a file, and its own text again at the end.

        Each change has another time of modification, by which Python knows that its bytecode is old.
        """
        file = self.root / path
        own, status = file.read_bytes(), file.stat()
        self._changes += 1
        file.write_text(text, encoding="utf-8")
        seconds = int(time.time()) + self._changes
        os.utime(file, (seconds, seconds))
        try:
            yield
        finally:
            file.write_bytes(own)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def run_tests(
        self, tests: Sequence[str], deadline_s: float, *options: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run tests in the copy, with its code.

        Raises:
            Ended: they took longer than the deadline; all their processes are dead.
        """
        mark = f"{os.getpid()}-{self.root.name}-{time.monotonic_ns()}"
        folders = [str(self.root / self._project.sources.partition("/")[0]), str(self.root / "lab")]
        environment = {
            **os.environ,
            **(variables or {}),
            "PYTHONPATH": os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])]),
            MARK: mark,
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self._project.pytest_options]
        with (
            _temporary_folder() as folder,
            subprocess.Popen(
                [*command, "--basetemp", f"{folder}/t", *options, *tests],
                cwd=self.root,
                env=environment | {"TMPDIR": folder},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            ) as process,
        ):
            try:
                output, _ = process.communicate(timeout=deadline_s)
            except subprocess.TimeoutExpired as problem:
                raise DeadlinePassed from problem
            finally:
                _end(process, mark)
        return subprocess.CompletedProcess(command, process.returncode, output)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """Make a folder for the files of a run, in memory where there is room, and remove it with all that it holds.

    The server of the tests may run as another user, who has to pass through it.
    """
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > ENOUGH_BYTES
    with tempfile.TemporaryDirectory(
        prefix="mutant-", dir=memory if has_room else None, ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o711)
        yield folder


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _end(process: subprocess.Popen[str], mark: str) -> None:
    """Kill what is left of a run: its process group, and on Linux every process that has inherited the mark."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    sought = f"{MARK}={mark}\0".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if sought in file.read_bytes() + b"\0":
                os.kill(int(file.parent.name), signal.SIGKILL)
