"""The index of every hot statement, on a filled table whose statistics are old, none and fresh."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import remove_closed_endpoints
from support import ORDER, STOCK_QUEUE, begin, define_standard_set, query, queue_number

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def filled_database(make_instance_url: Callable[..., str]) -> Iterator[sb.Database]:
    """20,000 messages of 200 conversations."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        database = define_standard_set(instance.database("Plans", create=True))
        with database.transaction() as transaction:
            for _ in range(200):
                transaction.send_batch(begin(database), ORDER, [b"x" * 50] * 100)
        yield database


@pytest.fixture(params=["never analyzed", "analyzed", "analyzed when empty"])
def database(filled_database: sb.Database, request: pytest.FixtureRequest) -> sb.Database:
    number = queue_number(filled_database, STOCK_QUEUE)
    with filled_database.instance.connection() as connection:
        if request.param == "analyzed":
            connection.execute(f"analyze servicebroker.queue_{number}".encode())
            connection.execute("analyze servicebroker.conversation_endpoints")
        if request.param == "analyzed when empty":
            connection.execute(
                f"create table servicebroker.queue_{number}_away (like servicebroker.queue_{number})".encode()
            )
            connection.execute(
                f"insert into servicebroker.queue_{number}_away select * from servicebroker.queue_{number}".encode()
            )
            connection.execute(f"delete from servicebroker.queue_{number}".encode())
            connection.execute(f"vacuum analyze servicebroker.queue_{number}".encode())
            connection.execute(
                f"insert into servicebroker.queue_{number} select * from servicebroker.queue_{number}_away".encode()
            )
            connection.execute(f"drop table servicebroker.queue_{number}_away".encode())
    return filled_database


class Scan(NamedTuple):
    """One scan of a plan: its kind, the table, and the index when it has one."""

    kind: str
    table: str
    index: str


def plan_of(database: sb.Database, statement: str) -> tuple[set[Scan], int]:
    """The scans of all that is planned for `statement`, inside functions too, and how often a group is sorted.

    As the server itself tells them, since what a function plans and pins cannot be asked of EXPLAIN.
    """
    trees: list[str] = []
    with psycopg.connect(database.instance.url) as connection:
        names = {str(oid): name for oid, name in connection.execute("select oid, relname from pg_class").fetchall()}
        connection.add_notice_handler(lambda notice: trees.append(notice.message_detail or ""))
        connection.execute("set debug_print_plan = on")
        connection.execute("set client_min_messages = log")
        for _ in range(2):
            connection.execute(statement.encode())
        connection.rollback()
    found, sorts = set(), 0
    for tree in trees:
        tables = [names.get(relation, "") for relation in _TABLES.findall(tree)]
        scans = [
            Scan(kind, tables[int(number) - 1], names.get(index, "")) for kind, number, index in _SCANS.findall(tree)
        ]
        found.update(scans)
        if any(scan.index.endswith("_group") for scan in scans):
            sorts += tree.count("{SORT ") + tree.count("{INCREMENTALSORT ")
    assert found
    return {scan for scan in found if not scan.table.startswith("pg_")}, sorts


_TABLES = re.compile(r"\{RANGETBLENTRY .*?:rtekind \d+(?:\s+:relid (\d+))?", re.DOTALL)
_SCANS = re.compile(
    r"\{(INDEXSCAN|INDEXONLYSCAN|SEQSCAN|TIDSCAN|TIDRANGESCAN|BITMAPHEAPSCAN) .*?:scan\.scanrelid (\d+)"
    r"(?:\s+:indexid (\d+))?",
    re.DOTALL,
)


RECEIVES = {
    "any group": "1, now()",
    "many": "1000, now()",
    "a conversation": "1, now(), handle => (select conversation_handle from {queue} limit 1)",
    "a group": "1000, now(), in_group => (select conversation_group_id from {queue} limit 1)",
    "only the lock": "1, now(), only_lock => true",
}


