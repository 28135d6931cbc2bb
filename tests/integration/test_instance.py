"""Instances and transactions: opening, joining, misuse, and what happens when PostgreSQL goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import servicebroker as sb
from support import (
    ORDER,
    STOCK_QUEUE,
    begin,
    bodies,
    define_standard_set,
    eventually,
    in_thread,
    query,
    queue_number,
)

# ---------------------------------------------------------------- opening


def test_two_processes_open_a_new_instance_at_once(make_url: Callable[[], str]) -> None:
    url = make_url()
    program = (
        "import sys, servicebroker as sb\n"
        "sys.stdin.readline()\n"
        "with sb.open(sys.argv[1]) as instance:\n"
        "    database = instance.database('Shared', create=True)\n"
        "    print(database.database_id)\n"
    )
    command = [sys.executable, "-c", program, url]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    said = {process.communicate(timeout=300)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 3
    assert len(said) == 1
    with sb.open(url) as instance:
        rows = query(instance.database("shared"), "select number, name from servicebroker.migrations")
    assert len(rows) == len({number for number, _ in rows})


def test_many_threads_open_a_new_instance_at_once(make_url: Callable[[], str]) -> None:
    url = make_url()

    def open_and_close() -> None:
        with sb.open(url) as instance:
            instance.database("msdb")

    for opened in [in_thread(open_and_close) for _ in range(4)]:
        opened.result(30)


def test_an_instance_of_a_newer_version_is_left_alone(make_url: Callable[[], str]) -> None:
    url = make_url()
    with sb.open(url) as instance, instance.connection() as connection:
        connection.execute("insert into servicebroker.migrations (number, name) values (9999, 'future')")
    with pytest.raises(sb.InstanceError, match="upgrade servicebroker"):
        sb.open(url)


@pytest.mark.slow
def test_postgresql_is_killed_under_an_open_instance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is started again within 5 s; who waits for a message goes on waiting, and gets it."""
    with sb.open(tmp_path / "data") as instance:
        database = define_standard_set(instance.database("T", create=True))
        handle = begin(database)
        database.send(handle, ORDER, b"before")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"before"]
        reader = in_thread(database.receive, STOCK_QUEUE, wait=60)
        eventually(lambda: instance.doorbell.waiting(queue_number(database, STOCK_QUEUE)))
        server = int((tmp_path / "data/postgresql/postmaster.pid").read_text().split()[0])
        os.kill(server, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{server}/cwd").exists())  # until then its sessions still answer
        died = time.monotonic()

        def works() -> bool:
            try:
                return database.send(handle, ORDER, b"after") == 1
            except sb.InstanceError as problem:
                assert "\n" not in str(problem)  # noqa: PT017 # in between
                return False

        eventually(works)
        assert time.monotonic() - died < 20  # 5 on a machine that has nothing else to do
        assert bodies(reader.result(20)) == [b"after"]
        assert int((tmp_path / "data/postgresql/postmaster.pid").read_text().split()[0]) != server
    assert f"(process {server}) was killed: its log says nothing of an end. It is started again." in caplog.text
