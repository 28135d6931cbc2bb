"""Requirements of a PostgreSQL server: no proxy that pools by transaction, durable commits; any time zone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

import servicebroker as sb
from pooling_proxy import PoolingProxy
from servicebroker.cli.main import app as command
from servicebroker.store.connection import connect
from servicebroker.store.embedded import EmbeddedServer
from support import ORDER, REPLY, STOCK_QUEUE, bodies, define_standard_set, open_dialog, query

MAY_LOSE = "servicebroker.allow_data_loss"


def alter(url: str, setting: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"alter role servicebroker in database {name} set {setting}")  # type: ignore[call-overload]


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_proxy_that_lends_its_sessions_is_refused(make_url: Callable[[], str], sessions: int) -> None:
    url = make_url()
    with (
        PoolingProxy(url, sessions) as proxied,
        pytest.raises(sb.InstanceError, match="pools sessions by transaction") as error,
    ):
        sb.open(proxied)
    assert "\n" not in str(error.value)
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regnamespace('servicebroker')").fetchall() == [(None,)]


def test_both_sides_give_up_a_lost_peer(make_url: Callable[[], str]) -> None:
    """The server by us, and we by the server, after half a minute or as the URL says."""
    url = make_url()
    theirs = "select reset_val from pg_settings where name = 'tcp_user_timeout'"
    with PoolingProxy(url) as proxied:
        for more, ours in ((" ", 20_000), (" tcp_user_timeout=7000 ", 7_000)):
            with connect(f"{proxied}{more}") as connection, socket.socket(fileno=os.dup(connection.fileno())) as tcp:
                assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == ours
                assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
                assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    for more, told in (("", "20000"), ("&options=-ctcp_user_timeout%3D7000", "7000")):
        with connect(f"{url}{more}") as connection:
            assert connection.execute(theirs).fetchall() == [(told,)]


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network of its own")
def test_a_lost_network_blocks_no_session() -> None:
    """A statement that waits fails, and what an idle session has locked is free, though no packet comes any more."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        script = Path(__file__).parents[2] / "vanished_network.py"
        command = ["unshare", "--net", sys.executable, str(script), folder]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def test_commits_that_do_not_wait_for_the_disk_are_refused(make_url: Callable[[], str], server: EmbeddedServer) -> None:
    """The server of the tests has fsync off, and allows that."""
    url = make_url()
    alter(url, f"{MAY_LOSE} = off")
    with pytest.raises(sb.InstanceError, match=f"fsync is off.*SET {MAY_LOSE} = on"):
        sb.open(url)
    alter(url, "synchronous_commit = off")
    with pytest.raises(sb.InstanceError, match="fsync and synchronous_commit are off"):
        sb.open(url)
    alter(url, f"{MAY_LOSE} = on")
    sb.open(url).close()


def test_a_proxy_that_ignores_our_options(make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_url()
    alter(url, "timezone = 'Asia/Kolkata'")
    alter(url, "default_transaction_isolation = 'serializable'")
    alter(url, "idle_session_timeout = '10min'")
    monkeypatch.setattr("servicebroker.store.connection._OPTIONS", "")
    with sb.open(url) as instance, instance.connection() as connection:  # the instance sets the options itself
        assert connection.execute("show timezone").fetchall() == [("UTC",)]
        assert connection.execute("show default_transaction_isolation").fetchall() == [("read committed",)]
        assert connection.execute("show jit").fetchall() == [("off",)]
        assert connection.execute("show idle_session_timeout").fetchall() == [("0",)]
    alter(url, "timezone = 'UTC'")  # then nothing shows that they were ignored
    with pytest.raises(sb.InstanceError, match="the default isolation is serializable"):
        sb.open(url)


def test_a_session_that_only_listens_is_not_idle_for_too_long(make_url: Callable[[], str]) -> None:
    url = make_url()
    alter(url, "idle_session_timeout = '10min'")
    with sb.open(url) as instance, instance.connection() as connection:
        assert connection.execute("show idle_session_timeout").fetchall() == [("0",)]


def test_times_are_utc_in_any_time_zone_of_server_and_client(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/St_Johns")
    monkeypatch.setenv("PGTZ", "Pacific/Chatham")
    url = make_url()
    alter(url, "timezone = 'Asia/Kolkata'")
    with sb.open(url) as instance:
        database = define_standard_set(instance.database("Zones", create=True))
        began = datetime.now(UTC)
        initiator, target = open_dialog(database)
        database.send(initiator, ORDER, b"x")
        database.begin_conversation_timer(target, 3600)
        (message,) = database.receive(STOCK_QUEUE)
        assert message.message_enqueue_time.utcoffset() == timedelta(0)
        assert timedelta(0) <= message.message_enqueue_time - began < timedelta(minutes=5)
        ((timer, text),) = query(
            database,
            "select dialog_timer, dialog_timer::text from sys.conversation_endpoints where conversation_handle = %s",
            target,
        )
        assert text.endswith("+00")
        assert timedelta(hours=1) <= timer - began < timedelta(hours=1, minutes=5)
        waits = database.begin_dialog("//test/Orders", "//nowhere", contract="//test/Contract")
        database.send(waits, ORDER, b"x")
        # another session, in the zone of the server
        with psycopg.connect(url) as connection:
            connection.execute("set timezone = 'Asia/Kolkata'")
            ((enqueued,),) = connection.execute("select enqueue_time from sys.transmission_queue").fetchall()
            assert timedelta(0) <= enqueued - began < timedelta(minutes=5)
            joined = database.join(connection)
            joined.send(target, REPLY, b"joined")
            connection.commit()
        with psycopg.connect(url) as connection:
            connection.execute("set timezone = 'Asia/Kolkata'")
            (answer,) = database.join(connection).receive("OrdersQueue")
        assert answer.message_body == b"joined"
        assert timedelta(0) <= answer.message_enqueue_time - began < timedelta(minutes=5)
        assert bodies(database.receive(STOCK_QUEUE)) == []


def make_encoded(server: EmbeddedServer, encoding: str) -> str:
    """An empty PostgreSQL database of another encoding."""
    name = f"encoded_{encoding.lower()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)")  # type: ignore[call-overload]
        connection.execute(  # type: ignore[call-overload]
            f"create database {name} template template0 encoding '{encoding}' locale_provider libc locale 'C'"
        )
    return server.url.replace(":///servicebroker?", f":///{name}?")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "WIN1252", "EUC_JP"])
