"""The in-memory double: its own features. test_model.py compares its rules with those of the engine."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
import servicebroker.testing as double
from servicebroker import operations
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Undo,
    bodies,
    define_standard_set,
    refused,
)

ROUTES = {"create_route", "alter_route", "drop_route", "explain_route"}
RIGHTS = {"create_user", "drop_user", "create_role", "drop_role", "add_role_member", "drop_role_member"}
RIGHTS |= {"grant", "deny", "revoke", "alter_authorization"}
SCHEMAS = {"create_xml_schema_collection", "alter_xml_schema_collection", "drop_xml_schema_collection"}
KEYS = {f"{verb}_master_key" for verb in ("create", "open", "close", "alter", "drop")}
KEYS |= {f"{verb}_certificate" for verb in ("create", "alter", "drop", "backup")}
KEYS |= {f"{verb}_remote_service_binding" for verb in ("create", "alter", "drop")}
LACKING = ROUTES | RIGHTS | SCHEMAS | KEYS | {"release_locks"}
LACKING |= {"execute_tsql", "tsql_session", "defining"}
LACKING |= {"add_master_key_password", "drop_master_key_password", "regenerate_master_key", "sign_with_certificate"}
LACKING |= {"create_event_notification", "drop_event_notification"}
LACKING_OPTIONS = {
    "trustworthy",
    "authorization",
    "retention",
    "schema_collection",
    "activation",
    "filegroup",
    "reorganize",
    "move_to",
}
LACKING_OPTIONS |= {"no_wait", "rollback_after", "read_only"}


@pytest.fixture
def database() -> double.Database:
    instance = double.open()
    made = instance.database("Test", create=True)
    define_standard_set(made)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("real", "ours"), [(sb.Database, double.Database), (sb.Transaction, double.Transaction)], ids=["database", "tx"]
)
def test_the_double_has_the_methods_of_the_api(real: type, ours: type) -> None:
    names = {name for name, _ in inspect.getmembers(real, inspect.isfunction) if not name.startswith("_")}
    assert names - LACKING - set(dir(ours)) == set()
    for name in names - LACKING - {"transaction", "join", "savepoint", "pipeline", "working"}:
        theirs, mine = (inspect.signature(getattr(source, name)).parameters.values() for source in (real, ours))
        lacking = set() if getattr(real, name).__doc__ == getattr(ours, name).__doc__ else LACKING_OPTIONS
        expected = [(p.name, p.kind, p.default) for p in theirs if p.name not in lacking]
        assert [(p.name, p.kind, p.default) for p in mine] == expected, name


def test_run_accepts_only_operations(database: double.Database) -> None:
    handle = database.run(operations.BeginDialog(ORDERS, STOCK, contract=CONTRACT))
    with database.transaction() as tx:
        assert tx.run(operations.Send(handle, ORDER, b"a")) == 0
    assert bodies(database.run(operations.Receive(STOCK_QUEUE))) == [b"a"]
    database.run(operations.EndConversation(handle))
    with refused(402, "operation"):
        database.run(operations.Send)  # type: ignore[arg-type]


def test_sends_of_a_pipeline_leave_before_the_next_verb(database: double.Database) -> None:
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    with database.transaction() as tx, tx.pipeline() as pipeline:
        tx.send(handle, ORDER, b"0")
        tx.send(handle, ORDER, b"1")
        assert pipeline.numbers == []
        assert bodies(tx.receive(STOCK_QUEUE)) == [b"0", b"1"]
        assert pipeline.numbers == [0, 1]


def test_a_queue_that_is_on_again_gets_messages_of_open_dialogs_first(database: double.Database) -> None:
    opened = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    database.send(opened, ORDER, b"first")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"first"]
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"of a new dialog")
    database.send(opened, ORDER, b"of the open one")
    database.alter_queue(STOCK_QUEUE, status=True)
    assert [bodies(database.receive(STOCK_QUEUE)) for _ in range(2)] == [[b"of the open one"], [b"of a new dialog"]]


def test_a_conversation_that_has_failed_already_keeps_no_error_from_the_next_one(database: double.Database) -> None:
    for _ in range(2):
        database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"")
    failed = database.receive(STOCK_QUEUE)[0].conversation_handle
    database.end_conversation(failed, error=(5, "failed"))
    assert len(database.receive(ORDERS_QUEUE)) == 1
    database.alter(error_broker_conversations=True)
    (message,) = database.receive(ORDERS_QUEUE)
    assert "-9719" in (message.message_body or b"").decode("utf-16")


def test_the_double_has_no_connection(database: double.Database) -> None:
    with database.transaction() as tx:
        for missing in (lambda: tx.connection, lambda: database.connection, lambda: database.join(object())):
            with pytest.raises(sb.InstanceError, match="no PostgreSQL"):
                missing()


def test_unsupported_options_are_refused(database: double.Database) -> None:
    with pytest.raises(sb.InstanceError, match="does not support AUTHORIZATION"):
        database.create_message_type("//m", authorization="dbo")
    database.create_message_type("//m", authorization=None)


def test_a_transaction_that_has_ended(database: double.Database) -> None:
    with database.transaction() as tx:
        pass
    for verb in (lambda: tx.receive(STOCK_QUEUE), lambda: tx.savepoint().__enter__()):
        with pytest.raises(sb.InstanceError, match="has ended"):
            verb()


def test_the_clock_stands_still_until_it_jumps(database: double.Database) -> None:
    clock = database.instance.clock
    assert clock() == clock() == datetime(2030, 1, 1, tzinfo=UTC)
    clock.jump(minutes=1, seconds=1)
    clock.jump_to(datetime(2020, 1, 1, tzinfo=UTC))
    assert clock() == datetime(2030, 1, 1, 0, 1, 1, tzinfo=UTC)


def test_a_wait_takes_no_time(database: double.Database) -> None:
    clock = database.instance.clock
    began = clock()
    assert database.receive(STOCK_QUEUE, wait=90.0) == []
    assert (clock() - began).total_seconds() == 90
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, lifetime=100)
    database.begin_conversation_timer(handle, 30)
    (timer,) = database.receive(ORDERS_QUEUE, wait=90.0)
    assert timer.is_timer
    assert (clock() - began).total_seconds() == 120
    assert database.get_conversation_group(ORDERS_QUEUE, wait=10.0) is None
    (error,) = database.receive(ORDERS_QUEUE, wait=float("inf"))
    assert sb.read_error(error.message_body)[0] == -8489
    assert (clock() - began).total_seconds() == 190
    with pytest.raises(double.WouldWait, match="for ever"):
        database.receive(ORDERS_QUEUE, wait=float("inf"))
    with refused(402, "wait"):
        database.receive(ORDERS_QUEUE, wait=-1)


def test_a_verb_that_would_wait_raises(database: double.Database) -> None:
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    with database.transaction() as first, database.transaction() as second:
        first.send(handle, ORDER, b"1")
        for verb in (
            lambda: second.send(handle, ORDER, b"2"),
            lambda: second.end_conversation(handle),
            lambda: database.alter_queue(STOCK_QUEUE, status=False),
            database.instance.upkeep,
        ):
            with pytest.raises(double.WouldWait):
                verb()
        assert second.receive(STOCK_QUEUE) == []
        assert bodies(first.receive(STOCK_QUEUE)) == [b"1"]
    database.send(handle, ORDER, b"2")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]


def test_a_group_stays_locked_beyond_a_savepoint(database: double.Database) -> None:
    database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"1")
    with database.transaction() as tx:
        with pytest.raises(Undo), tx.savepoint():
            assert bodies(tx.receive(STOCK_QUEUE)) == [b"1"]
            raise Undo
        assert database.receive(STOCK_QUEUE) == []
        assert bodies(tx.receive(STOCK_QUEUE)) == [b"1"]
    assert database.receive(STOCK_QUEUE) == []


def test_five_rollbacks_switch_the_queue_off(database: double.Database) -> None:
    database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"poison")
    for _ in range(5):
        with pytest.raises(Undo), database.transaction() as tx:
            tx.receive(STOCK_QUEUE)
            raise Undo
    with refused(9617, STOCK_QUEUE):
        database.receive(STOCK_QUEUE)
    (event,) = database.instance.events.recent()
    assert (event.number, event.name) == (143, "Broker:Queue Disabled")
    database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"poison"]


def test_tables_of_the_double_for_tests(database: double.Database) -> None:
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    with database.transaction() as tx:
        tx.send(handle, ORDER, b"1")
        assert [row["message_body"] for row in tx.queue_messages(STOCK_QUEUE)] == [b"1"]
        assert database.queue_messages(STOCK_QUEUE) == []
    assert [row["state_desc"] for row in database.conversation_endpoints()] == ["CONVERSING", "CONVERSING"]
    assert sorted(row["service_name"] for row in database.conversation_groups()) == [ORDERS, STOCK]
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"2")
    (waiting,) = database.transmission_queue()
    assert (waiting["message_body"], waiting["transmission_status"][:20]) == (b"2", "Target queue is busy")


def test_the_double_refuses_what_the_engine_refuses(database: double.Database) -> None:
    with refused(911):
        database.instance.database("Missing")
    assert database.instance.database("TEST").database_id == database.database_id
    for again in (
        lambda: database.create_message_type(ORDER),
        lambda: database.create_contract(CONTRACT, {ORDER: "ANY"}),
        lambda: database.create_queue(STOCK_QUEUE.upper()),
        lambda: database.create_service(STOCK, STOCK_QUEUE),
    ):
        with refused(2714):
            again()
    for used in (
        lambda: database.drop_message_type(ORDER),
        lambda: database.drop_contract(CONTRACT),
        lambda: database.drop_queue(STOCK_QUEUE),
    ):
        with refused(3716):
            used()
    with refused(9663):
        database.alter_message_type(sb.DEFAULT, "EMPTY")
    with refused(15151):
        database.alter_service(STOCK, drop_contracts=[sb.DEFAULT])
    with refused(8404):
        database.alter_service(STOCK, add_contracts=[CONTRACT])
    database.create_broker_priority("p", local_service_name=STOCK, priority_level=7)
    with refused(33303):
        database.create_broker_priority("q", local_service_name=STOCK)
    with refused(3716):
        database.drop_service(STOCK)
    database.alter_broker_priority("P", priority_level=9, remote_service_name=ORDERS)
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    database.send(handle, ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    assert message.priority == 9
    database.drop_broker_priority("p")
    database.alter_service(STOCK, drop_contracts=[CONTRACT])
    database.drop_contract(CONTRACT)
    database.drop_message_type(MARK)
    (error,) = database.receive(STOCK_QUEUE)
    assert sb.read_error(error.message_body)[0] == -8487
    assert (error.service_contract_name, error.service_name) == ("", STOCK)
    database.drop_service(STOCK)
    database.drop_queue(STOCK_QUEUE)
    with refused(15151, STOCK_QUEUE):
        database.receive(STOCK_QUEUE)
    with refused(8429, "'ER'"):
        database.send(handle, REPLY, b"x")


def test_process(database: double.Database) -> None:
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for text in (b"1", b"2", b"3"):
        database.send(handle, ORDER, text)
    handed = []

    def procedure(transaction: double.Transaction, messages: list[sb.Message]) -> None:
        handed.append(bodies(messages))
        if len(handed) == 2:
            raise Undo

    with pytest.raises(Undo):
        database.process(STOCK_QUEUE, procedure)
    assert database.process(STOCK_QUEUE, procedure, top=2, wait=1.0) == 2
    assert handed == [[b"1"], [b"2"], [b"2", b"3"]]


def test_a_multicast_is_sent_on_all_conversations_or_on_none(database: double.Database) -> None:
    handles = [database.begin_dialog(ORDERS, STOCK, contract=CONTRACT) for _ in range(3)]
    database.send(handles[1], ORDER, b"before")
    assert database.send(handles, ORDER, b"all") == [0, 1, 0]
    with refused(8432):
        database.send(handles, REPLY, b"x")
    ended = handles.pop()
    database.end_conversation(ended)
    with refused(8426, str(ended)):
        database.send([*handles, ended], ORDER, b"x")
    for wrong in ([], [handles[0]] * 2, "handles"):
        with refused(402):
            database.send(wrong, ORDER, b"x")  # type: ignore[arg-type]
    received_bodies = []
    while messages := database.receive(STOCK_QUEUE):
        received_bodies.append(bodies(messages))
    assert sorted(received_bodies, key=str) == [[b"all", None], [b"all"], [b"before", b"all"]]


SHOP = {
    "message_types": {"//shop/Order": "NONE", "//shop/Confirmation": "NONE"},
    "contracts": {"//shop/Ordering": {"//shop/Order": "INITIATOR", "//shop/Confirmation": "TARGET"}},
    "queues": {"OrderQueue": {"retention": True}, "StockQueue": {}},
    "services": {
        "//shop/Orders": {"queue": "OrderQueue"},
        "//shop/Stock": {"queue": "StockQueue", "contracts": ["//shop/Ordering"]},
    },
    "grants": {"web": ["SEND ON SERVICE //shop/Stock"]},
}


@pytest.fixture
def tables(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    """Return a function that connects to the tables of an application."""
    with closing(sqlite3.connect(tmp_path / "tables.db")) as connection:
        connection.execute("create table shipments (item text)")

    def connect() -> sqlite3.Connection:
        path = sqlite3.connect(tmp_path / "tables.db", isolation_level=None)
        path.execute("begin")
        return path

    return connect


def shipped_items(tables: Callable[[], sqlite3.Connection]) -> list[str]:
    with closing(tables()) as connection:
        return [item for (item,) in connection.execute("select item from shipments")]


def test_a_definition_is_applied_and_then_there(database: double.Database) -> None:
    assert len(database.define(SHOP)) == 6  # one queue exists
    assert database.define(SHOP) == []
    assert database.define({"queues": {"StockQueue": {"status": False}}}) == ["alter queue StockQueue: status = false"]


def test_a_message_and_a_row_are_committed_together(tables: Callable[[], sqlite3.Connection]) -> None:
    """The worker's row, its reply and the RECEIVE are committed together or not at all."""
    stock = sb.Worker("StockQueue")
    fails = True

    @stock.on("//shop/Order")
    def order(tx: double.Transaction, message: sb.Message) -> None:
        assert message.message_body is not None
        tx.connection.execute("insert into shipments values (?)", (message.message_body.decode(),))
        with suppress(Undo), tx.savepoint():
            tx.connection.execute("insert into shipments values ('undone')")
            tx.send(message.conversation_handle, "//shop/Confirmation", b"undone")
            raise Undo
        tx.send(message.conversation_handle, "//shop/Confirmation", b"done")
        if fails:
            raise Undo

    db = double.open(connect=tables).database("Shop", create=True)
    db.define(SHOP)
    handle = db.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Ordering")
    with db.working(stock, raises=True), pytest.raises(Undo):
        db.send(handle, "//shop/Order", b"teapot")
    assert (shipped_items(tables), len(db.queue_messages("StockQueue")), db.queue_messages("OrderQueue")) == ([], 1, [])
    fails = False
    with db.working(stock):
        assert bodies(db.receive("OrderQueue", wait=5)) == [b"done"]
        db.end_conversation(handle)
    assert (shipped_items(tables), [row["state"] for row in db.conversation_endpoints()]) == (["teapot"], ["CD"])