@pytest.mark.parametrize("arguments", RECEIVES.values(), ids=RECEIVES)
def test_receive(database: sb.Database, arguments: str) -> None:
    number = queue_number(database, STOCK_QUEUE)
    queue = f"queue_{number}"
    chosen = re.findall(r"\(select .*?\)", arguments)
    for choice in chosen:
        ((value,),) = query(database, choice.format(queue=f"servicebroker.{queue}"))
        arguments = arguments.replace(choice, f"'{value}'")
    scans, sorts = plan_of(database, f"select * from servicebroker.receive_{number}({arguments})")
    of_the_queue = {scan for scan in scans if scan.table == queue}
    look = Scan("INDEXSCAN", queue, f"{queue}_arrival")
    group = Scan("INDEXSCAN", queue, f"{queue}_group")
    existence = Scan("INDEXONLYSCAN", queue, f"{queue}_group")  # the group's other priorities
    survey = Scan("INDEXONLYSCAN", queue, f"{queue}_arrival")  # the marks are moved on the way
    delete = Scan("TIDSCAN", queue, "")
    assert {look, group} <= of_the_queue <= {look, group, existence, survey, delete}
    assert (delete in of_the_queue) is ("only_lock" not in arguments)
    assert sorts == 0
    endpoints = {scan for scan in scans if scan.table == "conversation_endpoints"}
    assert {scan.index for scan in endpoints} <= {
        f"conversation_endpoints_{index}" for index in ("timer", "lifetime", "pkey")
    }
    assert {scan.table for scan in scans if scan.kind == "SEQSCAN"} <= {f"{queue}_order"}


@pytest.mark.parametrize("leaves", ["true", "false"])
def test_receive_from_many_groups(database: sb.Database, leaves: str) -> None:
    number = queue_number(database, STOCK_QUEUE)
    queue = f"queue_{number}"
    scans, _ = plan_of(database, f"select * from servicebroker.receive_groups_{number}(2, now(), 50, {leaves})")
    of_the_queue = {(scan.kind, scan.index) for scan in scans if scan.table == queue}
    assert {kind for kind, _ in of_the_queue} <= {"INDEXSCAN", "INDEXONLYSCAN", "TIDSCAN"}
    assert {index for _, index in of_the_queue} == {f"{queue}_arrival", f"{queue}_group", ""}


def test_the_second_half_of_receive(database: sb.Database) -> None:
    number = queue_number(database, STOCK_QUEUE)
    queue = f"queue_{number}"
    ((group,),) = query(database, f"select conversation_group_id from servicebroker.{queue} limit 1")
    scans, _ = plan_of(database, f"select servicebroker.take_{number}('{group}', '{{5}}', '{{1}}')")
    assert {(scan.kind, scan.index) for scan in scans} == {("INDEXSCAN", f"{queue}_arrival"), ("TIDSCAN", "")}


def test_the_survey_of_the_marks(database: sb.Database) -> None:
    number = queue_number(database, STOCK_QUEUE)
    scans, _ = plan_of(database, f"select servicebroker.survey_{number}(array_fill(0::bigint, array[11]))")
    probes = {(scan.kind[:5], scan.index) for scan in scans if scan.table == f"queue_{number}"}
    assert probes == {("INDEX", f"queue_{number}_arrival")}


def test_the_search_when_the_oldest_groups_are_locked(database: sb.Database) -> None:
    """The window of the oldest, and the groups one by one."""
    number = queue_number(database, STOCK_QUEUE)
    with database.transaction() as other:
        for _ in range(70):
            assert other.get_conversation_group(STOCK_QUEUE)
        scans, _ = plan_of(database, f"select * from servicebroker.receive_{number}(1, now())")
        other.connection.rollback()
    of_the_queue = {(scan.kind, scan.index) for scan in scans if scan.table == f"queue_{number}"}
    assert {kind for kind, _ in of_the_queue} <= {"INDEXSCAN", "INDEXONLYSCAN", "TIDSCAN"}
    assert {index for _, index in of_the_queue} == {f"queue_{number}_arrival", f"queue_{number}_group", ""}


