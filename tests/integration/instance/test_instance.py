"""Instances and transactions: opening, joining, misuse, and the loss of PostgreSQL."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

import servicebroker as sb
from servicebroker.store.embedded import EmbeddedServer
from support import (
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    begin,
    bodies,
    define_standard_set,
    eventually,
    in_thread,
    leftovers,
    open_dialog,
    query,
    queue_number,
    refused,
    standard_database,
    state,
    terminate_backend,
    wait_until_blocked,
    waiting_reader,
)

# ---------------------------------------------------------------- opening


def test_a_second_statement_reuses_the_spare_connection(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"")
    pool = database.instance._pool
    asked = pool.get_stats()["requests_num"]
    for _ in range(50):
        database.send(handle, ORDER, b"")
    assert pool.get_stats()["requests_num"] <= asked + 1  # the spare connection returns to the pool once a minute


def test_no_caller_waits_while_a_spare_connection_is_free(make_instance_url: Callable[..., str]) -> None:
    """There are more threads than connections, and both come and go."""
    with sb.Instance(make_instance_url(1), upkeep=None, connections=2) as instance:
        database = instance.database("Test")
        handles = [begin(database) for _ in range(6)]

        def send(handle: UUID) -> int:
            return max(database.send(handle, ORDER, b"") for _ in range(50))

        sending = [in_thread(send, handle) for handle in handles]
        assert [sent.result(timeout=20) for sent in sending] == [49] * 6


def test_spare_connections_are_closed_with_the_instance(make_instance_url: Callable[..., str]) -> None:
    with sb.open(make_instance_url(1), upkeep=None) as instance:
        url, pool = instance.url, instance._pool
        database = instance.database("Test")
        begin(database)
    ours = "select from pg_stat_activity where datname = current_database() and application_name = 'servicebroker'"
    with psycopg.connect(url, autocommit=True) as other_connection:
        eventually(lambda: not other_connection.execute(ours).fetchall())
    assert pool.get_stats()["pool_available"] == 0
    with pytest.raises(sb.InstanceError, match="closed"):
        database.send(UUID(int=1), ORDER, b"")


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
    outputs = {process.communicate(timeout=300)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 3
    assert len(outputs) == 1
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


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/x", "postgresql:///nosuch?host=/no/where"])
def test_a_server_that_cannot_be_reached(url: str) -> None:
    with pytest.raises(sb.InstanceError, match="Cannot connect to PostgreSQL"):
        sb.open(url)


@pytest.fixture
def as_limited_role(make_url: Callable[[], str], server: EmbeddedServer) -> Callable[[bool], str]:
    """Return a function for URLs of databases where each session has a role without superuser rights."""

    def make(may_create: bool) -> str:
        url = make_url()
        name = url.split("///")[1].split("?")[0]
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"create role limited_{name} nosuperuser")  # type: ignore[call-overload]
            connection.execute(f"alter database {name} set role = 'limited_{name}'")  # type: ignore[call-overload]
            if may_create:
                connection.execute(f"grant create on database {name} to limited_{name}")  # type: ignore[call-overload]
        return url

    return make


def test_a_role_without_superuser_rights_can_use_an_instance(as_limited_role: Callable[[bool], str]) -> None:
    with sb.open(as_limited_role(True)) as instance:
        database = define_standard_set(instance.database("Mine", create=True))
        assert query(database, "select current_setting('is_superuser')") == [("off",)]
        initiator, target = open_dialog(database)
        database.begin_conversation_timer(initiator, 0)
        database.send(target, REPLY, b"x")
        reader = in_thread(database.receive, STOCK_QUEUE, wait=30)
        eventually(lambda: instance.notifier._waiting)
        database.send(initiator, ORDER, b"wake")
        assert bodies(reader.result(10)) == [b"wake"]
        assert bodies(database.receive(ORDERS_QUEUE)) == [None, b"x"]
        assert query(database, "select count(*) from mine_dbo.stockqueue") == [(0,)]


def test_a_role_without_create_on_the_database_is_refused(as_limited_role: Callable[[bool], str]) -> None:
    with pytest.raises(sb.InstanceError, match="the role needs CREATE"):
        sb.open(as_limited_role(False))


def test_a_role_without_privileges_on_the_schema_is_refused(
    make_url: Callable[[], str], server: EmbeddedServer
) -> None:
    url = make_url()
    with sb.open(url) as instance:
        instance.database("Theirs", create=True)
    name = url.split("///")[1].split("?")[0]
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create role stranger_{name}")  # type: ignore[call-overload]
        connection.execute(f"alter database {name} set role = 'stranger_{name}'")  # type: ignore[call-overload]
    with pytest.raises(sb.InstanceError, match="may not create or use"):
        sb.open(url)


@pytest.mark.parametrize("target", [None, "", b"postgres://", 5, []])
def test_a_target_that_is_neither_a_folder_nor_a_url_is_refused(
    target: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sb.InstanceError, match="data folder or a PostgreSQL URL, not by"):
        sb.open(target)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_closed_instance_raises(make_url: Callable[[], str]) -> None:
    with sb.open(make_url()) as instance:
        database = instance.database("msdb")
    instance.close()  # a second close does nothing
    with pytest.raises(sb.InstanceError, match="is closed"):
        database.receive("Q")
    with pytest.raises(sb.InstanceError, match="is closed"), database.transaction():
        pass
    with pytest.raises(sb.InstanceError, match="is closed"):
        instance.status()


def test_a_garbage_collected_instance_warns_and_its_threads_end(make_url: Callable[[], str]) -> None:
    before = {*threading.enumerate()}
    collected = sb.open(make_url())
    collected.database("Test", create=True).create_queue("Queue")
    collected.database("Test").receive("Queue", wait=0.01)  # starts the notifier
    mine = {*threading.enumerate()} - before
    assert mine
    del collected
    with pytest.warns(ResourceWarning, match="An instance was garbage-collected but never closed"):
        gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in mine if "lost sessions" not in thread.name), 30)


def test_a_forked_child_opens_the_instance_for_itself(make_url: Callable[[], str]) -> None:
    with sb.open(make_url()) as instance:
        database = standard_database(instance)
        handle = begin(database)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with suppress(BaseException):
                for verb in (instance.open, instance.status, lambda: database.receive(STOCK_QUEUE, wait=60)):
                    with pytest.raises(sb.InstanceError, match="forked"):
                        verb()
                instance.close()
                with sb.open(instance.url) as own:
                    own.database("Test").send(handle, ORDER, b"child")
                os._exit(0)
            os._exit(1)
        database.send(handle, ORDER, b"parent")
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(bodies(database.receive(STOCK_QUEUE))) == [b"child", b"parent"]


# ---------------------------------------------------------------- transactions


@pytest.mark.feature(52)
def test_messages_and_the_applications_rows_commit_together(database: sb.Database) -> None:
    with database.transaction() as transaction:
        transaction.connection.execute("create table together (id int primary key)")
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"1")
    with database.transaction() as transaction:
        (message,) = transaction.receive(STOCK_QUEUE)
        transaction.connection.execute("insert into together values (%s)", (message.message_body.decode(),))
        transaction.send(target, REPLY, b"done")
    assert query(database, "select id from together") == [(1,)]
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"done"]
    database.send(initiator, ORDER, b"1")
    with pytest.raises(psycopg.errors.UniqueViolation), database.transaction() as transaction:
        transaction.send(target, REPLY, b"lost")
        (message,) = transaction.receive(STOCK_QUEUE)
        transaction.connection.execute("insert into together values (%s)", (message.message_body.decode(),))
    assert database.receive(ORDERS_QUEUE) == []
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_refusal_does_not_spoil_the_transaction(database: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"kept")
        with refused(8432):
            transaction.send(handle, REPLY, b"x")
        with refused(8426):
            transaction.receive(STOCK_QUEUE, conversation_handle=handle)
        transaction.send(handle, ORDER, b"also kept")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept", b"also kept"]


def test_a_transaction_that_failed_inside_does_not_pretend_to_commit(database: sb.Database) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK and no error."""
    handle = begin(database)
    with pytest.raises(sb.InstanceError, match="undone"), database.transaction() as transaction:
        transaction.send(handle, ORDER, b"lost")
        with pytest.raises(psycopg.errors.DivisionByZero):
            transaction.connection.execute("select 1/0")
    assert database.receive(STOCK_QUEUE) == []
    assert state(database, handle) == "SO"


