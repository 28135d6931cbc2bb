"""The connections of an instance: as many as needed, and a correct error if none is available."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

import servicebroker as sb
from servicebroker.api import instance as instances
from servicebroker.store import connection as connections
from servicebroker.store.direct import wait_for_notifications
from support import ORDER, begin, define_standard_set, eventually


def pool_size(instance: sb.Instance) -> int:
    assert instance._pool is not None
    return int(instance._pool.get_stats()["pool_size"])


def test_idle_connections_of_the_pool_are_closed(
    make_instance_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MAX_IDLE_S", 0.3)
    url = make_instance_url()
    stopped = threading.Event()
    with sb.open(url, upkeep=None) as instance:
        database = define_standard_set(instance.database("Shop", create=True))
        barrier = threading.Barrier(9)

        def work() -> None:
            with database.transaction() as transaction:
                transaction.send(begin(transaction), ORDER, b"one")
                barrier.wait(30)  # all hold a connection at once
            while not stopped.wait(0.01):
                pass

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        barrier.wait(30)
        assert pool_size(instance) >= 8
        eventually(lambda: pool_size(instance) <= 2)
        stopped.set()
        for thread in threads:
            thread.join()


def test_the_connection_error_quotes_the_server(
    make_instance_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two causes: the pool is used up, and the server accepts no further session."""
    monkeypatch.setattr(instances, "FIRST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(instances, "CONNECTION_TIMEOUT_S", 1.0)
    url = make_instance_url()
    with sb.Instance(url, upkeep=None, connections=2) as instance:
        database = define_standard_set(instance.database("Shop", create=True))
        with (
            database.transaction() as first,
            database.transaction() as second,
            pytest.raises(sb.InstanceError) as error,
        ):
            begin(first), begin(second)
            database.send(begin(database), ORDER, b"one")
        assert "all 2 connections of this instance are in use" in str(error.value)
    elsewhere = psycopg.conninfo.make_conninfo(url, dbname="postgres")
    with sb.open(url, upkeep=None) as instance, psycopg.connect(elsewhere, autocommit=True) as other_connection:
        database = instance.database("Shop")
        handle = begin(database)
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with database.transaction() as first, database.transaction() as second:
            begin(first), begin(second)
            other_connection.execute(f'alter database "{name}" allow_connections false')
            try:
                with pytest.raises(sb.InstanceError) as error:
                    database.send(handle, ORDER, b"one")
            finally:
                other_connection.execute(f'alter database "{name}" allow_connections true')
        assert "in use" not in str(error.value)
        assert "not currently accepting connections" in str(error.value)


def test_a_notification_read_with_a_result_is_returned_at_once(instance: sb.Instance) -> None:
    """The driver has read it together with the statement's result, so the socket stays silent."""
    with connections.connect(instance.url) as connection:
        connection.execute("listen told")
        connection.execute("notify told, 'now'")
        connection.execute("select 1")
        began = time.monotonic()
        assert wait_for_notifications(connection, 20) == ["now"]
        assert time.monotonic() - began < 10
        assert wait_for_notifications(connection, 0) == []
