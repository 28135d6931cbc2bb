"""Extreme arguments of a restricted role to the fence's functions: none breaks the diagnosis of an instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg.sql import SQL
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.api.maintenance import run_maintenance
from servicebroker.cli.main import app as command
from servicebroker.dashboard import Dashboard
from servicebroker.engine.security.budgets import RoleBudget
from servicebroker.store.clamped_times import EARLIEST, LATEST
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.sql_verbs import MAX_COUNTED_ROWS, MAX_ERROR_CHARACTERS, MAX_FAILURE_COUNT
from support import as_role, let_in, peer_handle, query

ROLE = "bounded"
TIMES = ["infinity", "-infinity", "11533-01-01", "9999-12-31 23:59:59.999999+00", "1969-01-01", "4000-01-01 BC", None]
NUMBERS = [-1, -(2**63), None]
COUNTS = [0, -1, 2**31 - 1, None]
PAUSES = ["NaN", "Infinity", "-Infinity", "1e300", "3155760000", "-1", "-1e-300", None]


class Fence(NamedTuple):
    """The owner's database, the role's connection, and a conversation of the role."""

    database: sb.Database
    role: psycopg.Connection[Any]
    handle: UUID

    def call(self, function: str, *arguments: object) -> list[tuple[Any, ...]]:
        places = ", ".join("%s" for _ in arguments)
        return self.role.execute(SQL(f"select * from servicebroker_fence.{function}({places})"), arguments).fetchall()

    def track(self, **other: object) -> None:
        values = {"number": 0, "type": 14, "failures": 1, "first": "now", "error": "x", "last": "x", "after": "60"}
        self.call("track_failure", self.database.database_id, self.handle, *(values | other).values())

    def set_aside(self, **other: object) -> None:
        values = {
            **{"number": 0, "type": 14, "body": b"x", "enqueued": "now", "failures": 1, "first": "now", "error": "x"},
            **{"traceback": "x"},
        }
        self.call("set_aside", self.database.database_id, self.handle, *(values | other).values())


@pytest.fixture(scope="module")
def fence(server: EmbeddedServer, make_instance_url: Callable[..., str]) -> Iterator[Fence]:
    url = make_instance_url()
    with let_in(server.url, ROLE), sb.open(url, upkeep=None) as instance, instance.connection() as owner:
        owner.execute(f"create role {ROLE} login")  # type: ignore[call-overload]
        database = instance.database("Bounds", create=True)
        database.create_queue("Own")
        database.create_service("//own", "Own", ["DEFAULT"])
        instance.grant_rights(ROLE, database="Bounds", receive=["Own"], send=["//own"])
        handle = database.begin_dialog("//own", "//own")
        for _ in range(3):
            database.send(handle, sb.DEFAULT, b"x")
        with psycopg.connect(as_role(url, ROLE), autocommit=True) as role:
            yield Fence(database, role, handle)
        owner.execute(f"drop owned by {ROLE}; drop role {ROLE}")  # type: ignore[call-overload]


def take_stored(fence: Fence) -> tuple[list[Any], list[Any]]:
    """Return and delete the rows stored since the last call."""
    return (
        query(fence.database, "delete from servicebroker.failed_messages returning *"),
        query(fence.database, "delete from servicebroker.set_aside_messages returning *"),
    )


IMPOSSIBLE = [
    *(("track", "first", value) for value in TIMES),
    *(("track", "after", value) for value in PAUSES),
    *(("track", name, None) for name in ("type", "error", "last")),
    *((function, "number", value) for function in ("track", "set_aside") for value in NUMBERS),
    *((function, "failures", value) for function in ("track", "set_aside") for value in COUNTS),
    *(("set_aside", name, value) for name in ("first", "enqueued") for value in TIMES),
    *(("set_aside", name, None) for name in ("type", "error", "traceback")),
]


@pytest.mark.parametrize(("function", "name", "value"), IMPOSSIBLE)
def test_impossible_values_are_refused(fence: Fence, function: str, name: str, value: object) -> None:
    with pytest.raises(psycopg.Error, match="Wrong argument: ") as refusal:
        getattr(fence, function)(**{name: value})
    assert refusal.value.sqlstate == "S0402"
    assert take_stored(fence) == ([], [])


def test_failure_times_are_not_in_the_future(fence: Fence) -> None:
    """The caller's clock may be fast."""
    fence.track(first="2345-01-01", failures=MAX_FAILURE_COUNT, after="3155759999", number=2**63 - 1)
    fence.set_aside(first="2345-01-01", enqueued="2345-01-01", error="e" * 10_000, traceback="t" * 300_000)
    (failed,), (set_aside,) = take_stored(fence)
    now = datetime.now(UTC)
    times = [value for value in (*failed, *set_aside) if isinstance(value, datetime)]
    assert len(times) == 6
    assert sorted(times)[-1] - now < timedelta(days=36526)
    assert [time for time in times if time > now + timedelta(seconds=1)] == [sorted(times)[-1]]  # held until then
    assert max(len(value) for value in set_aside if isinstance(value, str)) == 200_000
    assert "e" * MAX_ERROR_CHARACTERS in set_aside