def test_a_verb_in_a_failed_transaction_raises_instance_error(database: sb.Database) -> None:
    handle = begin(database)
    with pytest.raises(sb.InstanceError, match="begin it again"), database.transaction() as transaction:
        with pytest.raises(psycopg.errors.DivisionByZero):
            transaction.connection.execute("select 1/0")
        transaction.send(handle, ORDER, b"x")


def test_a_transaction_is_of_no_use_after_its_block(database: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        pass
    with pytest.raises(sb.InstanceError, match="has ended"):
        transaction.send(handle, ORDER, b"x")
    with pytest.raises(sb.InstanceError, match="has ended"):
        transaction.receive(STOCK_QUEUE)
    assert state(database, handle) == "SO"


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_transaction_that_was_ended_on_its_connection(database: sb.Database, how: str) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x")
        getattr(transaction.connection, how)()
        with pytest.raises(sb.InstanceError, match="committed or rolled back"):
            transaction.end_conversation(handle)
    assert bodies(database.receive(STOCK_QUEUE)) == ([b"x"] if how == "commit" else [])


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException])
def test_any_interruption_rolls_back(fresh_database: sb.Database, interruption: type[BaseException]) -> None:
    with pytest.raises(interruption), fresh_database.transaction() as transaction:
        transaction.send(transaction.begin_dialog(ORDERS, "//nowhere"), body=b"x")
        raise interruption
    assert leftovers(fresh_database) == {}


