"""The listings of the requirement documents, run as they are printed."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from daemons import ServeProcess
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError
from support import eventually, peer_handle, query, state
from tsql_support import listing, rows

SENDER, TARGET, STREAM, DATA, END = "//s/Sender", "//s/Target", "//s/Stream", "//s/Data", "EndOfStream"
REPORT, OTHER = "//Adventure-Works.com/AccountsPayable/ExpenseReport", "//s/Other"


@pytest.fixture
def recycling(instance: sb.Instance, request: pytest.FixtureRequest) -> sb.Database:
    """The published recycling of conversations: its table, procedures and activation."""
    return define_recycling(instance.database(f"Recycling{abs(hash(request.node.name)) % 10**6}", create=True))


def define_recycling(made: sb.Database) -> sb.Database:
    text = listing("000", "-- This table associates", "[…] using Service Broker")
    made.create_message_type(DATA)
    made.create_message_type(END)
    made.create_contract(STREAM, {DATA: "INITIATOR", END: "INITIATOR"})
    made.create_queue("sender_queue")
    made.create_queue("target_queue")
    made.create_service(SENDER, "sender_queue")
    made.create_service(TARGET, "target_queue", [STREAM])
    made.execute_tsql(text)
    return made


SEND = f"EXEC usp_Send '{SENDER}', '{TARGET}', '{STREAM}', '{DATA}', @body"


def handles(database: sb.Database) -> list[UUID]:
    return [handle for (handle,) in rows(database, "SELECT Handle FROM SessionConversations")]  # type: ignore[misc]


def test_000_a_session_reuses_its_conversation(recycling):
    with recycling.tsql_session() as session:
        for number in range(3):
            session.execute(SEND, {"body": bytes([65 + number])})
        ((spid, handle),) = session.execute("SELECT SPID, Handle FROM SessionConversations WHERE SPID = @@SPID").rows
    assert spid > 50
    received = recycling.receive("target_queue")
    assert [message.message_body for message in received] == [b"A", b"B", b"C"]
    assert peer_handle(recycling, handle) == received[0].conversation_handle


def test_000_a_conversation_that_is_gone_is_replaced(recycling):
    results: list[Any] = []
    with Session(recycling, results.append) as session:
        session.run(SEND, {"body": b"first"})
        (lost,) = handles(recycling)
        recycling.end_conversation(lost, cleanup=True)
        session.run(SEND, {"body": b"second"})
    assert [item.number for item in results if isinstance(item, TsqlError)] == [8426]
    (new_handle,) = handles(recycling)
    assert new_handle != lost
    assert [message.message_body for message in recycling.receive("target_queue")] == [b"first"]
    assert [message.message_body for message in recycling.receive("target_queue")] == [b"second"]


def test_000_the_timer_sends_end_of_stream_and_the_target_ends(recycling, instance, clock):
    recycling.execute_tsql(SEND, {"body": b"data"})
    (handle,) = handles(recycling)
    clock.jump(seconds=3601)
    recycling.execute_tsql("EXEC usp_SenderActivation")  # the timer is due: RECEIVE fires it
    assert handles(recycling) == []
    received = recycling.receive("target_queue")
    assert [message.message_type_name for message in received] == [DATA, END]
    with sb.activate(instance):
        recycling.end_conversation(received[0].conversation_handle)  # EndDialog starts the procedure
        eventually(lambda: state(recycling, handle) is None)


@pytest.mark.feature(87)
def test_000_the_timer_starts_the_procedure(recycling, instance, clock):
    recycling.execute_tsql(SEND, {"body": b"data"})
    with sb.activate(instance):
        clock.jump(seconds=3601)
        eventually(lambda: handles(recycling) == [], 40)
    assert [message.message_type_name for message in recycling.receive("target_queue")] == [DATA, END]


def test_000_an_error_is_logged_and_ends_the_conversation(recycling, instance, caplog):
    recycling.execute_tsql(SEND, {"body": b"data"})
    (handle,) = handles(recycling)
    (message,) = recycling.receive("target_queue")
    with caplog.at_level(logging.INFO, "servicebroker"), sb.activate(instance):
        recycling.end_conversation(message.conversation_handle, error=(4711, "no room"))
        eventually(lambda: state(recycling, handle) is None)
        eventually(lambda: 'Received error Code:4711 Description:"no room"' in caplog.text)
    assert handles(recycling) == []


def test_000_the_daemon_starts_the_procedure(make_instance_url, tmp_path):
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        made = define_recycling(instance.database("Daemon", create=True))
        served = ServeProcess(url, tmp_path)
        try:
            served.wait_for_log("serves the instance")
            made.execute_tsql(SEND, {"body": b"data"})
            (handle,) = handles(made)
            (message,) = made.receive("target_queue")
            made.end_conversation(message.conversation_handle, error=(4711, "no room"))
            eventually(lambda: state(made, handle) is None)
            served.wait_for_log('Received error Code:4711 Description:"no room"')
        finally:
            assert served.end() == 0
        assert handles(made) == []


# ---------------------------------------------------------------- 002


@pytest.fixture(params=["https://", "http://"])
def expenses(instance: sb.Instance, request: pytest.FixtureRequest) -> sb.Database:
    """The published handling of poison messages, as printed and with the names that messages really have."""
    process = listing("002", "CREATE PROCEDURE ProcessExpenseReport", "La procédure stockée TrackMessage")
    track = listing("002", "CREATE PROCEDURE TrackMessage", "La définition de table")
    table = listing("002", "CREATE TABLE ExpenseServiceFailedMessages", "La procédure ClearMessageTracking")
    clear = listing("002", "CREATE PROCEDURE ClearMessageTracking", "La stratégie présentée")
    if "AdventureWorks" in {
        name for (name,) in query(instance.database("msdb"), "select name from servicebroker.databases")
    }:
        instance.database("msdb").execute_tsql("DROP DATABASE AdventureWorks")
    database = instance.database("AdventureWorks", create=True)
    database.create_message_type(REPORT)
    database.create_message_type(OTHER)
    database.create_contract("//s/Expenses", {REPORT: "INITIATOR", OTHER: "INITIATOR"})
    database.create_queue("ExpenseQueue")
    database.create_queue("EmployeeQueue")
    database.create_service("//s/Employee", "EmployeeQueue")
    database.create_service("//s/Expense", "ExpenseQueue", ["//s/Expenses"])
    database.execute_tsql(process.replace("https://", request.param))
    database.execute_tsql(track)
    database.execute_tsql(table)
    database.execute_tsql(clear)
    database.execute_tsql(
        """
        CREATE TABLE Reports (report NVARCHAR(100) NOT NULL)
        GO
        CREATE PROCEDURE AddExpenseReport @report NVARCHAR(MAX) AS
            IF @report = N'broken'
                RAISERROR (N'This report cannot be read.', 16, 1)
            ELSE
                INSERT Reports VALUES (@report)"""
    )
    database.is_as_printed = request.param == "https://"  # type: ignore[attr-defined]
    return database


def begin_expenses(database: sb.Database, text: str, message_type: str = REPORT) -> UUID:
    handle = database.begin_dialog("//s/Employee", "//s/Expense", contract="//s/Expenses")
    database.send(handle, message_type, text.encode("utf-16-le"))
    return handle


def process(database: sb.Database) -> list[int]:
    """Run the procedure until it finds nothing; the numbers of the errors that it did not catch."""
    results: list[Any] = []
    with Session(database, results.append) as session:
        session.run("EXEC ProcessExpenseReport")
    return [item.number for item in results if isinstance(item, TsqlError)]


def test_002_good_messages_are_handled_and_the_queue_stays_on(expenses):
    good, bad, unknown = (
        begin_expenses(expenses, "dinner"),
        begin_expenses(expenses, "broken"),
        begin_expenses(expenses, "?", OTHER),
    )
    far = peer_handle(expenses, unknown)
    assert process(expenses) == [50000] * 4  # the fourth failure ends the conversation
    assert rows(expenses, "SELECT report FROM Reports") == [("dinner",)]
    assert rows(expenses, "SELECT * FROM ExpenseServiceFailedMessages") == []
    assert rows(expenses, "SELECT COUNT(*) FROM ExpenseQueue") == [(0,)]
    (error,) = expenses.receive("EmployeeQueue")
    assert error.conversation_handle == bad
    assert sb.read_error(error.message_body) == (500, "Unable to process message.")
    assert state(expenses, good) == "CO"
    assert state(expenses, far) == "CO"  # consumed, and the conversation stays open
    assert query(expenses, "select is_receive_enabled from servicebroker.queues where name = 'ExpenseQueue'") == [
        (True,)
    ]


def test_002_the_end_of_a_conversation(expenses):
    handle = begin_expenses(expenses, "dinner")
    far = peer_handle(expenses, handle)
    expenses.end_conversation(handle)
    assert process(expenses) == []
    assert state(expenses, far) == ("DI" if expenses.is_as_printed else "CD")


def test_002_a_good_report_clears_the_count(expenses):
    handle = begin_expenses(expenses, "dinner")
    far = peer_handle(expenses, handle)
    expenses.execute_tsql("INSERT ExpenseServiceFailedMessages (conversation_handle, count) VALUES (@h, 2)", {"h": far})
    assert process(expenses) == []
    assert rows(expenses, "SELECT * FROM ExpenseServiceFailedMessages") == []


# ---------------------------------------------------------------- 004


@pytest.mark.parametrize("expenses", ["http://"], indirect=True)
def test_004_a_message_is_inspected_and_its_conversation_ended(expenses):
    inspect = listing("004", "use AdventureWorks ;", "Cuando encuentra")
    end = listing("004", "-- End the conversation.", "Cuando una conversación")
    printed = "e29059bb-9922-40f4-a575-66b2e4c70cf9"
    handle = begin_expenses(expenses, "dinner")
    far = str(peer_handle(expenses, handle))
    told = [one.text for one in expenses.execute_tsql(inspect.replace(printed, far)).messages if not one.number]
    assert told == ["No validation -- binary message:", "0x" + "dinner".encode("utf-16-le").hex().upper()]
    assert rows(expenses, "SELECT COUNT(*) FROM ExpenseQueue") == [(1,)]  # the message is in the queue again
    expenses.execute_tsql(end.replace(printed, far))
    (error,) = expenses.receive("EmployeeQueue")
    assert sb.read_error(error.message_body) == (127, "Unable to process message.")
    assert state(expenses, UUID(far)) in ("DO", "CD")
    begin_expenses(expenses, "taken")
    (taken,) = expenses.receive("ExpenseQueue")
    told = expenses.execute_tsql(inspect.replace(printed, str(taken.conversation_handle))).messages
    assert [one.text for one in told][-1] == "No message available."