def test_a_database_of_another_encoding_is_refused_by_its_name(server: EmbeddedServer, encoding: str) -> None:
    url = make_encoded(server, encoding)
    with pytest.raises(sb.InstanceError, match=f"with the encoding UTF8; the encoding of 'encoded_.*' is {encoding}"):
        sb.open(url)
    result = CliRunner().invoke(command, ["init", "--instance", url])
    assert f"is {encoding}. Make another one" in str(result.exception)


@pytest.mark.parametrize("theirs", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_sessions_use_utf8_with_any_client_encoding(
    make_instance_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    url = make_instance_url()
    monkeypatch.setenv("PGCLIENTENCODING", theirs)
    with sb.open(f"{url}&client_encoding={theirs}") as instance:
        database = instance.database("Läden 店", create=True)
        database.create_queue("待ち")
        assert query(database, "select name from servicebroker.queues where name = '待ち'") == [("待ち",)]
        assert query(database, "show client_encoding") == [("UTF8",)]


@pytest.mark.parametrize(
    "setting",
    [
        "plpgsql.extra_errors = 'all'",
        "plpgsql.variable_conflict = use_variable",
        "datestyle = 'German, DMY'",
        "search_path = hostile, public, pg_catalog",
    ],
)
@pytest.mark.sampled(2)
def test_settings_of_the_server_that_change_functions_and_dates(make_url: Callable[[], str], setting: str) -> None:
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema hostile")
        connection.execute("create function hostile.count(integer) returns integer language sql as 'select 7'")
        connection.execute("create function hostile.lower(text) returns text language sql as 'select $1'")
        name = conninfo_to_dict(url)["dbname"]
        connection.execute(f"alter database {name} set {setting}")  # type: ignore[call-overload]
    with sb.open(url) as instance:
        database = define_standard_set(instance.database("Mine", create=True))
        _, target = open_dialog(database)
        assert database.execute_tsql("SELECT DATEADD(day, 1, CAST('02/03/2020' AS datetime))").rows == [
            (datetime(2020, 2, 4),)
        ]
        with psycopg.connect(url) as connection:
            joined = database.join(connection)
            joined.send(target, REPLY, b"x")
            joined.end_conversation(target)
        assert bodies(database.receive("OrdersQueue")) == [b"x", None]
        assert instance.check().findings == []


_DISGUISE = (
    "create function public.seen() returns event_trigger language plpgsql as $$ declare one record; begin "
    "for one in select * from pg_event_trigger_ddl_commands() where command_tag = 'CREATE TABLE' loop "
    "execute format('alter table %s {}', one.object_identity); end loop; end $$"
)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("create schema tsql", "has a schema tsql that no instance has made"),
        ("create schema servicebroker_fence", "has a schema servicebroker_fence"),
        ("create schema servicebroker; create table servicebroker.migrations (id int)", "has a schema servicebroker "),
        (
            "create function public.seen() returns event_trigger language plpgsql as $$ begin raise 'no DDL'; end $$",
            r"refuses the schema of servicebroker \(no DDL\), .* see its statements \(watch\)",
        ),
        (_DISGUISE.format("owner to pg_monitor"), "made pg_monitor the owner.* see its statements"),
    ],
)
def test_an_unsuitable_database_is_refused_in_one_sentence(make_url: Callable[[], str], made: str, said: str) -> None:
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(made)  # type: ignore[call-overload]
        if "event_trigger" in made:
            connection.execute("create event trigger watch on ddl_command_end execute function public.seen()")
        before = connection.execute("select count(*) from pg_namespace").fetchall()
        with pytest.raises(sb.InstanceError, match=said) as error:
            sb.open(url)
        assert "\n" not in str(error.value)
        assert connection.execute("select count(*) from pg_namespace").fetchall() == before


def test_row_security_that_an_event_trigger_sets_is_switched_off(make_url: Callable[[], str]) -> None:
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_DISGUISE.format("enable row level security"))  # type: ignore[call-overload]
        connection.execute("create event trigger watch on ddl_command_end execute function public.seen()")
    with sb.open(url) as instance:
        assert instance.check().findings == []


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["status"], ["check"], ["poison", "list"], ["serve"], ["route", "list"]]
)
def test_commands_create_no_instance_in_a_plain_database(make_url: Callable[[], str], arguments: list[str]) -> None:
    url = make_url()
    result = CliRunner().invoke(command, [*arguments, "--instance", url])
    assert "There is no instance in the PostgreSQL database" in str(result.exception)
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regnamespace('servicebroker')").fetchall() == [(None,)]