def test_a_worker_hears_a_timer_while_the_test_waits(database: double.Database) -> None:
    late = sb.Worker(ORDERS_QUEUE)

    @late.on(sb.DIALOG_TIMER)
    def too_late(tx: double.Transaction, message: sb.Message) -> None:
        tx.send(message.conversation_handle, ORDER, b"late")

    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    database.begin_conversation_timer(handle, 30)
    with database.working(late):
        assert bodies(database.receive(STOCK_QUEUE, wait=60)) == [b"late"]


def test_the_asyncio_api() -> None:
    """Handlers, `process`, savepoints and tables work with await."""
    committed: list[str] = []

    class Rows:
        def __init__(self) -> None:
            self.rows: list[str] = []

        async def execute(self, text: str) -> None:
            self.rows.append(text)

        async def commit(self) -> None:
            committed.extend(self.rows)

        async def rollback(self) -> None:
            self.rows.clear()

        async def close(self) -> None:
            pass

    async def connect() -> Rows:
        return Rows()

    stock = sb.Worker("StockQueue")

    @stock.on("//shop/Order")
    async def order(tx: Any, message: sb.Message) -> None:
        await asyncio.sleep(0)
        await tx.connection.execute("insert")
        await tx.send(message.conversation_handle, "//shop/Confirmation", b"done")

    async def main() -> None:
        async with double.open_async(connect=connect) as instance:
            db = await instance.database("Shop", create=True)
            await db.define(SHOP)
            async with db.working(stock):
                async with db.transaction() as tx:
                    handle = await tx.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Ordering")
                    with suppress(Undo):
                        async with tx.savepoint():
                            await tx.send(handle, "//shop/Order", b"undone")
                            raise Undo
                    async with tx.pipeline() as sent:
                        await tx.send(handle, "//shop/Order", b"teapot")
                    assert sent.numbers == [0]
                assert bodies(await db.receive("OrderQueue", wait=5)) == [b"done"]
            with pytest.raises(Undo):
                async with db.transaction() as tx:
                    await tx.connection.execute("lost")
                    raise Undo
            await db.end_conversation(handle)
            assert await db.process("StockQueue", use_connection) == 1
            assert db.name == "Shop"
            instance.clock.jump(seconds=1)

    async def use_connection(tx: Any, messages: list[sb.Message]) -> None:
        await tx.connection.execute("ignored")

    asyncio.run(main())
    assert [row for row in committed if "savepoint" not in row] == ["insert", "ignored"]


