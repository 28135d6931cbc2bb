"""Activated procedures: their forms, arguments and rights, and the transactions that they leave open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import servicebroker as sb
from activation_support import PROCEDURE, CallRecorder, count_logged, send, switch_on
from support import CONTRACT, ORDER, ORDERS, REPLY, STOCK, STOCK_QUEUE, begin, bodies, eventually, refused

pytestmark = pytest.mark.usefixtures("remove_activation_afterwards")


def test_messages_in_a_batch_come_by_groups(active: sb.Database, recorder: CallRecorder) -> None:
    received: list[list[bytes | None]] = []

    @sb.procedure(PROCEDURE, form="batch")
    def stock(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        received.append(bodies(messages))

    with active.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        for number in range(5):
            transaction.send(handle, ORDER, str(number))
    switch_on(active)
    eventually(lambda: received == [[b"0", b"1", b"2", b"3", b"4"]])


def test_groups_share_a_transaction(active: sb.Database, recorder: CallRecorder) -> None:
    transactions: set[int] = set()

    @sb.procedure(PROCEDURE, groups=50)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        ((number,),) = transaction.connection.execute("select txid_current()").fetchall()
        transactions.add(number)
        recorder.bodies.append(message.message_body)

    with active.transaction() as transaction:
        for number in range(5):
            handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            transaction.send(handle, ORDER, b"%d" % number)
    switch_on(active)
    eventually(lambda: len(recorder.bodies) == 5)
    assert len(transactions) == 1
    with refused(402, "groups"):
        sb.procedure(PROCEDURE, form="transaction", groups=2)


@pytest.mark.parametrize("form", ["message", "batch", "transaction", "database"])
def test_activation_awaits_coroutine_functions(active: sb.Database, recorder: CallRecorder, form: Any) -> None:
    """Activation awaits a coroutine function of each form."""

    async def take(transaction: Any, messages: Any) -> None:
        messages = messages if isinstance(messages, list) else [messages]
        for message in messages:
            recorder.bodies.append(message.message_body)
            await transaction.send(message.conversation_handle, REPLY, b"done")

    async def take_by_itself(transaction: Any) -> None:
        await take(transaction, await transaction.receive(STOCK_QUEUE))

    async def begin_and_take(database: sb.AsyncDatabase) -> None:
        async with database.transaction() as transaction:
            await take_by_itself(transaction)

    functions = {"transaction": take_by_itself, "database": begin_and_take}
    sb.procedure(PROCEDURE, form=form)(functions.get(form, take))
    switch_on(active)
    handle = begin(active)
    active.send(handle, ORDER, b"one")
    active.send(handle, ORDER, b"two")
    answers: list[sb.Message] = []
    eventually(lambda: len(answers) == 2 or answers.extend(active.receive("OrdersQueue", wait=1)))  # type: ignore[func-returns-value]
    assert recorder.bodies == [b"one", b"two"]


@pytest.mark.feature(172)
def test_a_procedure_of_one_message_drains_a_hundred(active: sb.Database, recorder: CallRecorder) -> None:
    """The procedure returns after each message, and is started again as long as messages are left."""

    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        recorder.calls += 1
        recorder.bodies += bodies(transaction.receive(STOCK_QUEUE, top=1))

    send(active, "x", conversations=100)
    switch_on(active)
    eventually(lambda: len(recorder.bodies) == 100)
    assert recorder.calls >= 100


def test_tsql_of_an_activated_coroutine_works_in_its_session(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    script = (
        "DECLARE @b varbinary(max); RECEIVE TOP (1) @b = message_body FROM StockQueue; "
        "SELECT program_name, @b FROM sys.dm_exec_sessions WHERE session_id = @@SPID"
    )

    async def stock(database: sb.AsyncDatabase) -> None:
        async with database.instance.connection() as own:
            name = own.info.parameter_status("application_name")
        [(program, body)] = (await database.execute_tsql(script)).rows
        assert (program, "usp_Stock" in program) == (name, True)
        recorder.bodies.append(body)

    sb.procedure(PROCEDURE, form="database")(stock)
    send(active, "x")
    switch_on(active)
    eventually(lambda: b"x" in recorder.bodies, 30)
    assert count_logged(caplog, 28088) == 0


@pytest.mark.parametrize("form", ["message", "batch", "transaction", "database"])
def test_a_generator_function_is_no_procedure(form: Any) -> None:
    def stock(*_: object) -> Iterator[None]:
        yield

    def of_one(_: object) -> Iterator[None]:
        yield

    with refused(402, "generator"):
        sb.procedure(PROCEDURE, form=form)(of_one if form in ("transaction", "database") else stock)


def test_a_result_that_is_work_not_done_undoes_the_transaction(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """A procedure that returns a coroutine has not run it, so its messages must go back to the queue."""

    async def work(messages: list[sb.Message]) -> None:
        recorder.bodies += bodies(messages)

    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> Any:
        messages = transaction.receive(STOCK_QUEUE)
        recorder.calls += 1
        if recorder.calls == 1:
            return work(messages)
        recorder.bodies += bodies(messages)
        return None

    send(active, "x")
    switch_on(active)
    eventually(lambda: recorder.bodies == [b"x"], 30)
    assert "its work is not done" in caplog.text


def test_an_object_with_an_async_call_is_awaited(active: sb.Database, recorder: CallRecorder) -> None:
    class Stock:
        async def __call__(self, transaction: sb.AsyncTransaction, message: sb.Message) -> None:
            recorder.bodies.append(message.message_body)

    sb.procedure(PROCEDURE)(Stock())
    send(active, "x")
    switch_on(active)
    eventually(lambda: recorder.bodies == [b"x"], 30)


@pytest.mark.feature(175)
@pytest.mark.parametrize("how", ["never left", "begun on the connection"])
def test_an_open_transaction_at_the_end_is_undone(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        recorder.calls += 1
        if recorder.calls > 1:
            recorder.bodies += bodies(database.receive(STOCK_QUEUE))
        elif how == "never left":
            block = database.transaction()
            block.__enter__().receive(STOCK_QUEUE)
        else:
            with database.instance.connection() as connection:
                connection.execute("begin")
                database.join(connection).receive(STOCK_QUEUE)

    send(active, "x")
    switch_on(active)
    eventually(lambda: count_logged(caplog, 8415))
    eventually(lambda: recorder.bodies == [b"x"])


@pytest.mark.feature(177)
def test_a_procedure_has_no_rights_in_the_instance(active: sb.Database, recorder: CallRecorder, caplog: Any) -> None:
    """The procedure acts as a user of its database. Another database admits it as guest only: nothing is signed."""
    other_database = active.instance.database("Elsewhere", create=True)
    told: list[Exception] = []

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        instance = database.instance
        for attempt in (
            lambda: instance.drop_database(other_database.name),
            lambda: instance.create_endpoint("e", listener_port=4022),
            lambda: instance.database("New", create=True),
            lambda: instance.database(other_database.name, user="dbo"),
        ):
            try:
                attempt()
            except sb.BrokerError as problem:
                told.append(problem)
        assert instance.database(other_database.name).user.name == "guest"
        assert instance.database(database.name).user == database.user
        recorder.bodies += bodies(database.receive(STOCK_QUEUE))

    other_database.grant("CONNECT", "guest")
    switch_on(active)
    send(active, "x")
    eventually(lambda: bool(recorder.bodies))
    assert [problem.number for problem in told[:4]] == [15247, 15247, 15247, 15517]
    assert "signed" in str(told[0])


def test_tsql_of_a_procedure_is_guest_in_another_database(active: sb.Database, recorder: CallRecorder) -> None:
    other_database = active.instance.database("Storehouse", create=True)
    other_database.grant("CONNECT", "guest")
    other_database.execute_tsql("CREATE TABLE Secrets (n INT); INSERT INTO Secrets VALUES (7)")
    results: list[object] = []

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        results.extend(database.execute_tsql("USE Storehouse; SELECT USER_NAME()").rows)
        try:
            results.extend(database.execute_tsql("SELECT n FROM Storehouse.dbo.Secrets").rows)
        except sb.BrokerError as refusal:
            results.append(refusal.number)
        recorder.bodies += bodies(database.receive(STOCK_QUEUE))

    switch_on(active)
    send(active, "x")
    eventually(lambda: bool(recorder.bodies))
    assert results[:2] == [("guest",), 229]


@pytest.mark.feature(169)
@pytest.mark.parametrize(("execute_as", "expected"), [("SELF", "dbo"), ("Clerk", "Clerk"), ("OWNER", "Manager")])
def test_execute_as(active: sb.Database, recorder: CallRecorder, execute_as: str, expected: str) -> None:
    """The procedure runs as the user of EXECUTE AS, with the permissions of that user only."""
    results: list[str] = []

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        results.append(database.user.name)
        try:
            recorder.bodies += bodies(database.receive(STOCK_QUEUE))
        except sb.BrokerError as refusal:
            results.append(str(refusal.number))

    for user in ("Clerk", "Manager"):
        active.create_user(user)
    active.alter_authorization("Manager", queue=STOCK_QUEUE)
    switch_on(active, execute_as=execute_as)
    send(active, "x")
    eventually(lambda: bool(recorder.bodies) or len(results) > 1)
    assert set(results) == ({expected, "229"} if execute_as == "Clerk" else {expected})