def test_a_connection_is_usable_after_ctrl_c_in_a_statement(database: sb.Database) -> None:
    """The main thread waits for a lock when the signal comes. Its connection is usable afterwards."""
    handle, _ = open_dialog(database)
    with database.transaction() as holder:
        holder.send(handle, ORDER, b"held")

        def press() -> None:
            wait_until_blocked(database)
            os.kill(os.getpid(), signal.SIGINT)

        presser = in_thread(press)
        with pytest.raises(KeyboardInterrupt):
            database.send(handle, ORDER, b"interrupted")
        presser.result(10)
    database.send(handle, ORDER, b"after")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"held", b"after"]


def test_a_connection_is_usable_after_ctrl_c_in_the_first_statement(database: sb.Database) -> None:
    """BEGIN was sent together with a RECEIVE that waits for a lock."""
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"1")
    with database.transaction() as holder:
        holder.receive(STOCK_QUEUE, conversation_handle=target)

        def press() -> None:
            wait_until_blocked(database)
            os.kill(os.getpid(), signal.SIGINT)

        presser = in_thread(press)
        with pytest.raises(KeyboardInterrupt), database.transaction() as transaction:
            transaction.receive(STOCK_QUEUE, conversation_handle=target)
        presser.result(10)
    database.send(initiator, ORDER, b"2")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]


# ---------------------------------------------------------------- joining


@pytest.mark.parametrize("rows", [None, dict_row])
def test_verbs_join_a_transaction_of_the_application(database: sb.Database, rows: object) -> None:
    initiator, target = open_dialog(database)
    options = {"row_factory": rows} if rows else {}
    with psycopg.connect(database.instance.url, **options) as connection:  # type: ignore[call-overload]
        joined = database.join(connection)
        joined.send(initiator, ORDER, b"1")
        assert database.receive(STOCK_QUEUE) == []
        connection.commit()
        assert bodies(joined.receive(STOCK_QUEUE)) == [b"1"]
        joined.send(target, REPLY, b"lost")
        connection.rollback()
        assert bodies(joined.receive(STOCK_QUEUE)) == [b"1"]
        joined.begin_conversation_timer(target, 1000)
        joined.end_conversation(target)
        second = joined.begin_dialog(ORDERS, "//nowhere")
        joined.send(second, body=b"x")
    assert database.receive(STOCK_QUEUE) == []
    assert [message.is_end_dialog for message in database.receive(ORDERS_QUEUE)] == [True]
    assert state(database, second) == "CO"
    database.end_conversation(second, cleanup=True)


def test_a_rolled_back_savepoint_undoes_the_verbs_after_it(database: sb.Database) -> None:
    handle = begin(database)
    with psycopg.connect(database.instance.url) as connection:
        joined = database.join(connection)
        joined.send(handle, ORDER, b"kept")
        with pytest.raises(ZeroDivisionError), connection.transaction():
            joined.send(handle, ORDER, b"lost")
            raise ZeroDivisionError
        assert joined.send(handle, ORDER, b"kept too") == 1
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept", b"kept too"]


