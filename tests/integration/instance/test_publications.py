"""Publications of logical replication: FOR ALL TABLES stops no verb, and doctor names those that stop changes."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg.sql import SQL
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.pipeline.stream.frontier import create_archive_sql
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    group_of,
    peer_handle,
    query,
    queue_number,
)

WITHOUT_IDENTITY = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and c.relpersistence = 'p' and n.nspname not in ('pg_catalog', 'information_schema')
   and not case c.relreplident
               when 'f' then true
               when 'd' then exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
               when 'i' then exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident)
               else false
           end
 order by 1
"""
TSQL_TABLES = """
CREATE TABLE dbo.Heap (a INT, b INT);
CREATE TABLE dbo.Keyed (a INT PRIMARY KEY, b INT);
"""


def run_sql(database: sb.Database, *texts: str) -> None:
    with database.instance.connection() as connection:
        for text in texts:
            connection.execute(SQL(text))


def blocking(database: sb.Database) -> dict[str, str]:
    """Return the findings of doctor about publications."""
    result = CliRunner().invoke(command, ["doctor", "--instance", database.instance.url, "--json"])
    findings = json.loads(result.output)["findings"]
    return {
        finding["subject"]: finding["problem"] for finding in findings if finding["subject"].startswith("publication")
    }


@pytest.mark.parametrize("retention", [False, True])
def test_verbs_work_under_a_publication_for_all_tables(fresh_database: sb.Database, retention: bool) -> None:
    database = fresh_database
    run_sql(database, "create publication everything for all tables")
    for queue in (ORDERS_QUEUE, STOCK_QUEUE):
        database.alter_queue(queue, retention=retention)
    assert CliRunner().invoke(command, ["trail", "on", "--instance", database.instance.url]).exit_code == 0
    first, second = begin(database), begin(database)
    database.send(first, ORDER, b"1")
    database.send_batch(first, ORDER, [b"2", b"3"])
    database.send([first, second], ORDER, b"shared")
    assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"1"]
    far = peer_handle(database, second)
    with database.transaction() as transaction:
        transaction.move_conversation(far, group_of(database, peer_handle(database, first)))
        received = transaction.receive(STOCK_QUEUE)
        assert sorted(bodies(received)) == [b"2", b"3", b"shared", b"shared"]
    database.begin_conversation_timer(far, 3600)
    for handle in (far, peer_handle(database, first), first, second):
        database.end_conversation(handle)
    while database.receive(ORDERS_QUEUE) or database.receive(STOCK_QUEUE):
        pass
    database.create_queue("Later")
    database.alter_service(STOCK, queue="Later")
    late = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    database.send(late, ORDER, b"late")
    assert bodies(database.receive("Later", wait=2)) == [b"late"]
    database.alter(new_broker=True)
    assert database.instance.check().findings == []
    assert blocking(database) == {}


def test_every_table_of_ours_has_a_replica_identity(fresh_database: sb.Database) -> None:
    database = fresh_database
    database.create_queue("Kept", retention=True)
    assert CliRunner().invoke(command, ["trail", "on", "--instance", database.instance.url]).exit_code == 0
    run_sql(database, create_archive_sql(queue_number(database, STOCK_QUEUE)))
    assert len(query(database, "select from pg_inherits where inhparent = 'servicebroker.trail'::regclass")) > 1
    assert query(database, WITHOUT_IDENTITY) == []


def test_the_identity_of_a_queue_is_an_index(fresh_database: sb.Database) -> None:
    """FULL would write each body into the log once more."""
    identities = (
        "select distinct relreplident::text from pg_class "
        "where relname ~ '^(queue|retained)_[0-9]+$' and relnamespace = 'servicebroker'::regnamespace"
    )
    assert query(fresh_database, identities) == [("i",)]