def test_a_role_learns_nothing_of_conversations_in_other_queues(fence: Fence) -> None:
    database = fence.database
    database.create_queue("Other")
    database.create_service("//other", "Other", ["DEFAULT"])
    handle = database.begin_dialog("//other", "//own")
    ((own,),) = query(database, "select queue_id from servicebroker.queues where name = 'Own'")
    assert fence.call("answered", own, [handle]) == []
    database.instance.grant_rights(ROLE, database="Bounds", receive=["Other"])  # then it may know: it was moved
    assert fence.call("answered", own, [handle]) == [(handle,)]
    database.end_conversation(handle, cleanup=True)
    database.drop_service("//other")
    database.drop_queue("Other")


@pytest.mark.parametrize("most", [None, -1, 0, 2**31 - 1])
def test_counting_is_bounded(fence: Fence, most: int | None) -> None:
    ((_, _, messages, *_),) = fence.call("own_queues", most)
    assert messages == (3 if most and most > 0 else 0)
    assert fence.call("own_waits", most) == []
    assert len(fence.call("own_conversation", fence.database.database_id, fence.handle, most)) == 1
    counted = query(fence.database, "select servicebroker.counted(%s)", most)[0][0]
    assert counted == (MAX_COUNTED_ROWS if most and most > 0 else 0)


@pytest.mark.parametrize(("first", "many"), [(None, 1), (0, None), (-5, 3), (2**63 - 1, 2**31 - 1), (0, -1), (0, 0)])
def test_trace_contexts_are_stored_only_for_sent_messages(fence: Fence, first: int | None, many: int | None) -> None:
    left = "delete from servicebroker.trace_contexts returning message_sequence_number"
    fence.call("leave_traces", fence.database.database_id, [fence.handle], [first], many, b"x" * 25)
    assert query(fence.database, left) == []
    fence.call("leave_traces", fence.database.database_id, [fence.handle], [1], 2**31 - 1, b"x" * 25)
    assert sorted(query(fence.database, left)) == [(1,), (2,)]


# ---------------------------------------------------------------- existing rows


@pytest.fixture
def insert_old_rows(fence: Fence) -> Iterator[Fence]:
    """Insert rows as older versions have stored them."""
    fence.track()
    fence.set_aside()
    ((queue_id,),) = query(fence.database, "select queue_id from servicebroker.queues where name = 'Own'")
    impossible = (
        "update servicebroker.failed_messages f set first_failed_at = 'infinity', held_until = '11533-01-01', "
        "priority = m.priority, conversation_group_id = m.conversation_group_id, "
        "conversation_handle = m.conversation_handle, message_sequence_number = m.message_sequence_number "
        f"from (select * from servicebroker.queue_{queue_id} limit 1) m",  # a message that waits
        "update servicebroker.set_aside_messages set message_enqueue_time = '-infinity', first_failed_at = 'infinity'",
        "update servicebroker.queues set held_until = '11533-01-01' where name = 'Own'",
    )
    with fence.database.instance.connection() as connection:
        for text in impossible:
            connection.execute(SQL(text))
    yield fence
    with fence.database.instance.connection() as connection:
        connection.execute("delete from servicebroker.failed_messages")
        connection.execute("delete from servicebroker.set_aside_messages")
        connection.execute("update servicebroker.queues set held_until = null")


@pytest.mark.parametrize(
    "line",
    [
        "poison list",
        "poison list --json",
        "dead-letters list --database Bounds",
        "dead-letters list --database Bounds --json",
        "poison inspect Own --database Bounds",
        "status",
        "doctor",
        "doctor --database Bounds --conversation {handle}",
        "check",
    ],
)
def test_commands_show_rows_with_impossible_times(insert_old_rows: Fence, line: str) -> None:
    words = line.format(handle=insert_old_rows.handle).split()
    result = CliRunner().invoke(command, [*words, "--instance", insert_old_rows.database.instance.url])
    assert result.exit_code in ((0, 1) if words[0] == "doctor" else (0,)), result.output
    if words[:2] == ["poison", "list"] or "--json" in words:
        assert "9999-12-31" in result.output