def test_joining_a_connection_in_autocommit_mode_makes_each_verb_a_transaction(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        joined = database.join(connection)
        joined.send(initiator, ORDER, b"1")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
        # all statements of END run in one transaction, so the advisory lock is held while it waits
        with database.transaction() as holder:
            holder.send(target, REPLY, b"first")
            ended = in_thread(joined.end_conversation, initiator)
            wait_until_blocked(database)
            locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
            assert query(database, locks, connection.info.backend_pid)[0][0] == 1
        ended.result(10)
        with connection.transaction():
            joined.send(joined.begin_dialog(ORDERS, "//nowhere"), body=b"x")
            assert query(database, "select count(*) from servicebroker.conversation_endpoints where state = 'SO'")
    assert [message.is_end_dialog for message in database.receive(STOCK_QUEUE)] == [True]


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_joined_connection_keeps_its_encoding(fresh_database: sb.Database, encoding: str, autocommit: bool) -> None:
    """The verbs accept and return any name, and the connection keeps its encoding."""
    fresh_database.define(
        {
            "message_types": {"//注文": "NONE"},
            "contracts": {"//契約": {"//注文": "ANY"}},
            "queues": {"待ち": {}},
            "services": {"//倉庫": {"queue": "待ち", "contracts": ["//契約"]}},
        }
    )
    with psycopg.connect(fresh_database.instance.url, autocommit=autocommit) as connection:
        connection.execute(f"set client_encoding to '{encoding}'")  # type: ignore[call-overload]
        connection.commit()
        shown = (connection.execute("show client_encoding").fetchone(), connection.rollback())[0]
        verbs = fresh_database.join(connection)
        handle = verbs.begin_dialog("//倉庫", "//倉庫", contract="//契約")
        verbs.send(handle, "//注文", b"x")
        assert connection.execute("show client_encoding").fetchone() == shown
        connection.commit()
        with pytest.raises(sb.BrokerError, match="//拒否"):
            verbs.send(handle, "//拒否", b"x")
        assert connection.execute("show client_encoding").fetchone() == shown
        (message,) = verbs.receive("待ち")
        assert message.service_name == "//倉庫"
        with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
            verbs.send(message.conversation_handle, "//注文", b"y")
            connection.execute("select 1 / 0")
        connection.rollback()
        assert connection.execute("show client_encoding").fetchone() == shown


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_verb_in_a_pipeline_of_the_application_does_nothing(database: sb.Database, autocommit: bool) -> None:
    handle, _ = open_dialog(database)
    database.send(handle, ORDER, b"stays")
    with psycopg.connect(database.instance.url, autocommit=autocommit) as connection:
        verbs = database.join(connection)
        with connection.pipeline():
            connection.execute("select 1")
            for verb in (lambda: verbs.receive(STOCK_QUEUE), lambda: verbs.send(handle, ORDER, b"not sent")):
                with pytest.raises(sb.InstanceError, match="pipeline mode"):
                    verb()
    with database.transaction() as transaction:
        with transaction.connection.pipeline(), pytest.raises(sb.InstanceError, match="pipeline mode"):
            transaction.receive(STOCK_QUEUE)
        assert bodies(transaction.receive(STOCK_QUEUE)) == [b"stays"]


# ---------------------------------------------------------------- loss of PostgreSQL


def test_a_connection_whose_prepared_statements_are_gone(make_url: Callable[[], str]) -> None:
    """DISCARD ALL on a pool connection goes unnoticed. Inside a transaction it causes a rollback and an error."""
    with sb.Instance(make_url(), upkeep=None, connections=1) as instance:
        database = standard_database(instance)
        handle = begin(database)
        for number in range(3):
            assert database.send(handle, ORDER, b"x") == number
            with instance.connection() as connection:
                connection.execute("discard all")
        with database.transaction() as transaction:
            assert transaction.send(handle, ORDER, b"x") == 3
        with pytest.raises(sb.InstanceError, match="begin it again"), database.transaction() as transaction:
            transaction.send(handle, ORDER, b"lost")
            transaction.connection.execute("deallocate all")
            transaction.send(handle, ORDER, b"lost")
        with database.transaction() as transaction:
            assert transaction.send(handle, ORDER, b"x") == 4


def test_verbs_on_a_closed_connection_raise(database: sb.Database) -> None:
    connection = psycopg.connect(database.instance.url)
    joined = database.join(connection)
    joined.receive(STOCK_QUEUE)
    connection.close()
    with pytest.raises(sb.InstanceError), joined.savepoint():
        pass
    with pytest.raises(sb.InstanceError, match="connection is closed"):
        joined.receive(STOCK_QUEUE)
    joined.release_locks()  # they were lost with the connection


def test_a_connection_that_is_killed_in_a_transaction(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"kept")
    for place in ("verb", "commit", "statement", "error"):
        expected = ZeroDivisionError if place == "error" else sb.InstanceError
        with pytest.raises(expected), database.transaction() as transaction:
            assert bodies(transaction.receive(STOCK_QUEUE)) == [b"kept"]
            transaction.send(handle, ORDER, b"lost")
            terminate_backend(transaction.connection)
            if place == "verb":
                transaction.send(handle, ORDER, b"x")
            if place == "statement":
                transaction.connection.execute("select 1")
            if place == "error":
                raise ZeroDivisionError
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept"]
    assert database.send(handle, ORDER, b"next") == 1


def test_connections_that_are_killed_while_idle(database: sb.Database) -> None:
    """One verb may meet a dead connection; then all dead ones are removed."""
    handle = begin(database)
    with database.transaction(), database.transaction(), database.transaction():
        pass
    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and application_name = 'servicebroker'"
        )
    with pytest.raises(sb.InstanceError, match="went away"):
        database.send(handle, ORDER, b"x")
    for number in range(5):
        assert database.send(handle, ORDER, b"x") == number
    with database.transaction(), database.transaction(), database.transaction():
        pass


