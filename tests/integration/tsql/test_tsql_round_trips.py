"""The round trips of a T-SQL procedure: its COMMIT is sent together with its SEND."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.statement_errors import TsqlError
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, begin, begin_with, bodies, query

ANSWER = f"""
CREATE PROCEDURE dbo.Answer AS
BEGIN
    SET NOCOUNT ON
    DECLARE @h UNIQUEIDENTIFIER, @type SYSNAME, @body VARBINARY(MAX)
    BEGIN TRANSACTION
    RECEIVE TOP (1) @h = conversation_handle, @type = message_type_name, @body = message_body FROM {STOCK_QUEUE}
    IF @type = N'{ORDER}'
        SEND ON CONVERSATION @h MESSAGE TYPE [{REPLY}] (@body)
    ELSE IF @type LIKE N'%EndDialog'
        END CONVERSATION @h
    COMMIT
END
"""
TRIED = """
BEGIN TRY
    EXEC dbo.Answer
    SELECT 'done', @@TRANCOUNT, XACT_STATE()
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER(), ERROR_LINE(), ERROR_PROCEDURE(), @@TRANCOUNT, XACT_STATE()
    IF @@TRANCOUNT > 0 ROLLBACK
END CATCH
"""


def test_a_procedure_that_receives_and_answers_waits_three_times(database: sb.Database, trips: list[None]) -> None:
    """To find the procedure, to receive behind BEGIN, and to send before COMMIT."""
    begin_with(database, *[b"%d" % number for number in range(8)])
    database.execute_tsql(ANSWER)
    with database.tsql_session() as session:
        for _ in range(3):
            session.execute("EXEC dbo.Answer")
        del trips[:]
        for _ in range(5):
            session.execute("EXEC dbo.Answer")
        assert len(trips) == 15
        assert session.execute(TRIED).rows == [("done", 0, 0)]  # with nothing to receive
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"%d" % number for number in range(8)]


def test_a_stale_cache_is_detected_within_the_transaction(database: sb.Database) -> None:
    """Another session alters the queue: the SEND that has COMMIT behind it does nothing, and is done the other way."""
    begin_with(database, b"1", b"2", b"3")
    database.execute_tsql(ANSWER)
    with database.tsql_session() as session:
        session.execute("EXEC dbo.Answer; EXEC dbo.Answer")
        query(database, "update servicebroker.queues set catalog_version = catalog_version + 1 returning 1")
        assert session.execute(TRIED).rows == [("done", 0, 0)]
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"1", b"2", b"3"]
    assert not database.receive(STOCK_QUEUE)


def test_a_send_that_is_refused_leaves_the_transaction_open(database: sb.Database) -> None:
    handle = begin_with(database, b"1", b"2", b"3")
    database.execute_tsql(ANSWER)
    with database.tsql_session() as session:
        session.execute("EXEC dbo.Answer; EXEC dbo.Answer")
        database.end_conversation(handle)
        assert session.execute(TRIED).rows == [(8429, 8, "Answer", 1, 1)]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"3", None]  # ROLLBACK has put it back


def test_a_loop_of_sends_is_committed_behind_it(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"0")
    script = f"""
        DECLARE @n INT = 0
        BEGIN TRANSACTION
        WHILE @n < 3
        BEGIN
            SET @n = @n + 1
            IF @n = @last THROW 50000, 'the last', 1
            SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (0x31)
        END
        {{}}"""
    with database.tsql_session() as session:
        session.execute(f"SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (0x30)", {"h": handle})
        for end in ("SELECT @@TRANCOUNT; ROLLBACK", "COMMIT; SELECT @@TRANCOUNT"):
            session.execute(script.format(end), {"h": handle, "last": 0})
        with pytest.raises(TsqlError, match="the last"):  # the batch ends before the COMMIT
            session.execute(script.format("COMMIT"), {"h": handle, "last": 3})
    assert bodies(database.receive(STOCK_QUEUE)) == [b"0", b"0", b"1", b"1", b"1"]


def test_a_commit_that_is_refused_is_told_where_it_stands(database: sb.Database) -> None:
    """A deferred constraint of a table that the application has made for T-SQL to write."""
    begin_with(database, b"1", b"2")
    database.execute_tsql(f"CREATE TABLE dbo.Known (n INT PRIMARY KEY)\nGO\nCREATE TABLE dbo.Log (n INT)\nGO\n{ANSWER}")
    schema = f"{database.name.lower()}_dbo"
    with database.instance.connection() as connection:
        foreign = f"foreign key (n) references {schema}.known initially deferred"
        connection.execute(f"alter table {schema}.log add {foreign}".encode())
    writing = ANSWER.replace("CREATE", "ALTER").replace("RECEIVE", "INSERT dbo.Log VALUES (1); RECEIVE")
    with database.tsql_session() as session:
        session.execute(f"EXEC dbo.Answer\nGO\n{writing}")
        assert session.execute(TRIED).rows == [(547, 11, "Answer", 0, 0)]
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"1"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]


def test_statements_that_come_once_wait_once(database: sb.Database, trips: list[None]) -> None:
    """They are not prepared, which would be a wait of its own; what comes again is."""
    database.execute_tsql("CREATE TABLE dbo.Once (n INT, t NVARCHAR(20))\nGO\nINSERT dbo.Once VALUES (0, N'0')")
    with database.tsql_session() as session:
        session.execute("INSERT dbo.Once (n, t) VALUES (1, N'a')")
        del trips[:]
        for number in range(2, 8):
            session.execute(f"INSERT dbo.Once (n, t) VALUES ({number}, N'{number}')")
        assert len(trips) == 6
        del trips[:]
        for _ in range(4):
            session.execute("INSERT dbo.Once (n, t) VALUES (8, N'8')")
        assert len(trips) == 5  # the statement was prepared
        assert query(database, f"select count(*) from {database.name.lower()}_dbo.once") == [(12,)]


ASK = f"""
CREATE PROCEDURE dbo.Ask @body VARBINARY(MAX) AS
BEGIN
    SET NOCOUNT ON
    DECLARE @h UNIQUEIDENTIFIER
    BEGIN TRANSACTION
    BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE N'{STOCK}' ON CONTRACT [{CONTRACT}] WITH ENCRYPTION = OFF;
    BEGIN CONVERSATION TIMER (@h) TIMEOUT = 600;
    SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (@body)
    COMMIT