_WRITES = [enqueue.send, enqueue.send_answer, enqueue.send_batch, enqueue.send_many, enqueue.tell_peer]


@pytest.mark.parametrize("write", _WRITES, ids=lambda function: function.__name__)
def test_send_finds_the_endpoint_by_its_key(database: sb.Database, write: Callable[[int], str]) -> None:
    number = queue_number(database, STOCK_QUEUE)
    scans, _ = plan_of(database, f"explain (generic_plan) {write(number)}")
    endpoints = [scan for scan in scans if scan.table == "conversation_endpoints"]
    assert [(scan.kind, scan.index) for scan in endpoints] == [("INDEXSCAN", "conversation_endpoints_pkey")]


def test_new_conversations_look_for_no_endpoint(database: sb.Database) -> None:
    """The plans find services and queues by their keys; the first SEND of a conversation finds it by its own."""
    number = queue_number(database, STOCK_QUEUE)
    for write in (enqueue.begin_and_send, enqueue.begin_and_send_many):
        scans, _ = plan_of(database, f"explain (generic_plan) {write(number)}")
        assert {scan.table for scan in scans} <= {"broker_priorities", "waiting_readers"}
    scans, _ = plan_of(database, f"explain (generic_plan) {enqueue.open_and_send(number)}")
    endpoints = [scan for scan in scans if scan.table == "conversation_endpoints"]
    assert [(scan.kind, scan.index) for scan in endpoints] == [("INDEXSCAN", "conversation_endpoints_pkey")]
    broker = UUID(int=0)
    held, _ = plan_of(database, f"select servicebroker.hold_way(1, 2, 3, 4, 5, 6, '{broker}', '', 1, 8, 9, 10, 11, '')")
    assert "queues" in {scan.table for scan in held}
    assert not {scan.table for scan in held} & {"conversation_endpoints", "conversation_groups", f"queue_{number}"}


_DO_TO_PEER = {
    "conversing": "",
    "ended": "state = 'DI'",
    "remote": "is_remote = true, far_handle = null, far_queue_id = null, conversation_id = gen_random_uuid()",
}


@pytest.mark.parametrize("peer", _DO_TO_PEER)
def test_end_finds_all_rows_by_their_keys(database: sb.Database, peer: str) -> None:
    ((handle, own, far),) = query(
        database,
        "select conversation_handle, queue_id, far_queue_id from servicebroker.conversation_endpoints "
        "where is_initiator limit 1",
    )
    text = enqueue.end_dialog(
        own, {"ended": enqueue.HAS_ENDED, "conversing": far}.get(peer, enqueue.IN_ANOTHER_INSTANCE)
    )
    for place, value in (("$1", f"'{handle}'"), ("$2", "now()"), ("$3", "null")):
        text = text.replace(place, value)
    if _DO_TO_PEER[peer]:
        changed = f"{_DO_TO_PEER[peer]} where conversation_handle = '{handle}'"
        text = f"update servicebroker.conversation_endpoints set {changed}; {text}"
    scans, sorts = plan_of(database, text)
    assert {(scan.kind, scan.index) for scan in scans if scan.table == "conversation_endpoints"} <= {
        *(("INDEXSCAN", f"conversation_endpoints_{index}") for index in ("pkey", "conversation", "closed", "group")),
        *(("INDEXONLYSCAN", f"conversation_endpoints_{index}") for index in ("closed", "group", "conversation")),
    }
    assert {scan.kind for scan in scans if scan.table.startswith("queue_")} <= {"INDEXSCAN", "INDEXONLYSCAN"}
    assert sorts == 0


