"""`servicebroker doctor` on instances with real problems."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.keys import x509_certificates
from support import (
    APP,
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    eventually,
    peer_handle,
    query,
    queue_number,
    rolled_back,
)


def run_doctor(instance: sb.Instance, *options: object) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["doctor", "--instance", instance.url, *map(str, options)])
    return result.exit_code, result.output


def findings_of(database: sb.Database, handle: object) -> str:
    code, text = run_doctor(database.instance, "--database", database.name, "--conversation", handle)
    assert code == (0 if text.startswith("Nothing") else 1)
    return text


def test_a_server_that_became_read_only_is_named(make_url: Callable[[], str]) -> None:
    """A managed server becomes read-only when its disk is nearly full."""
    made, empty = make_url(), make_url()
    sb.open(made).close()
    for url in (made, empty):
        with psycopg.connect(url, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    with sb.open(made) as instance:
        code, text = run_doctor(instance)
    assert (code, "default_transaction_read_only is on" in text, "make room" in text) == (1, True, True)
    with pytest.raises(sb.InstanceError, match="make room or switch that setting off"):
        sb.open(empty)


@pytest.mark.feature(202)
def test_doctor_reports_problems_of_the_configuration(fresh_database: sb.Database, server: EmbeddedServer) -> None:
    database, instance = fresh_database, fresh_database.instance
    code, text = run_doctor(instance)
    assert (code, "fsync is off" in text, text.count("\n  ")) == (1, True, 1)  # the server of the tests
    database.send(database.begin_dialog(ORDERS, "//nowhere", contract=CONTRACT), ORDER, b"x")
    database.create_queue("Idle", activation=sb.Activation("dbo.nobody", 1, "OWNER"))
    database.alter_queue(STOCK_QUEUE, status=False)
    database.create_route("far", service_name="//far", address="TCP://far:4022")
    other_database = instance.database("Other", create=True)
    other_database.alter(disable_broker=True)
    findings = json.loads(run_doctor(instance, "--json")[1])["findings"]
    said = {finding["subject"]: finding["problem"] for finding in findings if finding["subject"] != "PostgreSQL"}
    assert said["queue Test.dbo.StockQueue"].startswith("It is OFF")
    assert said["queue Test.dbo.Idle"].startswith("Nobody runs its activation procedure")
    assert "1 message to it waits" in said["service //nowhere"]
    assert "database Other" in said
    assert "network" in said
    assert all(finding["advice"] for finding in findings)


def test_a_conversation_names_its_dead_letters(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"x")
    database.process(STOCK_QUEUE, lambda tx, messages: {}["jug"], poison=lambda failure: sb.SetAside())
    (letter,) = database.set_aside_messages()
    where = f"dead letter {letter.set_aside_id} of Test.dbo.{STOCK_QUEUE}"
    text = f"Message 0 ({ORDER}) is {where}, since it failed 1 time: KeyError: 'jug'"
    assert text in findings_of(database, handle)
    assert text in findings_of(database, letter.conversation_handle)
    assert text in run_doctor(database.instance, "--conversation", handle)[1]
    words = ["doctor", "--instance", database.instance.url, "--conversation", str(handle)]
    assert text in CliRunner().invoke(command, words, env={"SERVICEBROKER_DATABASE": database.name}).output


def test_a_message_whose_conversation_was_ended_has_not_failed(database: sb.Database) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(command, [*words, "--instance", database.instance.url])
        assert result.exit_code in (0, 1), result.output
        return result.output

    handle = begin(database)
    database.send(handle, ORDER, b"x")
    database.process(STOCK_QUEUE, lambda tx, messages: {}["jug"], poison=lambda failure: sb.Retry(600))
    target = peer_handle(database, handle)
    assert f"conversation {target} has failed 1 time" in run("poison", "list")
    assert f"queue {database.name}.dbo.{STOCK_QUEUE}: 1 message has failed" in run("doctor")
    with database.transaction() as transaction:
        transaction.end_conversation(target, error=(127, "gone"))  # leaves the row of the failure
    assert str(target) not in run("poison", "list")
    assert f"{database.name}.dbo.{STOCK_QUEUE}: 1 message has failed" not in run("doctor")
    retried = run("poison", "retry", STOCK_QUEUE, "--database", database.name)
    assert retried == f"The queue {STOCK_QUEUE} is ON; no failed message waits for its next try.\n"
    with database.transaction() as transaction:
        assert transaction.receive(ORDERS_QUEUE)  # the Error, which later tests would see
        transaction.end_conversation(handle)


def test_poison_end_removes_the_row_of_the_failure(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"x")
    database.process(STOCK_QUEUE, lambda tx, messages: {}["jug"], poison=lambda failure: sb.Retry(600))
    target = peer_handle(database, handle)
    rows = "select count(*) from servicebroker.failed_messages where conversation_handle = %s"
    with database.instance.connection() as connection:
        assert connection.execute(rows, (target,)).fetchall() == [(1,)]
        words = ["poison", "end", str(target), "--database", database.name, "--instance", database.instance.url]
        assert CliRunner().invoke(command, words).exit_code == 0
        assert connection.execute(rows, (target,)).fetchall() == [(0,)]
    with database.transaction() as transaction:
        assert transaction.receive(ORDERS_QUEUE)  # the Error, which later tests would see
        transaction.end_conversation(handle)


def test_the_password_of_a_url_is_not_printed(database: sb.Database) -> None:
    url = database.instance.url
    url = f"{url}{'&' if '?' in url else '?'}password=hunter2"
    for words in (["init"], ["init", "--json"], ["status"], ["status", "--json"], ["doctor"]):
        result = CliRunner().invoke(command, [*words, "--instance", url])
        assert result.exit_code in (0, 1), result.output
        assert "hunter2" not in result.output, words


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_procedure_that_ends_without_a_receive(fresh_database: sb.Database, ends: str) -> None:
    def procedure(database: sb.Database) -> None:
        if ends == "raises":
            raise ValueError

    database = fresh_database
    sb.procedure("usp_Stock", form="database")(procedure)
    handle = begin(database)
    database.send(handle, ORDER, b"x")
    database.alter_queue(STOCK_QUEUE, activation=sb.Activation("usp_Stock", 1, "OWNER", status=True))
    with sb.activate(database.instance):
        events = database.instance.events
        eventually(lambda: any(event.subclass == "Aborted" for event in events.recent()))
        assert "usp_Stock" not in run_doctor(database.instance)[1]
        with database.instance.connection() as connection:
            number = queue_number(database, STOCK_QUEUE)
            connection.execute(f"update servicebroker.queue_{number} set message_enqueue_time = now() - interval '1 h'")
            connection.execute("update servicebroker.queue_monitors set last_activated_time = now() - interval '1 h'")
        text = run_doctor(database.instance)[1]
        assert "Its procedure [Test].[dbo].[usp_Stock] was started 60 minutes ago, runs no more" in text
        assert "ACTIVATION (STATUS = OFF), and ON" in text
        assert "The activation procedure has not received its 1 message" in findings_of(
            database, peer_handle(database, handle)
        )
        database.receive(STOCK_QUEUE)
        assert "usp_Stock" not in run_doctor(database.instance)[1]


@pytest.mark.feature(202)
def test_a_conversation_that_is_stuck(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    assert findings_of(database, handle) == "Nothing wrong was found.\n"
    database.send(handle, ORDER, b"x")
    far = peer_handle(database, handle)
    assert "The other side has not received 1 message in" in findings_of(database, handle)
    assert findings_of(database, far) == "Nothing wrong was found.\n"  # the message is too young for a finding
    missing = database.begin_dialog(ORDERS, "//nowhere", contract=CONTRACT)
    database.send(missing, ORDER, b"x")
    assert "create a route" in findings_of(database, missing)
    refused = database.begin_dialog(ORDERS, STOCK)  # the DEFAULT contract
    database.send(refused, sb.DEFAULT, b"x")
    assert "-8408" in findings_of(database, refused)
    database.create_user(APP)
    database.create_queue("AppQueue")
    database.create_service("//test/App", "AppQueue", authorization=APP)
    denied = database.begin_dialog("//test/App", STOCK, contract=CONTRACT)
    database.send(denied, ORDER, b"x")
    assert "GRANT SEND" in findings_of(database, denied)
    for _ in range(5):
        with rolled_back(database) as transaction:
            transaction.receive(STOCK_QUEUE)
    assert "is OFF" in findings_of(database, far)
    database.alter_queue(STOCK_QUEUE, status=True)

    def failing(transaction: sb.Transaction, messages: Any) -> None:
        raise ValueError("no such customer")

    database.process(STOCK_QUEUE, failing, poison=lambda failure: sb.Retry(after=60))
    assert "ValueError: no such customer" in findings_of(database, far)
    clock.jump(seconds=61)
    database.process(STOCK_QUEUE, lambda transaction, messages: None, poison=sb.give_up_after())
    assert findings_of(database, far) == "Nothing wrong was found.\n"
    code, text = run_doctor(database.instance, "--database", database.name, "--conversation", APP)
    assert code == 2
    assert "--conversation" in text


def test_a_transaction_that_holds_the_group(database: sb.Database) -> None:
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    far = peer_handle(database, handle)
    with database.transaction() as transaction:
        transaction.receive(STOCK_QUEUE, top=1)
        pid = transaction.connection.info.backend_pid
        transaction.connection.execute("select pg_sleep(5.2)")
        text = findings_of(database, far)
    assert f"Session {pid} holds its conversation group" in text
    assert f"pg_terminate_backend({pid})" in text
    assert database.receive(ORDERS_QUEUE) == []


def test_a_sender_is_not_counted_as_a_reader(database: sb.Database) -> None:
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    with database.instance.connection() as connection:
        table = f"servicebroker.queue_{queue_number(database, STOCK_QUEUE)}"
        connection.execute(f"update {table} set message_enqueue_time = now() - interval '11 s'")  # type: ignore[call-overload]
    with database.transaction() as sender:
        sender.send(handle, ORDER, b"3")
        assert "Nobody receives: 2 messages" in run_doctor(database.instance)[1]
    with database.transaction() as reader:
        assert reader.receive(STOCK_QUEUE, top=1)
        assert "Nobody receives" not in run_doctor(database.instance)[1]
        reader.connection.rollback()


def test_a_killed_reader_does_not_count_as_a_receiver(database: sb.Database) -> None:
    """The row of a killed reader stays until another reader waits."""
    handle = begin(database)
    code = (
        "import servicebroker, sys; servicebroker.open(sys.argv[1]).database(sys.argv[2]).receive(sys.argv[3], wait=60)"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, database.instance.url, database.name, ORDERS_QUEUE])
    waits = "select count(*) from servicebroker.waiting_readers where not is_monitor"
    try:
        eventually(lambda: query(database, waits) == [(1,)], 30)
    finally:
        reader.kill()
        reader.wait()
    database.send_batch(handle, ORDER, [b"1", b"2"])
    database.send(peer_handle(database, handle), REPLY, b"reply")
    with database.instance.connection() as connection:
        table = f"servicebroker.queue_{queue_number(database, ORDERS_QUEUE)}"
        connection.execute(f"update {table} set message_enqueue_time = now() - interval '11 s'")  # type: ignore[call-overload]
    eventually(lambda: "Nobody receives: 1 message" in run_doctor(database.instance)[1])
    assert query(database, waits) == [(1,)]


def test_while_the_database_is_down(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["doctor", "--json", "--instance", "postgresql://nobody@127.0.0.1:9/none"])
    (finding,) = json.loads(result.stdout)["findings"]
    assert (result.exit_code, finding["subject"], "It is down" in finding["problem"]) == (1, "PostgreSQL", True)
    assert "Connection refused" in finding["problem"]
    (tmp_path / "postgresql").mkdir()  # an embedded server of which nothing else is left
    (tmp_path / "keys").mkdir(mode=0o700)
    facts, key = x509_certificates.make("west", datetime(2020, 1, 1, tzinfo=UTC), 366)
    identity = x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der)
    (tmp_path / "keys" / f"{facts.thumbprint.hex()}.pem").write_bytes(identity)
    result = CliRunner().invoke(command, ["doctor", "--instance", str(tmp_path)])
    assert (result.exit_code, result.output.count("\n  ")) == (1, 2), result.output
    assert "It is down, so doctor can check little" in result.output
    assert "has expired on 2021-01-01" in result.output