# ---------------------------------------------------------------- requests


def _answering() -> sb.Worker:
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: double.Transaction, message: sb.Message) -> None:
        if message.message_body == b"error":
            tx.end_conversation(message.conversation_handle, error=(7, "no"))
        else:
            tx.send(message.conversation_handle, REPLY, message.message_body or b"")

    return worker


def _ask(database: Any, body: bytes = b"1", **options: Any) -> Any:
    return database.request(ORDERS, STOCK, ORDER, body, contract=CONTRACT, **options)


def test_a_request_is_answered_by_a_worker(database: double.Database) -> None:
    with database.working(_answering()):
        assert _ask(database).body == b"1"
        with pytest.raises(sb.RequestError, match="no") as failed:
            _ask(database, b"error")
    assert failed.value.code == 7
    assert [row["state"] for row in database.conversation_endpoints()] == ["CD", "CD"]


def test_a_request_is_refused_in_a_transaction(database: double.Database) -> None:
    with database.transaction() as tx:
        for asked in (database, tx):
            with refused(226):
                _ask(asked)
        handle = tx.begin_request(ORDERS, STOCK, ORDER, b"1", contract=CONTRACT)
    with database.working(_answering()):
        assert database.wait_for_answer(handle).body == b"1"


def test_a_second_request_with_a_key_sends_nothing(database: double.Database) -> None:
    choices: Any = {"contract": CONTRACT, "idempotency_key": "17", "idempotency_ttl": 60}
    first = database.begin_request(ORDERS, STOCK, ORDER, b"1", **choices)
    second = database.begin_request(ORDERS, STOCK, ORDER, b"1", **choices)
    assert second == first
    assert isinstance(second, sb.RepeatedHandle)
    with database.working(_answering()):
        assert database.request(ORDERS, STOCK, ORDER, b"1", **choices).body == b"1"
    with refused(8426):
        database.request(ORDERS, STOCK, ORDER, b"1", **choices)
    database.instance.clock.jump(seconds=61)
    database.instance.upkeep()
    assert database.begin_request(ORDERS, STOCK, ORDER, b"1", **choices) != first


