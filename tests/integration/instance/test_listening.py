"""The thread of `listening` sleeps until a notification, a lost connection, or the end of its block."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue

import psycopg
import pytest

from servicebroker import Instance
from servicebroker.store.listener import listening

NAME = "of a test"


def switches() -> int:
    """Return the number of wake-ups of the listening thread."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == f"{NAME} listens")
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("nonvoluntary_ctxt_switches")[0].rpartition("voluntary_ctxt_switches:")[2])


def test_the_listener_sleeps_until_a_notification(instance: Instance) -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    with listening(instance.url, ("of_a_test",), lambda notice: heard.put(notice.payload), name=NAME) as listener:
        time.sleep(0.2)
        before = switches()
        time.sleep(1.2)
        assert switches() == before, "nothing has come, and it got up"
        with psycopg.connect(instance.url, autocommit=True) as other_connection:
            other_connection.execute("notify of_a_test, 'first'")
            assert heard.get(timeout=10) == "first"
            other_connection.execute("notify of_a_test, 'second'")
            assert heard.get(timeout=10) == "second"
        listener.check()
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 0.4, "the block waits for what nobody tells"


def test_a_lost_connection_is_told_and_ends_as_well(instance: Instance) -> None:
    with (
        listening(instance.url, ("of_a_test",), print, name=NAME) as listener,
        psycopg.connect(instance.url) as other_connection,
    ):
        other_connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", [NAME]
        )
        until = time.monotonic() + 10
        with pytest.raises(psycopg.OperationalError):
            while time.monotonic() < until:
                listener.check()
                time.sleep(0.05)
