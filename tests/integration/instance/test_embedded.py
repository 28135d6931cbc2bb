"""The embedded server: created completely, shared, private, and recovered after every kind of death."""

from __future__ import annotations

import fcntl
import gc
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import servicebroker as sb
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.open_database import OpenInstance
from servicebroker.store import cluster, embedded
from servicebroker.store.embedded import EmbeddedServer

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="acts as several users, which only root can")

OPENER = """
import sys
from servicebroker.store.embedded import EmbeddedServer
server = EmbeddedServer.start(sys.argv[1])
print(server.url, flush=True)
if sys.stdin.readline() == "close\\n":
    server.close()
"""


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder without a server."""
    folder = tmp_path_factory.mktemp("e") / "data"  # a short name: a socket path has at most 107 bytes
    yield folder
    gc.collect()
    kill(folder)


@pytest.fixture(scope="module")
def created_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("created") / "data"
    EmbeddedServer.start(folder).close()
    return folder


@pytest.fixture
def folder(empty: Path, created_folder: Path) -> Path:
    """Return a folder with a created, stopped server: a copy, which takes a tenth of the time."""
    subprocess.run(["cp", "-a", created_folder, empty], check=True)
    (empty / "home").unlink()  # would identify it as a copy
    return empty


def postmaster(folder: Path) -> int | None:
    """Return the process named in postmaster.pid if it is running."""
    with suppress(FileNotFoundError, NotADirectoryError, ProcessLookupError):
        pid = int((folder / "postgresql/postmaster.pid").read_text().split("\n")[0])
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            return pid
    return None


def kill(folder: Path) -> None:
    """Kill the server by SIGKILL, and wait until it is gone."""
    if pid := postmaster(folder):
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: postmaster(folder) is None)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 20 seconds"
        time.sleep(0.005)


def opener(folder: Path) -> subprocess.Popen[str]:
    """Start a process that opens the server and holds it until it reads "close" or another word."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPENER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline().startswith("postgresql://")
    return process


