"""A private PostgreSQL in a data folder, shared by all processes of the folder's owner.

Every process that has it open for long restarts it if it has died.

Contents of the folder:

    lock             held while the server is created, started or stopped
    home             the path of the folder, which reveals a copy
    in-use           locked, shared, by every process that has the server open; a killed process releases it
    postgresql/      the cluster and, if the path is short enough, its socket
    postgresql.log   the server's log; begun anew at a start if it is large

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

CHECK_INTERVAL_S = 0.5  # seconds between two checks of the server
RESTART_DELAY_S = 5.0  # seconds after a failed attempt to start it
_log = logging.getLogger("servicebroker")


class EmbeddedServer:
    """A private PostgreSQL in a data folder, open until `close`, the end of a `with`, or of the process.

    A forked child shares nothing: it calls `start` for itself, and cannot stop its parent's server.

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
    def start(cls, folder: Path | str, *, takes_copies: bool = False, watches: bool = True) -> Self:
        """Create the server in `folder`, start it, or join the running one.

        `takes_copies` is for the command that adopts one. A caller that stays for a few statements, beside others who
        have the server open for long, needs no thread that `watches` the server.

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
                    cluster.check_home(takes_copies=takes_copies)
                    server = cls(cluster, in_use, cluster.bring_up(), watches=watches)
                    if not takes_copies:
                        cluster.settle()
                    return server
                except BaseException:
                    os.close(in_use)
                    raise
        except OSError as error:
            raise unusable(folder, error) from error

    @classmethod
    def join(cls, folder: Path | str, *, takes_copies: bool = False, watches: bool = True) -> Self:
        """Join a server that has been created before: in a mistyped folder a new one would help nobody.

        Raises:
            InstanceError: the folder has none; and as `start`.
        """
        cls.must_exist(folder)
        return cls.start(folder, takes_copies=takes_copies, watches=watches)

    @staticmethod
    def settle(folder: Path | str) -> None:
        """Make the folder, an adopted copy, the home of its instance."""
        place = Path(os.path.realpath(folder))
        with _transition(place):
            Cluster(place, server_user()).settle()

    @staticmethod
    def is_copy(folder: Path | str) -> bool:
        """Check whether the folder is a copy of another one that was not adopted."""
        return Cluster(Path(os.path.realpath(folder)), server_user()).original() is not None

    @staticmethod
    def lost_log(folder: Path | str) -> LostLog | None:
        """Return the log of a running server that somebody deleted or moved; None if it is in its place."""
        return Cluster(Path(os.path.realpath(folder)), server_user()).lost_log()

    @staticmethod
    def running_url(folder: Path | str) -> str | None:
        """Return the URL of the server of a folder if it runs; nothing is started."""
        return Cluster(Path(os.path.realpath(folder)), server_user()).running_url()

    @classmethod
    def must_exist(cls, folder: Path | str) -> None:
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
            place = without_password(str(folder))  # perhaps a mistyped URL
            raise NoInstance(f"There is no instance in '{place}': make one with servicebroker init.")

    @staticmethod
    def exists(folder: Path | str) -> bool:
        """Check whether a server has been created in `folder`."""
        return (Path(folder) / "postgresql").is_dir()

    @classmethod
    def step(cls, folder: Path | str) -> str:
        """Return the words for `start`: it makes a server in the folder, or starts the one there."""
        try:
            is_new = not cls.exists(folder)
        except OSError:  # `start` tells it
            is_new = False
        return f"{'Making' if is_new else 'Starting'} PostgreSQL in '{folder}'"

    @staticmethod
    def stop_unused(folder: Path) -> None:
        """Stop the server of a folder unless a process has it open: the last one was killed.

        Raises:
            InstanceError: it does not stop.
        """
        _leave(Cluster(folder, server_user()), _open_lock(folder / "in-use"), os.getpid(), threading.Event())

    @classmethod
    @contextmanager
    def made(cls, folder: Path | str) -> Iterator[Self]:
        """Create a server in a folder without one, for a `with` block; a failure leaves nothing of it.

        Raises:
            InstanceError: as `start`.
        """
        place = Path(os.path.realpath(folder))
        new = [path for path in (place, *place.parents) if not path.exists()]
        try:
            with cls.start(place) as server:
                yield server
        except BaseException:
            _unmake(place, new)
            raise

    def close(self) -> None:
        """Leave the server; the last one out stops it. Closing twice does nothing."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _watch(cluster: Cluster, left: threading.Event) -> None:
    """Restart the server whenever it has died, until this process leaves it; one of its processes does so."""
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
                _log.error("%s It is started again.", cluster.obituary())
                cluster.bring_up()
            _log.warning("The PostgreSQL server of '%s' is back.", cluster.folder)
        except FileNotFoundError:  # the folder is gone
            return
        except (InstanceError, OSError) as problem:
            pause = RESTART_DELAY_S
            _log.error("%s It is tried again every %g seconds.", problem, RESTART_DELAY_S)


def _leave(cluster: Cluster, in_use: int, opener: int, left: threading.Event) -> None:
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


def _unmake(folder: Path, new: Iterable[Path]) -> None:
    """Remove a server that no other process has open, with the folders that were created for it."""
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
        for path in new:
            path.rmdir()


def _prepare(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InstanceError(f"The data folder '{folder}' is a file; choose another path.")
    if "\n" in str(folder):  # postmaster.pid is a file of lines
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