def test_the_notifier_works_again_after_its_connections_were_killed(database: sb.Database) -> None:
    handle = begin(database)
    assert database.receive(STOCK_QUEUE, wait=0.01) == []
    kill = (
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() "
        "and application_name in ('servicebroker notifier', 'servicebroker waiting readers')"
    )
    listening = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name = 'servicebroker notifier'"
    )
    assert len(query(database, kill)) == 2
    eventually(lambda: query(database, listening) == [(1,)])
    reader = in_thread(lambda: (database.receive(STOCK_QUEUE, wait=30), time.monotonic()))
    eventually(lambda: query(database, "select count(*) from servicebroker.waiting_readers") == [(1,)])
    time.sleep(0.1)  # the reader has polled for the second time
    sent = time.monotonic()
    database.send(handle, ORDER, b"x")
    messages, woke = reader.result(10)
    assert bodies(messages) == [b"x"]
    assert woke - sent < 0.3


def test_a_second_wait_needs_no_new_plan(database: sb.Database) -> None:
    for _ in range(2):
        assert database.receive(STOCK_QUEUE, wait=0.01) == []
    registrar = database.instance.notifier._registrar
    assert registrar is not None
    runs = registrar.execute("select generic_plans + custom_plans from pg_prepared_statements").fetchall()
    assert len(runs) == 2  # of registering and unregistering
    assert min(runs) >= (2,)


@pytest.mark.usefixtures("without_polls")
def test_the_notifier_survives_notifications_of_others(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    reader = waiting_reader(database)
    for payload in ("", "x", "1 2 3", "-", "9" * 5000):
        query(database, "select pg_notify('servicebroker', %s)", payload)
    database.send(handle, ORDER, b"rings")
    assert bodies(reader.result(15)) == [b"rings"]


@pytest.mark.slow
def test_postgresql_is_killed_under_an_open_instance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server is started again within 5 s; a waiting reader goes on and gets its message."""
    with sb.open(tmp_path / "data") as instance:
        database = define_standard_set(instance.database("T", create=True))
        handle = begin(database)
        database.send(handle, ORDER, b"before")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"before"]
        reader = in_thread(database.receive, STOCK_QUEUE, wait=60)
        eventually(lambda: instance.notifier.count_asleep(queue_number(database, STOCK_QUEUE)))
        server = int((tmp_path / "data/postgresql/postmaster.pid").read_text().split()[0])
        os.kill(server, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{server}/cwd").exists())  # until then, its sessions still answer
        died = time.monotonic()

        def works() -> bool:
            try:
                return database.send(handle, ORDER, b"after") == 1
            except sb.InstanceError as problem:
                assert "\n" not in str(problem)  # noqa: PT017 # in between
                return False

        eventually(works)
        assert time.monotonic() - died < 20  # 5 on an idle machine
        assert bodies(reader.result(20)) == [b"after"]
        assert int((tmp_path / "data/postgresql/postmaster.pid").read_text().split()[0]) != server
    assert f"(process {server}) was killed: its log says nothing of an end. It is started again." in caplog.text