def ask(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[call-overload]
        return row[0]


def run(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement)  # type: ignore[call-overload]


# --- life ---


def test_data_outlives_the_server(folder: Path) -> None:
    with EmbeddedServer.start(folder) as server:
        run(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        assert postmaster(folder)
    assert postmaster(folder) is None
    with EmbeddedServer.start(folder) as server:
        assert ask(server.url, "SELECT answer FROM kept") == 42


def test_the_first_to_close_leaves_it_running_and_the_last_stops_it(folder: Path) -> None:
    with EmbeddedServer.start(folder) as server:
        pid = postmaster(folder)
        second_opener = opener(folder)
        assert postmaster(folder) == pid
        server.close()
        server.close()
        assert postmaster(folder) == pid
        assert ask(server.url, "SELECT 1") == 1
        second_opener.communicate("close\n", timeout=20)
    assert second_opener.returncode == 0
    assert postmaster(folder) is None


def test_a_task_of_spark_watches_no_server(folder: Path) -> None:
    def watchers() -> int:
        return sum(thread.name.startswith("servicebroker watches") for thread in threading.enumerate())

    before = watchers()
    driver = OpenInstance(str(folder))
    task = OpenInstance(str(folder), in_task=True)
    assert watchers() == before + 1
    driver.close()
    with psycopg.connect(task.url):  # the task has opened the server anyway
        task.close()


def test_two_openers_in_one_process_count_as_two(folder: Path) -> None:
    first, second = EmbeddedServer.start(folder), EmbeddedServer.start(folder)
    first.close()
    assert ask(second.url, "SELECT 1") == 1
    second.close()
    assert postmaster(folder) is None


def test_many_processes_may_create_it_at_once(empty: Path) -> None:
    command = [sys.executable, "-c", OPENER, str(empty)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    results = [process.communicate("close\n", timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, results
    assert postmaster(empty) is None


def test_a_process_that_ends_without_close_leaves(folder: Path) -> None:
    opener(folder).communicate("just end\n", timeout=20)
    assert postmaster(folder) is None


def test_a_forgotten_server_leaves(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    del server
    gc.collect()
    assert postmaster(folder) is None


def test_a_forked_child_cannot_stop_its_parents_server(folder: Path) -> None:
    with EmbeddedServer.start(folder) as server:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                server.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert ask(server.url, "SELECT 1") == 1
    assert postmaster(folder) is None


def test_a_living_forked_child_does_not_keep_the_server(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        server.close()
        assert postmaster(folder) is None
        with (folder / "in-use").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises if the child's copy still holds it
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_deleted_folder_can_be_left(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    kill(folder)
    shutil.rmtree(folder)
    server.close()


def test_joining_is_quick(folder: Path) -> None:
    with EmbeddedServer.start(folder):
        begin = time.perf_counter()
        EmbeddedServer.start(folder).close()
        assert time.perf_counter() - begin < 0.1  # about 2 ms, without a start of any program


# --- death ---


def test_killed_opener_leaves_an_orphan_that_the_next_one_joins_and_stops(folder: Path) -> None:
    second_opener = opener(folder)
    pid = postmaster(folder)
    second_opener.kill()
    second_opener.communicate()
    assert postmaster(folder) == pid
    with EmbeddedServer.start(folder) as server:
        assert postmaster(folder) == pid
        assert ask(server.url, "SELECT 1") == 1
    assert postmaster(folder) is None


def test_a_killed_server_recovers_committed_rows(folder: Path) -> None:
    with EmbeddedServer.start(folder) as server:
        run(server.url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS i")
        with psycopg.connect(server.url) as busy:  # the backend outlives the postmaster for a moment
            pid = postmaster(folder)
            kill(folder)
            with EmbeddedServer.start(folder) as again:
                assert postmaster(folder) not in (None, pid)
                assert ask(again.url, "SELECT count(*) FROM kept") == 1000
            assert postmaster(folder), "the first opener still has it open"
            with pytest.raises(psycopg.OperationalError):
                busy.execute("SELECT 1")
    assert postmaster(folder) is None


def test_a_killed_servers_last_process_is_waited_for(folder: Path) -> None:
    with EmbeddedServer.start(folder) as server, psycopg.connect(server.url) as busy:
        backend = busy.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # the stopped process holds the shared memory until it continues and ends
        kill(folder)
        threading.Timer(0.5, os.kill, (backend, signal.SIGCONT)).start()
        with EmbeddedServer.start(folder) as again:
            assert ask(again.url, "SELECT 1") == 1


def test_a_dead_servers_process_number_may_have_an_heir(folder: Path) -> None:
    with EmbeddedServer.start(folder):
        owner = (folder / "postgresql").stat().st_uid
        kill(folder)
    heir = subprocess.Popen(["sleep", "60"], user=owner if ROOT else None)
    try:
        for name in ("postmaster.pid", f"{cluster.SOCKET_NAME}.lock"):
            file = folder / "postgresql" / name
            file.write_text(f"{heir.pid}\n" + file.read_text().partition("\n")[2])
        with EmbeddedServer.start(folder) as server:
            assert ask(server.url, "SELECT 1") == 1
    finally:
        heir.kill()
        heir.wait()


def test_a_kill_while_it_is_created_leaves_nothing_in_the_way(empty: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OPENER, str(empty)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    eventually(lambda: list(empty.glob("postgresql.new-*/global")))
    process.kill()
    process.communicate()
    assert not (empty / "postgresql").exists()
    left_over = empty / "postgresql.new-1"
    left_over.mkdir()
    (left_over / "PG_VERSION").write_text("18\n")
    with EmbeddedServer.start(empty) as server:
        assert ask(server.url, "SELECT 1") == 1
    assert not left_over.exists()


def test_the_server_is_out_of_reach_of_the_terminal(folder: Path) -> None:
    with EmbeddedServer.start(folder):
        pid = postmaster(folder)
        assert pid
        assert os.getsid(pid) != os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


def test_locks_are_not_inherited_by_programs(folder: Path) -> None:
    with EmbeddedServer.start(folder):
        pid = postmaster(folder)
        held = [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()]
        assert not [name for name in held if name.startswith((str(folder / "lock"), str(folder / "in-use")))]


# --- settings ---


def test_settings_are_ours_unless_the_user_has_others(empty: Path) -> None:
    with EmbeddedServer.start(empty) as server:
        assert ask(server.url, "SHOW max_locks_per_transaction") == "256"
        assert ask(server.url, "SHOW timezone") == "UTC"
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert ask(server.url, f"SELECT current_setting('{setting}')") == "on"
        assert ask(server.url, "SHOW server_encoding") == "UTF8"
        assert ask(server.url, "SELECT count(*) FROM pg_file_settings WHERE error IS NOT NULL") == 0
    with (empty / "postgresql/postgresql.conf").open("a") as file:
        file.write("max_connections = 77\n")
    (empty / "postgresql/servicebroker.conf").write_text("spoiled = yes\n")
    with EmbeddedServer.start(empty) as server:
        assert ask(server.url, "SHOW max_connections") == "77"
        assert ask(server.url, "SHOW max_locks_per_transaction") == "256"


def test_a_large_log_begins_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer.start(folder):
        pass
    monkeypatch.setattr(cluster, "MAX_LOG_BYTES", 10)
    with EmbeddedServer.start(folder):
        assert "starting PostgreSQL" in (folder / "postgresql.log.1").read_text()
        assert (folder / "postgresql.log").read_text().count("starting PostgreSQL") == 1


def test_environment_of_other_servers_is_ignored(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGPORT": "6000", "PGDATA": "/nowhere", "PGHOST": "/nowhere", "LC_ALL": "xx"}.items():
        monkeypatch.setenv(name, value)
    with EmbeddedServer.start(empty) as server:
        assert ask(server.url, "SHOW port") == "5432"


# --- privacy ---


def test_no_network_no_trust_and_no_password(empty: Path) -> None:
    with EmbeddedServer.start(empty) as server:
        assert ask(server.url, "SHOW listen_addresses") == ""
        assert ask(server.url, "SELECT array_agg(type || ' ' || auth_method) FROM pg_hba_file_rules") == ["local peer"]
        assert ask(server.url, "SELECT count(*) FROM pg_authid WHERE rolpassword IS NOT NULL") == 0
        names = ask(server.url, "SELECT array_agg(sys_name) FROM pg_ident_file_mappings")
        assert names == [pwd.getpwuid(os.geteuid()).pw_name]
    assert stat.S_IMODE((empty / "postgresql").stat().st_mode) == 0o700
    assert stat.S_IMODE((empty / "postgresql.log").stat().st_mode) == 0o600
    assert stat.S_IMODE(empty.stat().st_mode) == (0o701 if ROOT else 0o700)


@needs_root
@pytest.mark.parametrize("opened", [False, True], ids=["closed folders", "even with open folders"])
def test_another_user_cannot_connect(folder: Path, opened: bool) -> None:
    with EmbeddedServer.start(folder) as server:
        if opened:
            for parent in (folder / "postgresql", *folder.parents):
                parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o001)
            (folder / "postgresql" / cluster.SOCKET_NAME).chmod(0o777)
        psql = [cluster.programs() / "psql", server.url, "-Atc", "SELECT 'in'"]
        assert subprocess.check_output(psql) == b"in\n"
        for name in ("nobody", cluster.UNPRIVILEGED_USER):
            if not opened and name == cluster.UNPRIVILEGED_USER:
                continue
            result = subprocess.run(psql, user=name, group=name_of_group(name), extra_groups=[], capture_output=True)
            assert result.returncode
            assert b"in\n" not in result.stdout
            expected = b"Peer authentication failed" if opened else b"Permission denied"
            assert expected in result.stderr


def name_of_group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


@needs_root
def test_an_ordinary_user_runs_it_as_itself() -> None:
    nobody = pwd.getpwnam("nobody")
    base = Path(tempfile.mkdtemp())
    try:
        os.chown(base, nobody.pw_uid, nobody.pw_gid)
        become = f"import os; os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})\n"
        check = "import os; print(os.stat(sys.argv[1] + '/postgresql').st_uid)\n"
        imports, _, rest = OPENER.lstrip().partition("server =")
        script = f"{imports}{become}server ={rest}{check}"
        result = subprocess.run(
            [sys.executable, "-c", script, str(base / "data")],
            input="close\n", capture_output=True, text=True, timeout=60, cwd="/",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert result.stdout.split()[-1] == str(nobody.pw_uid)
        with pytest.raises(InstanceError, match="belongs to user nobody"):
            EmbeddedServer.start(base / "data")
    finally:
        kill(base / "data")
        shutil.rmtree(base)


# --- paths ---


@pytest.mark.parametrize(
    "name", ['-it\'s "größe" 数据', "$HOME`id` 50%&x=1?#\\", "a,b", "l" * 150], ids=["quotes", "shell", "comma", "long"]
)
@pytest.mark.sampled(2)
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    with EmbeddedServer.start(tmp_path / name) as server:
        assert ask(server.url, "SELECT current_database()") == "servicebroker"
        socket = Path(str(ask(server.url, "SHOW unix_socket_directories")).strip('"').replace('""', '"'))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        second_opener = opener(tmp_path / name)
    second_opener.communicate("close\n", timeout=20)
    assert postmaster(tmp_path / name) is None
    assert socket.exists() == (socket.parent == tmp_path / name), "a temporary socket folder goes with its server"


def test_a_socket_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("l" * 150)
    monkeypatch.setattr(tempfile, "tempdir", str(short := Path(tempfile.mkdtemp())))
    try:
        EmbeddedServer.start(folder).close()
        name = cluster.Cluster(folder, cluster.server_user())._socket_folder()
        name.rmdir()
        name.symlink_to(tmp_path)
        with pytest.raises(InstanceError, match="belongs to another user"):
            EmbeddedServer.start(folder)
        name.unlink()
        name.mkdir()
        name.chmod(0o777)
        with pytest.raises(InstanceError, match="belongs to another user"):
            EmbeddedServer.start(folder)
        assert postmaster(folder) is None
    finally:
        shutil.rmtree(short)


def test_a_link_and_a_relative_path_lead_to_the_same_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer.start(folder) as server:
        folder.with_name("link").symlink_to(folder)
        monkeypatch.chdir(folder.parent)
        for path in ("link", "data"):
            with EmbeddedServer.start(path) as same:
                assert same.url == server.url


def test_a_copied_folder_is_not_the_original(folder: Path) -> None:
    copy = folder.with_name("copy")
    EmbeddedServer.start(folder).close()
    subprocess.run(["cp", "-a", folder, copy], check=True)
    with EmbeddedServer.start(folder) as server:
        with EmbeddedServer.start(copy, accepts_copies=True) as other:
            assert other.url != server.url
            assert postmaster(copy) != postmaster(folder)
        assert ask(server.url, "SELECT 1") == 1
        pid_file = "postgresql/postmaster.pid"
        subprocess.run(["cp", "-a", folder / pid_file, copy / pid_file], check=True)
        with pytest.raises(InstanceError, match="while the server there ran"):
            EmbeddedServer.start(copy, accepts_copies=True)


def test_the_url_works_for_adbc(folder: Path) -> None:
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with (
        EmbeddedServer.start(folder) as server,
        adbc.connect(server.url) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT current_user::text")
        assert cursor.fetchone() == ("servicebroker",)


# --- refusals: one sentence that says what to do ---


def refusal(folder: Path) -> str:
    with pytest.raises(InstanceError) as error:
        EmbeddedServer.start(folder)
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_a_file_is_no_data_folder(empty: Path) -> None:
    empty.write_text("")
    assert "is a file" in refusal(empty)
    assert "Not a directory" in refusal(empty / "below")


def test_a_line_break_is_refused(tmp_path: Path) -> None:
    assert "line break" in refusal(tmp_path / "a\nb")


@needs_root
def test_a_folder_of_another_user_is_refused(empty: Path) -> None:
    empty.mkdir()
    os.chown(empty, pwd.getpwnam("nobody").pw_uid, -1)
    assert "belongs to user nobody" in refusal(empty)
    assert list(empty.iterdir()) == []


@needs_root
def test_a_cluster_of_another_user_is_refused(folder: Path) -> None:
    EmbeddedServer.start(folder).close()
    os.chown(folder / "postgresql", pwd.getpwnam("nobody").pw_uid, -1)
    assert "nobody" in refusal(folder)


def test_a_folder_open_to_everybody_is_refused(empty: Path) -> None:
    empty.mkdir()
    empty.chmod(0o777)
    assert "Anybody may write" in refusal(empty)


@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(empty: Path) -> None:
    empty.mkdir(mode=0o500)
    assert "cannot be used: Permission denied" in refusal(empty)


def test_a_cluster_of_another_version_is_refused(folder: Path) -> None:
    EmbeddedServer.start(folder).close()
    (folder / "postgresql/PG_VERSION").write_text("16\n")
    assert "made by PostgreSQL 16" in refusal(folder)
    (folder / "postgresql/PG_VERSION").unlink()
    assert "is not a PostgreSQL cluster" in refusal(folder)


def test_a_broken_setting_is_named(folder: Path) -> None:
    EmbeddedServer.start(folder).close()
    with (folder / "postgresql/postgresql.conf").open("a") as file:
        file.write("max_connections = many\n")
    text = refusal(folder)
    assert "postgresql.conf" in text
    assert str(folder / "postgresql.log") in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(megabytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=701", "tmpfs", str(disk)]
        if not ROOT or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("may not mount a small disk here")
        return disk

    yield mount
    kill(disk)
    subprocess.run(["umount", str(disk)], capture_output=True)


@pytest.mark.parametrize("megabytes", [1, 15, 35])
def test_a_full_disk_is_said_when_creating(small_disk: Callable[[int], Path], megabytes: int) -> None:
    disk = small_disk(megabytes)
    assert "is full" in refusal(disk)
    assert not list(disk.glob("postgresql*"))


def test_a_full_disk_is_said_when_starting(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(100)
    EmbeddedServer.start(disk).close()
    with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))
    assert "is full" in refusal(disk)
    (disk / "ballast").unlink()
    with EmbeddedServer.start(disk) as server:
        assert ask(server.url, "SELECT 1") == 1


def test_a_killed_server_is_restarted_by_its_openers(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = EmbeddedServer.start(folder), opener(folder)
    dead = postmaster(folder)
    kill(folder)
    eventually(lambda: postmaster(folder) not in (None, dead))
    # the start waits for the other opener
    with EmbeddedServer.start(folder) as third, psycopg.connect(third.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    first.close()
    second.communicate("close\n")


def test_a_log_that_is_deleted_under_the_server_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, said = folder / "postgresql.log", "was deleted or moved"
    with EmbeddedServer.start(folder):
        assert EmbeddedServer.lost_log(folder) is None
        path.unlink()
        eventually(lambda: said in caplog.text)
        lost = EmbeddedServer.lost_log(folder)
        assert lost is not None
        assert lost.path == path
        if lost.written is not None:
            assert "database system is ready" in lost.written.read_text()
        path.touch()  # another file of that name gets nothing
        assert EmbeddedServer.lost_log(folder) is not None or lost.written is None
        time.sleep(2 * embedded.CHECK_INTERVAL_S)
        assert caplog.text.count(said) == 1
    with EmbeddedServer.start(folder):
        assert EmbeddedServer.lost_log(folder) is None


def test_an_instance_whose_server_has_just_died_is_closed_without_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background task wants to cancel a statement, and no server accepts the request any more."""

    def fail_to_cancel(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("couldn't send cancellation")

    instance = sb.open(folder)
    eventually(lambda: instance._maintenance is not None and instance._maintenance._connection is not None)
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", fail_to_cancel)
    kill(folder)
    instance.close()


def test_a_server_that_was_left_stays_down(folder: Path) -> None:
    with EmbeddedServer.start(folder):
        pass
    time.sleep(1.2)  # two polls
    assert postmaster(folder) is None