def test_an_upgrade_gives_queues_their_identity(fresh_database: sb.Database) -> None:
    """Two messages have one number, because the queue's sequence was set back."""
    database, url = fresh_database, fresh_database.instance.url
    queue = queue_number(database, STOCK_QUEUE)
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2", b"3"])
    numbers = [number for (number,) in query(database, "select queue_id from servicebroker.queues")]
    older = [
        f"drop index servicebroker.{kind}_{number}_{name}; "
        f"create index {kind}_{number}_{name} on servicebroker.{kind}_{number} ({columns})"
        for number in numbers
        for kind, name, columns in (
            ("queue", "arrival", "priority desc, queuing_order"),
            ("retained", "conversation", "conversation_handle"),
        )
    ]
    run_sql(
        database,
        *older,
        f"update servicebroker.queue_{queue} set queuing_order = 1 where message_body = '3'",
        f"select setval('servicebroker.queue_{queue}_order', 1)",
        "delete from servicebroker.migrations where number = 420",
    )
    assert len(query(database, WITHOUT_IDENTITY)) >= 2 * len(numbers)
    database.instance.close()
    with sb.open(url) as instance:
        database = instance.database(database.name)
        assert query(database, WITHOUT_IDENTITY) == []
        database.send(handle, ORDER, b"4")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2", b"3", b"4"]
        assert instance.check().findings == []


def test_check_mend_gives_a_queue_its_identity_again(fresh_database: sb.Database) -> None:
    queue = queue_number(fresh_database, STOCK_QUEUE)
    run_sql(fresh_database, f"alter table servicebroker.queue_{queue} replica identity nothing")
    run_sql(fresh_database, "create publication everything for all tables")
    assert f"servicebroker.queue_{queue}" in blocking(fresh_database)["publication everything"]
    assert CliRunner().invoke(command, ["check", "--mend", "--instance", fresh_database.instance.url]).exit_code == 0
    assert blocking(fresh_database) == {}


@pytest.mark.parametrize(
    ("publication", "table", "expected_text"),
    [
        ("for all tables", "Heap", "1 table (test_dbo.heap) without a replica identity"),
        ("for tables in schema test_dbo", "Heap", "1 table (test_dbo.heap) without a replica identity"),
        ("for table test_dbo.heap", "Heap", "1 table (test_dbo.heap) without a replica identity"),
        ("for table test_dbo.keyed", "Keyed", ""),
        ("for table test_dbo.heap with (publish = 'insert, truncate')", "Heap", ""),
        ("for table test_dbo.keyed (b)", "Keyed", "leave out some of the replica identity of 1 table (test_dbo.keyed)"),
        ("for table test_dbo.keyed (a)", "Keyed", ""),
        ("for table test_dbo.keyed where (b > 0)", "Keyed", "outside of the replica identity of 1 table"),
        ("for table test_dbo.keyed where (a > 0)", "Keyed", ""),
    ],
)
@pytest.mark.sampled(3)
def test_doctor_names_tables_that_a_publication_blocks(
    fresh_database: sb.Database, publication: str, table: str, expected_text: str
) -> None:
    """Doctor finds what PostgreSQL refuses, and nothing else."""
    database = fresh_database
    database.execute_tsql(TSQL_TABLES)
    run_sql(database, f"create publication of_the_application {publication}")
    assert expected_text in "".join(blocking(database).values())
    assert bool(blocking(database)) is bool(expected_text)
    if expected_text:
        with pytest.raises(psycopg.errors.Error, match=r"(?i)publi"):
            run_sql(database, f"update test_dbo.{table} set b = 1")
    else:
        run_sql(database, f"update test_dbo.{table} set b = 1")


@pytest.mark.parametrize("via_root", [False, True])
def test_doctor_names_partitions(fresh_database: sb.Database, via_root: bool) -> None:
    run_sql(
        fresh_database,
        "create table public.parted (a integer not null, b integer) partition by range (a)",
        "create table public.low partition of public.parted for values from (0) to (10)",
        "create table public.high partition of public.parted for values from (10) to (20)",
        "create table public.others (a integer)",
        "create table public.more (a integer)",
        "alter table public.low replica identity full",
        f"create publication parts for table public.parted with (publish_via_partition_root = {via_root})",
        "create publication many for table public.parted, public.others, public.more",
    )
    told = blocking(fresh_database)
    assert "1 table (public.high)" in told["publication parts"]
    assert "3 tables (public.high, public.more, public.others)" in told["publication many"]
