"""A private PostgreSQL server in a data folder, shared by all processes of the folder's owner.

Every process that keeps the server open restarts it after a crash.

Contents of the folder:

    lock             held while the server is created, started or stopped
    home             the path of the folder: in a copied folder it differs
    in-use           every process that has the server open holds a shared lock on it, until it ends
    postgresql/      the cluster and, if the path is short enough, its socket
    postgresql.log   the server's log; a start renames a large one

Operations on the cluster itself are in `store/cluster.py`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from servicebroker.model.errors import InstanceError, NoInstance
from servicebroker.model.hidden_passwords import without_password
from servicebroker.model.wording import LONGEST_SHOWN, cut
from servicebroker.store.cluster import HOME_FILE, Cluster, LostLog, server_user, unusable, user_name

CHECK_INTERVAL_S = 0.5  # the time between two checks whether the server runs
RESTART_DELAY_S = 5.0  # the pause after a failed attempt to start the server
_log = logging.getLogger("servicebroker")


class EmbeddedServer:
    """A private PostgreSQL server in a data folder, open until `close`, or the end of the `with` block or the process.

    A forked child cannot use or stop the server of its parent: it has to call `start` for itself.

    Attributes:
        url: the server's URL for libpq (psycopg, ADBC, psql), valid in every process of the same OS user.
    """

    url: str

    def __init__(self, cluster: Cluster, in_use: int, url: str, *, watches: bool) -> None:
        self.url = url
        left = threading.Event()
        self._leave = weakref.finalize(self, _leave, cluster, in_use, os.getpid(), left)  # also runs at exit
        if watches:
            name = f"servicebroker watches {cluster.folder.name}"
            threading.Thread(target=_watch, args=(cluster, left), name=name, daemon=True).start()

    @classmethod
    def start(cls, folder: Path | str, *, accepts_copies: bool = False, watches: bool = True) -> Self:
        """Create the server in `folder`, start it, or join the running one.

        `accepts_copies`: accept a copied folder, for the command that adopts it. `watches`: start a thread that
        restarts the server after a crash. A caller that runs a few statements, while other processes keep the server
        open, needs none.

        Raises:
            InstanceError: the folder cannot be used or is a copy, the disk is full, or PostgreSQL refused to start.
        """
        folder = Path(os.path.realpath(folder))
        try:
            _prepare(folder)
            cluster = Cluster(folder, server_user())
            with _transition(folder):
                in_use = _open_lock(folder / "in-use")
                try:
                    fcntl.flock(in_use, fcntl.LOCK_SH)
                    cluster.check_home(accepts_copies=accepts_copies)
                    server = cls(cluster, in_use, cluster.start(), watches=watches)
                    if not accepts_copies:
                        cluster.settle()
                    return server
                except BaseException:
                    os.close(in_use)
                    raise
        except OSError as error:
            raise unusable(folder, error) from error

    @classmethod
    def join(cls, folder: Path | str, *, accepts_copies: bool = False, watches: bool = True) -> Self:
        """Start or join a server that exists. A mistyped folder is an error, not a new server.

        Raises:
            InstanceError: the folder has no server; and as `start`.
        """
        cls.check_exists(folder)
        return cls.start(folder, accepts_copies=accepts_copies, watches=watches)

    @staticmethod
    def settle(folder: Path | str) -> None:
        """Record the folder of an adopted copy as the home of its instance."""
        path = Path(os.path.realpath(folder))
        with _transition(path):
            Cluster(path, server_user()).settle()

    @staticmethod
    def is_copy(folder: Path | str) -> bool:
        """Check whether the folder is a copy of another one, and was not adopted."""
        return Cluster(Path(os.path.realpath(folder)), server_user()).original() is not None

    @staticmethod
    def lost_log(folder: Path | str) -> LostLog | None:
        """Return the log of a running server if it was deleted or moved; None if it is at its path."""
        return Cluster(Path(os.path.realpath(folder)), server_user()).lost_log()

    @staticmethod
    def running_url(folder: Path | str) -> str | None:
        """Return the URL of the folder's server if it runs. Never starts it."""
        return Cluster(Path(os.path.realpath(folder)), server_user()).running_url()

    @classmethod
    def check_exists(cls, folder: Path | str) -> None:
        """Raise unless a server has been created in the folder.

        Raises:
            NoInstance: none has been.
            InstanceError: the folder cannot be reached, or its path is too long.
        """
        try:
            exists = cls.exists(folder)
        except OSError as error:
            raise unusable(Path(cut(str(folder), LONGEST_SHOWN)), error) from error
        if not exists:
            name = without_password(str(folder))  # perhaps a mistyped URL
            raise NoInstance(
                f"There is no instance in '{name}': make one with servicebroker init, or name yours by --instance or "
                "SERVICEBROKER_INSTANCE."
            )

    @staticmethod
    def exists(folder: Path | str) -> bool:
        """Check whether a server has been created in `folder`."""
        return (Path(folder) / "postgresql").is_dir()

    @classmethod
    def step(cls, folder: Path | str) -> str:
        """Return the text that a command shows while `start` creates or starts the server."""
        try:
            is_new = not cls.exists(folder)
        except OSError:  # `start` raises the error
            is_new = False
        return f"{'Making' if is_new else 'Starting'} PostgreSQL in '{folder}'"

    @staticmethod
    def stop_unused(folder: Path) -> None:
        """Stop the server of a folder if no process has it open, because the last one was killed.

        Raises:
            InstanceError: the server does not stop.
        """
        _leave(Cluster(folder, server_user()), _open_lock(folder / "in-use"), os.getpid(), threading.Event())

    @classmethod
    @contextmanager
    def made(cls, folder: Path | str) -> Iterator[Self]:
        """Create a server in a new folder, for a `with` block. If the block fails, remove the server and the folder.

        Raises:
            InstanceError: as `start`.
        """
        path = Path(os.path.realpath(folder))
        new_folders = [parent for parent in (path, *path.parents) if not parent.exists()]
        try:
            with cls.start(path) as server:
                yield server
        except BaseException:
            _remove(path, new_folders)
            raise

    def close(self) -> None:
        """Release the server. The last process that releases it stops it. A second call does nothing."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _watch(cluster: Cluster, left: threading.Event) -> None:
    """Restart the server after a crash, until this process releases it. Only one process at a time does so."""
    pause, has_lost_log = CHECK_INTERVAL_S, False
    while not left.wait(pause):
        pause = CHECK_INTERVAL_S
        if cluster.is_running():
            if (log := cluster.lost_log()) is not None and not has_lost_log:
                _log.error("%s", log.warning)
            has_lost_log = log is not None
            continue
        try:
            with _transition(cluster.folder):
                if left.is_set() or cluster.is_running():
                    continue
                if not cluster.data.is_dir():  # the cluster was deleted
                    return
                _log.error("%s It is started again.", cluster.describe_end())
                cluster.start()
            _log.warning("The PostgreSQL server of '%s' is back.", cluster.folder)
        except FileNotFoundError:  # the folder is gone
            return
        except (InstanceError, OSError) as problem:
            pause = RESTART_DELAY_S
            _log.error("%s It is tried again every %g seconds.", problem, RESTART_DELAY_S)


def _leave(cluster: Cluster, in_use: int, opener: int, left: threading.Event) -> None:
    """Release the server, and stop it if no other process has it open. `opener`: the process that had opened it."""
    left.set()
    if os.getpid() != opener:
        os.close(in_use)
        return
    try:
        # No folder: it was deleted. A refused lock: others still use it.
        with suppress(FileNotFoundError, BlockingIOError), _transition(cluster.folder):
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cluster.stop()
    finally:
        fcntl.flock(in_use, fcntl.LOCK_UN)  # a forked child's copy must not keep it
        os.close(in_use)


def _remove(folder: Path, new_folders: Iterable[Path]) -> None:
    """Remove a server that no other process has open, and the folders that were created for it."""
    with suppress(OSError), _transition(folder):
        in_use = _open_lock(folder / "in-use")
        try:
            fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder / "postgresql", ignore_errors=True)
            for name in ("postgresql.log", HOME_FILE, "in-use", "lock"):
                (folder / name).unlink(missing_ok=True)
        finally:
            os.close(in_use)
    with suppress(OSError):
        for path in new_folders:
            path.rmdir()


def _prepare(folder: Path) -> None:
    """Create the data folder if it is missing, and refuse one that cannot be used."""
    if folder.exists() and not folder.is_dir():
        raise InstanceError(f"The data folder '{folder}' is a file; choose another path.")
    if "\n" in str(folder):  # postmaster.pid has the path on a line of its own
        raise InstanceError("The name of a data folder cannot hold a line break; choose another path.")
    folder.mkdir(mode=0o701 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        owner = user_name(status.st_uid)
        raise InstanceError(
            f"The data folder '{folder}' belongs to user {owner}; run as that user, or choose another folder."
        )
    if status.st_mode & stat.S_IWOTH:
        raise InstanceError(f"Anybody may write to the data folder '{folder}'; chmod o-w it, or choose another folder.")


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def _transition(folder: Path) -> Iterator[None]:
    """Lock the folder: only one process at a time creates, starts or stops its server."""
    lock = _open_lock(folder / "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child forked meanwhile
        os.close(lock)
