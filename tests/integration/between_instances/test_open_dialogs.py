"""Open dialogs cost a daemon memory only while messages are in transit on them.

`make soak` runs it with 1,000,000 dialogs. The idle ones are copies of an opened one, created in SQL.
"""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from daemons import Site, Two
from servicebroker_lab.benchmarks import processes
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, bodies, eventually, query, waiting_messages

_LOG = logging.getLogger(__name__)  # shown with --log-cli-level INFO
MAX_DAEMON_BYTES = (
    300e6  # in bytes: the reference's figure for a daemon with 1,000,000 open dialogs, of which 1,000 are active
)
MAX_GROWTH_BYTES = 60e6  # in bytes, for the active dialogs
ACTIVE_DIALOGS = 1_000
BATCH_MESSAGES = 100
FRESH = {
    "conversation_handle": "handle",
    "conversation_id": "conversation",
    "conversation_group_id": "conversation_group",
}


def copy(site: Site, count: int) -> None:
    """Copy the only open dialog many times."""
    with psycopg.connect(site.url) as connection:
        connection.execute(
            "create temporary table fresh on commit drop as select gen_random_uuid() as handle, "
            "gen_random_uuid() as conversation, gen_random_uuid() as conversation_group "
            "from generate_series(1, %s)",
            (count,),
        )
        for table in ("conversation_groups", "conversation_endpoints"):
            found = connection.execute(
                "select column_name::text from information_schema.columns "
                "where table_schema = 'servicebroker' and table_name = %s and is_generated = 'NEVER'",
                (table,),
            )
            columns = [name for (name,) in found]
            connection.execute(
                sql.SQL("insert into {table} ({columns}) select {values} from {table} e, fresh").format(
                    table=sql.Identifier("servicebroker", table),
                    columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
                    values=sql.SQL(", ").join(
                        sql.Identifier("fresh", FRESH[name]) if name in FRESH else sql.Identifier("e", name)
                        for name in columns
                    ),
                )
            )
    with psycopg.connect(site.url, autocommit=True) as connection:
        connection.execute("analyze servicebroker.conversation_endpoints, servicebroker.conversation_groups")


def memory(site: Site) -> float:
    """Return the memory of the site's daemon in bytes."""
    return processes.resident_bytes(site.daemon.process.pid)


def begin(two: Two, count: int) -> list[UUID]:
    with two.west.database.transaction() as transaction:
        return [transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(count)]


def talk(two: Two, handles: list[UUID], body: bytes) -> None:
    """Send a message on each dialog, and wait until all are received and acknowledged."""
    for start in range(0, len(handles), BATCH_MESSAGES):
        with two.west.database.transaction() as transaction:
            for handle in handles[start : start + BATCH_MESSAGES]:
                transaction.send(handle, ORDER, body)
    read: list[bytes] = []
    while len(read) < len(handles):
        received_bodies = bodies(two.east.database.receive(STOCK_QUEUE, wait=60))
        assert received_bodies, f"{len(handles) - len(read)} messages have not arrived"
        read += received_bodies
    assert set(read) == {body}
    eventually(lambda: waiting_messages(two.west.database) == 0)


@pytest.mark.feature(137)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say what a process holds")
def test_open_dialogs_are_not_held_in_memory(two: Two, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    count = pytestconfig.option.open_dialogs
    two.introduce(tmp_path)
    for site in (two.west, two.east):
        site.endpoint()
        site.serve()
    talk(two, begin(two, 1), b"first")
    for site in (two.west, two.east):
        site.daemon.kill()
        copy(site, count - ACTIVE_DIALOGS)
        site.serve()
    active = begin(two, ACTIVE_DIALOGS)
    talk(two, active[:10], b"a")
    before = {site.name: memory(site) for site in (two.west, two.east)}
    talk(two, active, b"b")
    talk(two, active, b"c")
    for site in (two.west, two.east):
        assert query(site.database, "select count(*) from sys.conversation_endpoints") == [(count + 1,)]
        held = memory(site)
        _LOG.info("%s: %.0f MB, then %.0f MB", site.name, before[site.name] / 1e6, held / 1e6)
        assert held < MAX_DAEMON_BYTES
        assert held - before[site.name] < MAX_GROWTH_BYTES
