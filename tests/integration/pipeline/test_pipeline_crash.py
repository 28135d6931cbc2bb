"""Streams of Spark over the crash of their PostgreSQL server, driven as Spark drives them, without Spark."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from pipeline_support import LINE, Feed, warehouse

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

import servicebroker as sb
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.stream.reader import QueueStreamReader
from support import eventually

ALL = ReadAllAvailable()


@pytest.fixture
def folder():
    """A data folder of its own. Not in pytest's: another session of root's would shut the server's user out of it."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "data"


def attach(feed, begins):
    return QueueStreamReader(source_options(feed.options | {"startingOffsets": begins}))


def kill(folder):
    """Kill -9 the server, and wait until it is gone."""
    pid = int((folder / "postgresql/postmaster.pid").read_text().split("\n")[0])
    state = Path(f"/proc/{pid}/stat")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_transactions_that_a_crash_has_forgotten_are_below_no_offset(folder):
    """PostgreSQL gives the numbers of transactions again that were rolled back and are not on the disk yet."""
    places = ["earliest", "latest"]
    with sb.open(folder, upkeep=None) as instance:
        database = warehouse(instance)
        feeds = [Feed(database) for _ in places]
        handles = [feed.dialog(b"before") for feed in feeds]
        with instance.connection() as connection:
            connection.execute("alter system set wal_writer_delay = '10s'")
            connection.execute("select pg_reload_conf()")
            eventually(lambda: connection.execute("show wal_writer_delay").fetchone() == ("10s",))
        offsets = []
        for feed, begins in zip(feeds, places, strict=True):
            with instance.connection() as connection:
                for _ in range(300):
                    connection.execute("begin; select pg_current_xact_id(); rollback")
            reader = attach(feed, begins)
            offsets.append(reader.latestOffset(reader.initialOffset(), ALL))
            reader.stop()
        kill(folder)
    with sb.open(folder, upkeep=None) as instance:
        for feed, begins, offset, handle in zip(feeds, places, offsets, handles, strict=True):
            reader = attach(feed, begins)
            assert reader.latestOffset(offset, ALL) is offset
            instance.database("Warehouse").send(handle, LINE, b"after")
            end = reader.latestOffset(offset, ALL)
            found = [batch for part in reader.partitions(offset, end) for batch in reader.read(part)]
            assert [body for batch in found for body in batch["message_body"].to_pylist()] == [b"after"]
            reader.stop()