@pytest.mark.parametrize(
    "page", ["dead-letters", "workers", "queues", "queue?database=Bounds&queue=dbo.Own", "conversations"]
)
def test_pages_show_rows_with_impossible_times(insert_old_rows: Fence, page: str) -> None:
    dashboard = Dashboard([insert_old_rows.database.instance.url], token=None)
    try:
        shown = TestClient(dashboard, base_url="http://127.0.0.1").get(f"/i/0/{page}")
    finally:
        dashboard.close()
    assert shown.status_code == 200
    assert "timestamp too" not in shown.text
    if page == "dead-letters":
        assert "9999-12-31" in shown.text


def test_a_reader_goes_on_after_an_impossible_time(fence: Fence) -> None:
    """The policy gets the time, and it is stored again."""
    database, seen = fence.database, list[tuple[int, datetime]]()

    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    def judge(failure: sb.Failure) -> sb.Verdict:
        seen.append((failure.count, failure.first_failed_at))
        return sb.Retry() if len(seen) == 1 else sb.SetAside()

    database.create_queue("Read")
    database.create_service("//read", "Read", ["DEFAULT"])
    handle = database.begin_dialog("//read", "//read")
    database.send(handle, sb.DEFAULT, b"x")
    query(
        database,
        "insert into servicebroker.failed_messages (conversation_handle, queue_id, conversation_group_id, priority, "
        "message_sequence_number, message_type_id, failures, first_failed_at, last_failed_at, first_error, last_error) "
        "select conversation_handle, queue_id, conversation_group_id, priority, 0, 14, 4, 'infinity', now(), 'x', 'x' "
        "from servicebroker.conversation_endpoints where conversation_handle = %s returning 1",
        peer_handle(database, handle),
    )
    assert database.process("Read", fail, poison=judge) == 2
    assert seen == [(5, LATEST), (6, LATEST)]
    ((kept,),) = query(database, "delete from servicebroker.set_aside_messages returning first_failed_at")
    assert kept == LATEST


def test_methods_return_rows_with_impossible_times(insert_old_rows: Fence) -> None:
    (dead_letter,) = insert_old_rows.database.set_aside_messages()
    assert (dead_letter.message_enqueue_time, dead_letter.first_failed_at) == (EARLIEST, LATEST)


def test_an_upgrade_makes_them_possible(insert_old_rows: Fence) -> None:
    with insert_old_rows.database.instance.connection() as connection:
        connection.execute("delete from servicebroker.migrations where number = 421")
    with sb.open(insert_old_rows.database.instance.url, upkeep=None):
        pass
    (failed,), (set_aside,) = take_stored(insert_old_rows)
    now = datetime.now(UTC)
    assert all(value <= now for value in (*failed, *set_aside) if isinstance(value, datetime))
    assert (
        query(insert_old_rows.database, "select held_until from servicebroker.queues where held_until is not null")
        == []
    )


@pytest.fixture
def set_limits(fence: Fence) -> Iterator[Callable[..., None]]:
    """Return a function that sets limits of the role; other roles have none."""
    instance = fence.database.instance

    def limit(**amounts: int) -> None:
        assert instance.set_role_budget(ROLE, amounts) == RoleBudget(**amounts)

    yield limit
    assert instance.set_role_budget(ROLE, None) == RoleBudget()
    query(fence.database, "delete from servicebroker.conversations_of_roles returning 1")


def begin(fence: Fence) -> UUID:
    return UUID(str(fence.call("begin_dialog", "Bounds", "//own", "//own")[0][0]))


def refusal_of(fence: Fence, function: str, *arguments: object) -> str:
    with pytest.raises(psycopg.Error, match="Msg 10928") as refusal:
        fence.call(function, *arguments)
    return str(refusal.value)