@pytest.mark.parametrize("late_answers", ["drop", "handle"])
def test_a_late_answer_is_dropped_or_handled(database: double.Database, late_answers: str) -> None:
    before = database.instance.clock()
    with pytest.raises(sb.RequestTimeout, match="not answered") as late:
        _ask(database, timeout=5, keep=10, late_answers=late_answers)
    assert (database.instance.clock() - before).total_seconds() == 5
    handled: list[bytes | None] = []

    def handle(tx: double.Transaction, messages: list[sb.Message]) -> None:
        handled.extend(bodies(messages))

    with database.working(_answering()):
        database.instance.upkeep()
        assert database.process_late_answers(ORDERS_QUEUE, handle) == 0
        database.instance.clock.jump(seconds=12)
        database.instance.upkeep()
        assert database.process_late_answers(ORDERS_QUEUE, handle) == (late_answers == "handle")
    with refused(8426):
        database.wait_for_answer(late.value.handle)
    assert handled == ([b"1"] if late_answers == "handle" else [])


def test_a_request_of_asyncio(database: double.Database) -> None:
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    async def order(tx: Any, message: sb.Message) -> None:
        await tx.send(message.conversation_handle, REPLY, message.message_body)

    async def test() -> None:
        async with double.open_async() as instance:
            asynchronous = await instance.database("Test", create=True)
            define_standard_set(asynchronous._inner)
            with pytest.raises(sb.RequestTimeout):
                await _ask(asynchronous, timeout=0, keep=0, late_answers="handle")
            handled: list[Any] = []

            async def handle(tx: Any, messages: list[sb.Message]) -> None:
                handled.extend(messages)

            async with asynchronous.working(worker):
                assert (await _ask(asynchronous)).body == b"1"
                instance.clock.jump(seconds=2)
                assert await asynchronous.process_late_answers(ORDERS_QUEUE, handle) == 1
            assert bodies(handled) == [b"1"]

    asyncio.run(test())


