"""doctor, status and check while applications are stuck: they have deadlines, and change nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from daemons import Site
from mirrored_servers import Server
from servicebroker.cli import diagnosed_instance
from servicebroker.cli.diagnosed_instance import diagnose
from servicebroker.cli.main import app as command
from servicebroker.engine.diagnosis import session_findings
from servicebroker.engine.diagnosis.queue_counts import is_standby
from servicebroker.store.migrations import migrations, this_version
from support import ORDER, STOCK_QUEUE, begin, eventually, standard_database

COMMANDS = (("doctor", "--json"), ("status", "--json"), ("status", "--statements"), ("check", "--json"))


def invoke(url: str, *arguments: str) -> tuple[int, str]:
    """Run a command, and return its exit code and standard output."""
    result = CliRunner().invoke(command, [*arguments, "--instance", url], catch_exceptions=False)
    return result.exit_code, result.stdout


def run_doctor(url: str) -> list[dict[str, str]]:
    """Return the findings of doctor."""
    findings: list[dict[str, str]] = json.loads(invoke(url, "doctor", "--json")[1])["findings"]
    return findings


def problems(url: str, subject: str) -> list[str]:
    return [finding["problem"] for finding in run_doctor(url) if finding["subject"] == subject]


def rows(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text)  # type: ignore[call-overload]
        return [] if cursor.description is None else cursor.fetchall()


@pytest.fixture
def primary() -> Iterator[Server]:
    """Start a primary with an instance. Its commits do not wait for a standby yet."""
    folder = Path(tempfile.mkdtemp(prefix="servicebroker-primary-"))  # accessible for the server's user
    folder.chmod(0o755)
    server = Server(folder / "one")
    try:
        server.make(synchronous="")
        server.start()
        with sb.open(server.url, upkeep=None) as instance:
            standard_database(instance)
        yield server
    finally:
        server.close()
        shutil.rmtree(folder)


@pytest.mark.timeout(60)
def test_diagnosis_and_close_do_not_wait_for_a_lost_standby(primary: Server) -> None:
    """Neither diagnosis nor close waits. A SEND does, and doctor reports it and its cause."""
    url = primary.url
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        handle = begin(database)
        primary.set_synchronous("standby")
        sender = threading.Thread(target=database.send, args=(handle, ORDER, b"x"), daemon=True)
        sender.start()
        eventually(lambda: rows(url, "select from pg_stat_activity where wait_event = 'SyncRep'"))
        for arguments in COMMANDS:
            began = time.monotonic()
            code, text = invoke(url, *arguments)
            assert time.monotonic() - began < 10
            assert text, arguments
            assert code == (arguments[0] == "doctor"), (arguments, text)
        (said,) = [problem for problem in problems(url, "PostgreSQL") if "synchronous standby" in problem]
        assert "(standby), which is not connected; 1 session waits, the first for " in said
        began = time.monotonic()
        sb.open(url, upkeep=None).close()
        assert time.monotonic() - began < 10
        primary.set_synchronous("")
        sender.join(20)
        assert not sender.is_alive()
        assert not [problem for problem in problems(url, "PostgreSQL") if "synchronous standby" in problem]
        assert [message.body for message in database.receive(STOCK_QUEUE)] == [b"x"]


def test_doctor_looks_at_a_server_that_no_application_may_use(make_instance_url: Callable[..., str]) -> None:
    """A crash would lose commits there. doctor reports that and everything else."""
    url = make_instance_url(1)
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    rows(url, "update servicebroker.queues set is_receive_enabled = false where name = 'StockQueue'")
    rows(url, f"alter database {name} set synchronous_commit = off")
    rows(url, f"alter database {name} set servicebroker.allow_data_loss = off")
    with pytest.raises(sb.InstanceError, match="synchronous_commit are off"):
        sb.open(url)
    told = {(finding["subject"], finding["problem"].partition(":")[0]) for finding in run_doctor(url)}
    assert {("PostgreSQL", "synchronous_commit is off"), ("PostgreSQL", "fsync is off")} <= told
    assert ("queue Test.dbo.StockQueue", "It is OFF, with 0 messages") in told


def test_the_schema_of_another_version_stays_as_it_is(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    last = migrations()[-1].number
    before = rows(url, "select number from servicebroker.migrations order by 1")
    rows(url, f"delete from servicebroker.migrations where number = {last}")
    for arguments in COMMANDS:
        invoke(url, *arguments)
    assert rows(url, "select number from servicebroker.migrations order by 1") == before[:-1]
    (said,) = problems(url, "schema")
    assert said.startswith(f"It is number {before[-2][0]}, of an older servicebroker than this one ({this_version()})")
    rows(url, "insert into servicebroker.migrations values (9999, 'of the future')")
    (said,) = problems(url, "schema")
    assert said.startswith("It is number 9999, of a newer servicebroker than this one")
    rows(url, "drop view sys.events; alter table servicebroker.routes rename to paths")
    unseen = problems(url, "doctor")
    assert any("The query of the network failed: relation" in problem for problem in unseen)
    assert "PostgreSQL" in {finding["subject"] for finding in run_doctor(url)}  # the rest is reported


def test_a_lock_on_a_table_cuts_the_looks_that_need_it(
    make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosed_instance, "LOCK_TIMEOUT_MS", 100)
    monkeypatch.setattr(diagnosed_instance, "LATER_TIMEOUT_MS", 100)
    monkeypatch.setattr(session_findings, "TABLE_LOCK_TIME", session_findings.TABLE_LOCK_TIME * 0)
    url = make_instance_url(1)
    with psycopg.connect(url) as holder:
        holder.execute("lock table servicebroker.routes")
        told = {finding["subject"]: finding["problem"] for finding in run_doctor(url) if finding["subject"] != "doctor"}
        assert "has locked servicebroker.routes against writes" in told[f"session {holder.info.backend_pid}"]
        unseen = problems(url, "doctor")
        assert "The query of the network failed: another session holds a lock that it needs." in unseen
        assert not any("queues" in problem for problem in unseen)
        holder.rollback()
        holder.execute("lock table servicebroker.conversation_endpoints")
        code, text = invoke(url, "status", "--json")
        assert (code, "queues" in {problem["subject"] for problem in json.loads(text)["unseen"]}) == (1, True)
        code, text = invoke(url, "check", "--json")
        assert code == 1
        assert "ownership and rights" not in {problem["subject"] for problem in json.loads(text)["unseen"]}
    assert problems(url, "doctor") == []


def test_a_server_that_answers_nothing_is_given_up(
    make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosed_instance, "ANSWER_TIMEOUT_S", 0.3)
    with diagnose(make_instance_url(), "servicebroker doctor") as opened:
        assert opened.query("its role", is_standby(), None) is False
        assert opened._connection is not None
        frozen = opened._connection.info.backend_pid
        os.kill(frozen, signal.SIGSTOP)
        try:
            assert opened.query("its role", is_standby(), None) is None
            (unseen,) = opened.failed_queries
            assert (unseen.subject, unseen.is_cut) == ("its role", True)
            assert opened.query("its role", is_standby(), None) is False  # through another connection
        finally:
            os.kill(frozen, signal.SIGCONT)


def test_a_daemon_of_another_version_is_named(make_instance_url: Callable[..., str], tmp_path: Path) -> None:
    site = Site("alone", make_instance_url(1), tmp_path)
    try:
        site.serve()
        reported = "select report from servicebroker.daemon_reports where subject = 'version'"
        eventually(lambda: rows(site.url, reported) == [(this_version(),)])
        assert not any("this is" in problem for problem in problems(site.url, "servicebroker serve"))
        rows(site.url, "update servicebroker.daemon_reports set report = 'of before' where subject = 'version'")
        assert f"It is of before, and this is {this_version()}." in problems(site.url, "servicebroker serve")
    finally:
        site.close()


def test_a_deleted_log_is_named_until_the_server_begins_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    sb.open(folder, upkeep=None).close()
    with sb.open(folder, upkeep=None):
        assert not any("Its log" in problem for problem in problems(str(folder), "PostgreSQL"))
        (folder / "postgresql.log").unlink()
        assert any(
            f"Its log '{folder}/postgresql.log' was deleted" in problem
            for problem in problems(str(folder), "PostgreSQL")
        )
    assert not any("Its log" in problem for problem in problems(str(folder), "PostgreSQL"))