def test_closed_endpoints_are_removed_in_the_order_of_their_index(filled_database: sb.Database) -> None:
    """A part of many closed endpoints costs what the part costs: the others are neither read nor sorted."""
    statement = next(remove_closed_endpoints(datetime.now(UTC)))
    with psycopg.connect(filled_database.instance.url) as connection:
        connection.execute(
            "update servicebroker.conversation_endpoints set security_timestamp = now() - random() * interval '1 day'"
        )
        connection.execute("analyze servicebroker.conversation_endpoints")
        connection.execute("analyze servicebroker.conversation_groups")
        for scan in ("seqscan", "hashjoin"):  # which the 400 rows here would get, and many rows do not
            connection.execute(f"set local enable_{scan} = off".encode())
        text = statement.sql.replace("$1", "now()").replace("$2", "100")
        plan = [step for (step,) in connection.execute(f"explain (costs off) {text}".encode()).fetchall()]
        connection.rollback()
    assert [step for step in plan if "using conversation_endpoints_closed" in step]
    assert not [step for step in plan if "Sort" in step]


@pytest.mark.parametrize("write", [enqueue.TRANSMIT, enqueue.TRANSMIT_ANSWER], ids=["known", "answer"])
def test_send_to_another_instance_asks_its_queue_where_it_looks_at_the_endpoint(
    database: sb.Database, write: str
) -> None:
    scans, _ = plan_of(database, f"explain (generic_plan) {write}")
    endpoints = [scan for scan in scans if scan.table == "conversation_endpoints"]
    assert [(scan.kind, scan.index) for scan in endpoints] == [("INDEXSCAN", "conversation_endpoints_pkey")]
    steps = [step for (step,) in query(database, f"explain (generic_plan) {write}")]
    assert len([step for step in steps if "queues q" in step]) == 1
    assert not [step for step in steps if "Join" in step or "hashed" in step]


@pytest.mark.parametrize("write", _WRITES, ids=lambda function: function.__name__)
def test_so_it_does_where_there_is_only_one(make_instance_url: Callable[..., str], write: Callable[[int], str]) -> None:
    """A session keeps the plan it has made then, however many come after it."""
    with sb.open(make_instance_url(1), upkeep=None) as instance:
        database = instance.database("Test")
        begin(database)
        scans, _ = plan_of(database, f"explain (generic_plan) {write(queue_number(database, STOCK_QUEUE))}")
    endpoints = [scan for scan in scans if scan.table == "conversation_endpoints"]
    assert [(scan.kind, scan.index) for scan in endpoints] == [("INDEXSCAN", "conversation_endpoints_pkey")]


@pytest.mark.parametrize("write", _WRITES[:4], ids=lambda function: function.__name__)
def test_whether_the_queue_takes_messages_is_no_step_of_the_plan(
    filled_database: sb.Database, write: Callable[[int], str]
) -> None:
    """The question is part of the endpoint's scan: a step of its own costs as much as the question."""
    steps = query(filled_database, f"explain (generic_plan) {write(queue_number(filled_database, STOCK_QUEUE))}")
    assert not [step for (step,) in steps if "One-Time Filter" in step]


def test_tables_written_by_send_have_no_check_constraint(filled_database: sb.Database) -> None:
    """PostgreSQL reads and compiles it anew for each statement."""
    tables = ["conversation_endpoints", "transmission_queue", f"queue_{queue_number(filled_database, STOCK_QUEUE)}"]
    checks = "select conname from pg_constraint where contype = 'c' and conrelid = to_regclass('servicebroker.' || %s)"
    assert [row for table in tables for row in query(filled_database, checks, table)] == []


def test_the_security_of_a_conversation_is_checked_by_a_trigger(filled_database: sb.Database) -> None:
    handle = begin(filled_database)
    write = "update servicebroker.conversation_endpoints set security = %s where conversation_handle = %s"
    with filled_database.instance.connection() as connection:
        for security in (None, "N", "A", "F"):
            connection.execute(write, (security, handle))
        with pytest.raises(psycopg.errors.CheckViolation, match="secured by N, A or F, not by 'Q'"):
            connection.execute(write, ("Q", handle))


def test_the_table_is_still_filled(database: sb.Database) -> None:
    assert query(database, "select count(*) from plans_dbo.stockqueue") == [(20_000,)]