END
"""


def test_a_new_conversation_waits_once(database: sb.Database, trips: list[None]) -> None:
    """To find the procedure, and for all of its statements together."""
    database.execute_tsql(ASK)
    with database.tsql_session() as session:
        for _ in range(3):
            session.execute("EXEC dbo.Ask 0x30")
        del trips[:]
        for number in range(5):
            session.execute("EXEC dbo.Ask @body", {"body": b"%d" % number})
        assert len(trips) == 10
    received = [bodies(database.receive(STOCK_QUEUE)) for _ in range(8)]
    assert received == [[body] for body in (b"0", b"0", b"0", b"0", b"1", b"2", b"3", b"4")]


def test_a_deferred_conversation_is_sent_before_a_query_for_it(database: sb.Database) -> None:
    ask = f"BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE N'{STOCK}' ON CONTRACT [{CONTRACT}]; "
    send = f"SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (0x31); "
    look = "SELECT state FROM sys.conversation_endpoints WHERE conversation_handle = @h; "
    with database.tsql_session() as session:
        declare = "DECLARE @h UNIQUEIDENTIFIER; BEGIN TRANSACTION; "
        for _ in range(2):
            session.execute(declare + ask + send + "COMMIT")
        found = session.execute(declare + ask + look + send + look + ask + send + look + "COMMIT")
        assert [result_set.rows for result_set in found.sets] == [[("SO",)], [("CO",)], [("CO",)]]
        session.execute(declare + ask + send + "ROLLBACK")
        saved = "SAVE TRANSACTION s; " + ask + send + "ROLLBACK TRANSACTION s; "
        session.execute(declare + ask + send + saved + ask + send + "COMMIT")
        caught = "BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH SELECT XACT_STATE() END CATCH; "
        assert session.execute(declare + ask + send + caught + ask + "COMMIT").rows == [(1,)]
    assert sum(len(database.receive(STOCK_QUEUE)) for _ in range(20)) == 7


def test_commit_refuses_a_conversation_of_a_dropped_service(database: sb.Database) -> None:
    database.execute_tsql(ASK)
    with database.tsql_session() as session:
        for _ in range(2):
            session.execute("EXEC dbo.Ask 0x30")
        database.drop_service(ORDERS)
        tried = TRIED.replace("dbo.Answer", "dbo.Ask 0x31")
        assert session.execute(tried).rows == [(8423, 9, "Ask", 0, 0)]