def test_a_role_has_so_many_open_conversations(fence: Fence, set_limits: Callable[..., None]) -> None:
    set_limits(conversations=2)
    first, _ = begin(fence), begin(fence)
    assert "open conversations for the role is 2" in refusal_of(fence, "begin_dialog", "Bounds", "//own", "//own")
    fence.database.begin_dialog("//own", "//own")  # the owner has no limit
    closed = "update servicebroker.conversation_endpoints set state = %s where conversation_handle = %s returning 1"
    query(fence.database, closed, "CD", first)  # as with keys that its peer may still need
    fourth = begin(fence)
    query(fence.database, closed, "SO", first)
    for handle in (first, fourth):
        fence.database.end_conversation(handle, cleanup=True)
    third = begin(fence)
    with sb.open(as_role(fence.database.instance.url, ROLE), upkeep=None) as opened:
        database = opened.database("Bounds")
        for many in (0, 2):  # BEGIN DIALOG alone, and together with its first messages
            with pytest.raises(sb.BrokerError) as error, database.transaction() as transaction:
                handle = transaction.begin_dialog("//own", "//own")
                for _ in range(many):
                    transaction.send(handle, sb.DEFAULT, b"x")
            assert error.value.number == 10928
        database.end_conversation(third, cleanup=True)
        handle = database.begin_dialog("//own", "//own", idempotency_key="1")
        assert database.begin_dialog("//own", "//own", idempotency_key="1") == handle  # not another conversation
        database.send(handle, sb.DEFAULT, b"x")
    assert query(fence.database, "select count(*) from servicebroker.conversations_of_roles") == [(2,)]


def test_a_conversation_counts_until_its_target_has_ended(fence: Fence, set_limits: Callable[..., None]) -> None:
    """END CONVERSATION WITH CLEANUP leaves the messages in the target's queue."""
    set_limits(conversations=1)
    handle = begin(fence)
    fence.call("send", handle, sb.DEFAULT, b"x")
    upkeep_of(fence)
    target = peer_handle(fence.database, handle)
    fence.call("end_conversation", fence.database.database_id, handle, None, None, True)
    assert "open conversations for the role is 1" in refusal_of(fence, "begin_dialog", "Bounds", "//own", "//own")
    fence.database.end_conversation(target, cleanup=True)
    fence.database.end_conversation(begin(fence), cleanup=True)


@pytest.mark.parametrize(
    ("amounts", "bodies", "expected_text"),
    [
        ({"messages": 3}, [b"x", b"", b"x"], "messages that wait on a conversation for the role is 3"),
        ({"bytes": 1_000}, [bytes(400), bytes(600)], "bytes that wait on a conversation for the role is 1000"),
        ({"messages": 100, "bytes": 10}, [bytes(10)], "bytes that wait on a conversation"),
    ],
)
def test_a_role_has_so_much_waiting_on_a_conversation(
    fence: Fence, set_limits: Callable[..., None], amounts: dict[str, int], bodies: list[bytes], expected_text: str
) -> None:
    handle = begin(fence)
    set_limits(**amounts)
    for body in bodies:
        fence.call("send", handle, sb.DEFAULT, body)
    assert expected_text in refusal_of(fence, "send", handle, sb.DEFAULT, b"y")
    upkeep_of(fence)  # delivered, and not received
    assert expected_text in refusal_of(fence, "send", handle, sb.DEFAULT, b"y")
    received = fence.database.receive("Own", conversation_handle=peer_handle(fence.database, handle))
    assert [message.message_body or b"" for message in received] == bodies
    fence.call("send", handle, sb.DEFAULT, b"y")
    fence.database.end_conversation(handle, cleanup=True)


def upkeep_of(fence: Fence) -> None:
    with fence.database.instance.connection() as connection:
        run_maintenance(connection, fence.database.instance.clock())


def test_the_command_shows_and_sets_the_budget_of_a_role(fence: Fence) -> None:
    url = fence.database.instance.url

    def run_budget(*words: str) -> str:
        result = CliRunner().invoke(command, ["rights", "budget", *words, "--instance", url])
        return f"{result.output}{result.exception or ''}"

    assert (
        run_budget(ROLE, "--set", "conversations=5000") == "conversations: 5,000\nmessages: no limit\nbytes: no limit\n"
    )
    assert run_budget(ROLE, "--set", "bytes=7") == "conversations: 5,000\nmessages: no limit\nbytes: 7\n"
    shown = run_budget(ROLE, "--no-limits", "--set", "bytes=7")
    assert shown == "conversations: no limit\nmessages: no limit\nbytes: 7\n"
    assert "not a RESOURCE=AMOUNT" in run_budget(ROLE, "--set", "hats=1")
    assert "15007" in run_budget("nobody")
    run_budget(ROLE, "--no-limits")