def test_the_types_of_the_double_are_those_of_the_product_and_its_own_methods() -> None:
    """The stub derives each class from that of the product, and declares what the product lacks."""
    stub = ast.parse(Path(double.__file__).with_suffix(".pyi").read_text())
    classes = [node for node in stub.body if isinstance(node, ast.ClassDef)]
    assert len(classes) == 6
    for declared in classes:
        real, product = getattr(double, declared.name), getattr(sb, declared.name)
        assert ast.unparse(declared.bases[0]) == f"sb.{declared.name}"
        methods = {
            node.name: node for node in declared.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        own = {name for name in set(dir(real)) - set(dir(product)) if name[0] != "_" and name != "connection"}
        assert own <= set(methods)
        for name, node in methods.items():
            if name in dir(real):
                values = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                assert values - {"user"} == set(inspect.signature(getattr(real, name)).parameters) - {"workers", "by"}


READS: dict[str, Callable[[double.Database], object]] = {
    "receive": lambda db: [message.conversation_handle for message in db.receive(ORDERS_QUEUE)],
    "receive groups": lambda db: [message.conversation_handle for message in db.receive(ORDERS_QUEUE, groups=2)],
    "get": lambda db: db.get_conversation_group(ORDERS_QUEUE) and [],
}


@pytest.mark.parametrize("verb", READS)
@pytest.mark.parametrize("due", ["timer", "lifetime", "reply"])
def test_each_verb_that_reads_finds_what_is_due(verb: str, due: str) -> None:
    clock = double.Clock()
    database = double.open(clock=clock).database("Test", create=True)
    define_standard_set(database)  # type: ignore[arg-type]
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, lifetime=60 if due == "lifetime" else 600)
    if due == "timer":
        database.begin_conversation_timer(handle, 60)
    elif due == "reply":
        database.send(handle, ORDER, b"1")
        (message,) = database.receive(STOCK_QUEUE)
        database.send(message.conversation_handle, REPLY, b"later", delay=60)
    clock.jump(seconds=59)
    assert not READS[verb](database)
    clock.jump(seconds=1)
    assert READS[verb](database) == ([] if verb == "get" else [handle])


def test_a_message_type_of_another_contract_names_both() -> None:
    with double.open() as instance:
        database = define_standard_set(instance.database("Test", create=True))
        handle = database.begin_dialog(ORDERS, STOCK)
        with refused(8431, f"is DEFAULT, since its BEGIN DIALOG named none. Begin it with contract '{CONTRACT}'"):
            database.send(handle, ORDER, b"x")
        with refused(402, "is set; it must be bytes or str. To send other objects, register a codec"):
            database.send(handle, sb.DEFAULT, {1})
