"""A primary and its hot standby, set up with PostgreSQL's own programs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import psycopg

from servicebroker.store.cluster import UNPRIVILEGED_USER, programs

ROLE = "servicebroker"
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{folder}'
wal_level = replica
shared_buffers = 16MB
max_connections = 60
wal_receiver_status_interval = 1s
wal_retrieve_retry_interval = 500ms
fsync = off  # nobody pulls the plug
servicebroker.allow_data_loss = on
synchronous_standby_names = '{synchronous}'
"""
ARCHIVE = """
archive_mode = on
archive_command = 'cp %p ../archive/%f'
"""
RECOVERY = """
restore_command = 'cp ../archive/%f %p'
recovery_target_name = '{point}'
recovery_target_action = promote
"""


class Server:
    """A PostgreSQL server in a folder that the server's user can enter, with our programs or those in `of`."""

    def __init__(self, folder: Path, of: Path | None = None) -> None:
        self.folder, self.data, self._programs = folder, folder / "data", of or programs()
        self.user = pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self._make_folder(folder)

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={self.folder}&user={ROLE}"

    def make(self, *, synchronous: str) -> None:
        """Create a primary whose commits wait for the standby of this name."""
        text = "--encoding=UTF8", "--no-locale"
        self._run("initdb", "-D", "data", *text, "--auth=trust", f"--username={ROLE}", "--no-sync", "--no-instructions")
        self._write_settings(synchronous)

    def copy(self, primary: Server, name: str) -> None:
        """Create the server again as a standby of `primary`. Once promoted, it waits for no standby."""
        self.close()
        shutil.rmtree(self.data, ignore_errors=True)
        connection = f"host={primary.folder} user={ROLE} application_name={name}"
        self._run("pg_basebackup", "-D", "data", "-d", connection, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        with (self.data / "postgresql.auto.conf").open("a") as file:  # the file has the primary's settings
            file.write("synchronous_standby_names = ''\n")
        self._write_settings("")

    def archive(self) -> None:
        """Keep all WAL from the next start on, for `recover`."""
        self._make_folder(self.folder / "archive")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(ARCHIVE)

    def back_up(self) -> None:
        """Make a base backup, which only the archive completes."""
        connection = f"host={self.folder} user={ROLE}"
        self._run("pg_basebackup", "-D", "backup", "-d", connection, "-X", "none", "-c", "fast", "--no-sync")

    def mark(self, point: str) -> None:
        """Give the present state a name, for `recover`."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("select pg_create_restore_point(%s)", (point,))

    def is_archived(self) -> bool:
        """Check whether the archive has all WAL up to now."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("select pg_switch_wal()")
            text = "select last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1) from pg_stat_archiver"
            return connection.execute(text).fetchone() == (True,)

    def recover(self, point: str) -> None:
        """Replace a crashed server by the base backup, and replay the archive up to the point."""
        shutil.rmtree(self.data)
        (self.folder / "backup").rename(self.data)
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(RECOVERY.format(point=point))
        (self.data / "recovery.signal").touch()
        self.start()

    def start(self) -> None:
        self._run("pg_ctl", "start", "-D", "data", "-s", "-w", "-l", "log", "-t", "60")

    def crash(self) -> None:
        self._run("pg_ctl", "stop", "-D", "data", "-s", "-m", "immediate")

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-D", "data", "-s", "-w")

    def set_synchronous(self, names: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"alter system set synchronous_standby_names = '{names}'")  # type: ignore[call-overload]
            connection.execute("select pg_reload_conf()")

    def stop_following(self) -> None:
        """Stop the replication of a standby."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("alter system set primary_conninfo = ''")
            connection.execute("select pg_reload_conf()")

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir()
        os.chown(folder, self.user.pw_uid, self.user.pw_gid)

    def close(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.crash()

    def _write_settings(self, synchronous: str) -> None:
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(folder=self.folder, synchronous=synchronous))

    def _run(self, program: str, *arguments: str) -> None:
        is_root = os.geteuid() == 0
        subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.folder,
            env={key: value for key, value in os.environ.items() if not key.startswith("PG")} | {"LC_ALL": "C"},
            check=True,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            user=self.user.pw_uid if is_root else None,
            group=self.user.pw_gid if is_root else None,
            extra_groups=[] if is_root else None,
        )
