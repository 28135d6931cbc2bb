"""Errors of PostgreSQL: in our words under a verb, in its own under a statement of the application."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

import servicebroker as sb
from support import ORDER, STOCK_QUEUE, begin, eventually, open_dialog, query, standard_database

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")


def existing(connection: psycopg.Connection) -> list[str]:
    """The timeouts that this server has: transaction_timeout is new in 17."""
    rows = connection.execute("select name from pg_settings where name = any(%s)", (list(TIMEOUTS),)).fetchall()
    return [name for (name,) in rows]


pytestmark = pytest.mark.both_apis


def test_a_lock_timeout_under_a_verb(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with database.transaction() as holder:
        holder.send(handle, ORDER, b"x")
        with (
            pytest.raises(sb.InstanceError, match=r"gave up waiting for a lock .* lock_timeout") as error,
            database.transaction() as waiter,
        ):
            waiter.connection.execute("set local lock_timeout = 50")
            waiter.send(handle, ORDER, b"y")
    assert isinstance(error.value.__cause__, psycopg.errors.LockNotAvailable)
    assert str(error.value).endswith(" Statement: conversation.send.")
    assert error.value.__cause__.__notes__ == ["Statement: conversation.send"]


def test_pg_stat_activity_shows_the_statement_name(database: sb.Database) -> None:
    """Only statements of the library get their name; those of the application stay as they are."""
    handle, _ = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x")
        pid = transaction.connection.info.backend_pid
        ((text,),) = query(database, "select query from pg_stat_activity where pid = %s", pid)
        assert text.startswith("/* conversation.send */ ")
        transaction.connection.execute("select 1")
        assert query(database, "select query from pg_stat_activity where pid = %s", pid) == [("select 1",)]


def test_a_statement_timeout_under_a_verb_is_an_instance_error(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with database.transaction() as holder:
        holder.send(handle, ORDER, b"x")
        with (
            pytest.raises(sb.InstanceError, match=r"cancelled the statement .* statement_timeout"),
            database.transaction() as waiter,
        ):
            waiter.connection.execute("set local statement_timeout = 50")
            waiter.send(handle, ORDER, b"y")


def test_a_session_that_was_idle_for_too_long(database: sb.Database) -> None:
    handle = begin(database)
    with pytest.raises(sb.InstanceError, match="what was not committed is undone"), database.transaction() as tx:
        tx.send(handle, ORDER, b"x")
        pid = tx.connection.info.backend_pid
        tx.connection.execute("set local idle_in_transaction_session_timeout = 50")
        eventually(lambda: not query(database, "select from pg_stat_activity where pid = %s", pid))
        tx.send(handle, ORDER, b"y")
    assert database.send(handle, ORDER, b"z") == 0


def test_the_applications_own_statements_keep_their_errors(database: sb.Database) -> None:
    with database.transaction() as holder:
        holder.connection.execute("create table mine ()")
        with pytest.raises(psycopg.errors.QueryCanceled), database.transaction() as tx:
            tx.connection.execute("set local statement_timeout = 20")
            tx.connection.execute("select pg_sleep(5)")
        holder.connection.execute("drop table mine")


def test_our_own_sessions_are_not_cut_by_the_roles_timeouts(make_instance_url: Callable[..., str]) -> None:
    """The maintenance, the notifier and a migration wait as long as they need."""
    url = make_instance_url(1)
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in existing(connection):
            connection.execute(f"alter database {name} set {setting} = 300")  # type: ignore[call-overload]
    with sb.open(url, upkeep=0.05) as instance:
        database = standard_database(instance)
        listeners = {"servicebroker maintenance", "servicebroker notifier"}
        assert database.receive(STOCK_QUEUE, wait=0.01) == []
        text = "select application_name, pid from pg_stat_activity where datname = current_database()"

        def listening_sessions() -> set[tuple[str, int]]:
            return {row for row in query(database, text) if row[0] in listeners}

        eventually(lambda: len(listening_sessions()) == 2)
        before = listening_sessions()
        time.sleep(0.5)  # longer than each of the timeouts
        assert listening_sessions() == before


@pytest.mark.parametrize("setting", TIMEOUTS)
def test_an_application_works_under_timeouts_of_its_role(make_instance_url: Callable[..., str], setting: str) -> None:
    """A reader waits as long as it wants; a transaction that is cut says why, and the next one works."""
    url = make_instance_url(1)
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, autocommit=True) as connection:
        if setting not in existing(connection):
            pytest.skip(f"this PostgreSQL has no {setting}")
        connection.execute(f"alter database {name} set {setting} = 400")  # type: ignore[call-overload]
    with sb.open(url, upkeep=0.05) as instance:
        database = standard_database(instance)
        handle = begin(database)
        assert database.receive(STOCK_QUEUE, wait=0.9) == []
        if setting in ("transaction_timeout", "idle_in_transaction_session_timeout"):
            with pytest.raises(sb.InstanceError, match=r"(?i)begin .* again"), database.transaction() as transaction:
                transaction.send(handle, ORDER, b"cut")
                time.sleep(0.9)
                transaction.send(handle, ORDER, b"cut")
        with database.transaction() as transaction:
            transaction.send(handle, ORDER, b"x")
        assert [message.message_body for message in database.receive(STOCK_QUEUE, wait=5)] == [b"x"]


def test_strings_of_the_role_that_are_read_in_the_old_way(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"alter database {name} set standard_conforming_strings = off")  # type: ignore[call-overload]
    with sb.open(url, upkeep=None) as instance:
        database = standard_database(instance)
        database.send(begin(database), ORDER, b"\\x00")
        assert [message.message_body for message in database.receive(STOCK_QUEUE)] == [b"\\x00"]
