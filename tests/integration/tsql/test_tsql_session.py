"""T-SQL scripts in a session: statements of the broker, control flow, errors, transactions, procedures."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest

import servicebroker as sb
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import TsqlError
from support import CONTRACT, DOCUMENT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, query
from tsql_support import failing, scalar, texts

SEND_THREE_MESSAGES = f"""
DECLARE @h UNIQUEIDENTIFIER;
BEGIN DIALOG CONVERSATION @h FROM SERVICE [{ORDERS}] TO SERVICE '{STOCK}' ON CONTRACT [{CONTRACT}]
    WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (N'first');
SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (0x0203);
SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}];
"""


def output_and_errors(database: sb.Database, script: str) -> list[Any]:
    """Return the result sets, messages and errors of a script."""
    output: list[Any] = []
    from servicebroker.tsql.session import Session

    with Session(database, output.append) as session:
        session.run(script)
    return output


@pytest.mark.feature(9)
@pytest.mark.parametrize(
    ("text", "encoding", "number"),
    [
        ("<a/><b>é</b>", "utf-8", 0),
        ("one <a/> two", "utf-16", 0),  # the encoding of an xml body
        ("text é", "utf-16-le", 0),  # the encoding of an nvarchar body
        ("<a>é€</a>", "utf-16-be", 0),
        ("\ufeff<a>é€</a>", "utf-16-be", 0),
        ('<?xml version="1.0" encoding="ISO-8859-1"?><a>é</a>t', "latin-1", 0),
        ('<?xml version="1.0" encoding="ISO-8859-2"?><a>ł</a>', "iso-8859-2", 0),
        ("", "utf-8", 0),
        ("<a>" * 127 + "<b/>" + "</a>" * 127, "utf-8", 0),
        ("<a>" * 128 + "<b/>" + "</a>" * 128, "utf-8", 6335),
        ("<!DOCTYPE a><a/>", "utf-16", 6359),
        ("<a>", "utf-8", 9400),
    ],
)
def test_validation_and_cast_accept_the_same_xml(database: sb.Database, text: str, encoding: str, number: int) -> None:
    """Several roots, text alone, and the empty string are accepted; a DTD is not."""
    body = text.encode(encoding)
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    database.send(handle, DOCUMENT, body)
    (message,) = database.receive(STOCK_QUEUE)
    assert message.is_error is bool(number)
    for script in (
        f"DECLARE @x XML = 0x{body.hex()}; SELECT CAST(@x AS NVARCHAR(MAX))",
        f"SELECT CAST(CAST(c AS XML) AS NVARCHAR(MAX)) FROM (SELECT 0x{body.hex()} AS c) t",
    ):
        if number:
            assert failing(database, script).number == number
        else:
            assert scalar(database, script) == re.sub(r"^\ufeff|<\?xml .*?\?>", "", text)


def test_a_script_sends_xml_content(database: sb.Database) -> None:
    """Send several root elements, an empty value, and text."""
    script = f"""
    DECLARE @h UNIQUEIDENTIFIER, @x XML = (SELECT name AS [@n] FROM (VALUES (N'a'), (N'b')) v (name)
                                           FOR XML PATH('row'), TYPE), @none XML = N'';
    BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE '{STOCK}' ON CONTRACT [{CONTRACT}] WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @h MESSAGE TYPE [{DOCUMENT}] (@x);
    SEND ON CONVERSATION @h MESSAGE TYPE [{DOCUMENT}] (@none);
    SEND ON CONVERSATION @h MESSAGE TYPE [{DOCUMENT}] (N'text');
    SEND ON CONVERSATION @h MESSAGE TYPE [{DOCUMENT}];
    RECEIVE message_type_name, CAST(message_body AS XML) AS body FROM {STOCK_QUEUE}
    """
    rows = database.execute_tsql(script).rows
    assert rows == [(DOCUMENT, body) for body in ('<row n="a"/><row n="b"/>', "", "text", None)]


def test_a_conversation_from_begin_to_end(database):
    database.execute_tsql(SEND_THREE_MESSAGES)
    results = database.execute_tsql(
        f"RECEIVE message_type_name, message_body, message_sequence_number FROM {STOCK_QUEUE}"
    )
    (result_set,) = results.sets
    assert result_set == ResultSet(
        ("message_type_name", "message_body", "message_sequence_number"),
        [(ORDER, "first".encode("utf-16-le"), 0), (ORDER, b"\x02\x03", 1), (ORDER, None, 2)],
    )


def test_python_and_tsql_see_the_same_objects(database):
    database.execute_tsql(SEND_THREE_MESSAGES)
    (first, *_) = database.receive(STOCK_QUEUE)
    database.send(first.conversation_handle, REPLY, "grüß".encode("utf-16-le"))
    script = f"RECEIVE CAST(message_body AS NVARCHAR(MAX)) AS text, status FROM dbo.[{ORDERS_QUEUE}]"
    assert database.execute_tsql(script).sets == [ResultSet(("text", "status"), [("grüß", 0)])]


@pytest.mark.feature(56)
def test_the_column_list_of_receive(database):
    """Columns, expressions over columns, subqueries, and three ways to name a column."""
    database.execute_tsql(
        SEND_THREE_MESSAGES + "\nCREATE TABLE words (n INT, word NVARCHAR(10)); INSERT words VALUES (0, N'zero')"
    )
    script = f"""
        DECLARE @plus INT = 10;
        RECEIVE TOP (1)
            message_sequence_number,
            message_sequence_number + @plus AS later,
            n = message_sequence_number * 2,
            CAST(message_body AS NVARCHAR(MAX)) text,
            CASE WHEN message_type_name = N'{ORDER}' THEN 'order' ELSE 'other' END AS [what it is],
            (SELECT word FROM words WHERE n = message_sequence_number) AS word,
            1 + 1,
            {STOCK_QUEUE}.validation
        FROM dbo.{STOCK_QUEUE}"""
    (result_set,) = database.execute_tsql(script).sets
    columns = ("message_sequence_number", "later", "n", "text", "what it is", "word", "", "validation")
    assert result_set.columns == columns
    assert result_set.rows == [(0, 10, 0, "first", "order", "zero", 2, "N")]
    (everything_left,) = database.execute_tsql(f"RECEIVE * FROM {STOCK_QUEUE}").sets
    assert len(everything_left.columns) == 15
    assert "message_enqueue_time" in everything_left.columns
    assert [row[everything_left.columns.index("message_sequence_number")] for row in everything_left.rows] == [1, 2]


@pytest.mark.feature(56)
@pytest.mark.parametrize(
    ("item", "number"),
    [
        ("COUNT(*)", 4142),
        ("MAX(message_sequence_number) AS last", 4142),
        ("n = SUM(status)", 4142),
        ("status + MIN(priority)", 4142),
        ("nothing_of_the_kind", 207),
    ],
)
def test_invalid_column_lists_of_receive_are_refused(database, item, number):
    database.execute_tsql(SEND_THREE_MESSAGES)
    assert failing(database, f"RECEIVE {item} FROM {STOCK_QUEUE}").number == number
    assert len(database.receive(STOCK_QUEUE)) == 3  # no message was received


@pytest.mark.feature(56, 67)
@pytest.mark.parametrize("begins", ["", "BEGIN TRANSACTION; "])
def test_a_failed_conversion_leaves_the_messages_in_the_queue(database, begins):
    database.execute_tsql(SEND_THREE_MESSAGES)
    for number, script in [
        (245, f"DECLARE @n INT; {begins}RECEIVE TOP (1) @n = message_type_name FROM {STOCK_QUEUE}"),
        (245, f"{begins}RECEIVE CAST(message_type_name AS INT) FROM {STOCK_QUEUE}"),
        (8134, f"{begins}RECEIVE 1 / message_sequence_number FROM {STOCK_QUEUE}; IF @@TRANCOUNT > 0 ROLLBACK"),
        (213, f"DECLARE @t TABLE (n INT); {begins}RECEIVE * FROM {STOCK_QUEUE} INTO @t; IF @@TRANCOUNT > 0 ROLLBACK"),
    ]:
        output = [error for error in output_and_errors(database, script) if isinstance(error, sb.BrokerError)]
        assert [error.number for error in output] == [number]
    assert scalar(database, "SELECT @@TRANCOUNT") == 0
    assert len(database.receive(STOCK_QUEUE)) == 3


@pytest.mark.feature(57)
def test_an_empty_receive_keeps_the_old_values_of_variables(database):
    database.execute_tsql(SEND_THREE_MESSAGES)
    script = f"""
        DECLARE @type SYSNAME = N'none', @body VARBINARY(MAX) = 0x01, @n INT;
        RECEIVE TOP (1) @type = message_type_name, @body = message_body FROM {STOCK_QUEUE} SET @n = @@ROWCOUNT;
        SELECT @type, @body, @n;
        RECEIVE TOP (2) @body = message_body FROM {STOCK_QUEUE};
        SELECT @body, @@ROWCOUNT;
        SET @type = N'kept';
        WAITFOR (RECEIVE @type = message_type_name FROM {STOCK_QUEUE}), TIMEOUT 10;
        SELECT @type, @@ROWCOUNT"""
    sets = database.execute_tsql(script).sets
    assert [result_set.rows for result_set in sets] == [
        [(ORDER, "first".encode("utf-16-le"), 1)],
        [(None, 2)],  # the last of two messages has no body
        [("kept", 0)],
    ]
    assert failing(database, f"RECEIVE @a = message_body, status FROM {STOCK_QUEUE}").number == 8447
    assert failing(database, f"RECEIVE @a = message_body FROM {STOCK_QUEUE}").number == 137
    assert failing(database, f"DECLARE @a INT; RECEIVE @a = COUNT(*) FROM {STOCK_QUEUE}").number == 4142


@pytest.mark.feature(58)
def test_receive_into_a_table_variable_whose_columns_are_spelled_with_capitals(database):
    """The loop of many procedures: all messages of a group into a table, and a cursor over that."""
    database.execute_tsql(SEND_THREE_MESSAGES)
    results = database.execute_tsql(
        f"""DECLARE @Messages TABLE ([Handle] UNIQUEIDENTIFIER, [Number] BIGINT, [xmin] SYSNAME, Body VARBINARY(MAX));
        RECEIVE conversation_handle, message_sequence_number, message_type_name, message_body
        FROM {STOCK_QUEUE} INTO @Messages;
        DECLARE @type SYSNAME, @body VARBINARY(MAX);
        DECLARE each_one CURSOR LOCAL FAST_FORWARD FOR SELECT [xmin], Body FROM @Messages ORDER BY Number;
        OPEN each_one; FETCH NEXT FROM each_one INTO @type, @body; CLOSE each_one; DEALLOCATE each_one;
        SELECT @type AS type, CAST(@body AS NVARCHAR(10)) AS body"""
    )
    assert results.rows == [(ORDER, "first")]


@pytest.mark.feature(58)
def test_receive_into_a_table_variable(database):
    database.execute_tsql(SEND_THREE_MESSAGES)
    script = f"""
        DECLARE @t TABLE (n BIGINT, body VARBINARY(MAX), type NVARCHAR(256));
        RECEIVE message_sequence_number, message_body, message_type_name FROM {STOCK_QUEUE} INTO @t;
        SELECT @@ROWCOUNT;
        SELECT n, body, type FROM @t ORDER BY n"""
    counted, result_set = database.execute_tsql(script).sets
    assert counted.rows == [(3,)]
    assert result_set.rows == [(0, "first".encode("utf-16-le"), ORDER), (1, b"\x02\x03", ORDER), (2, None, ORDER)]
    declared = "DECLARE @t TABLE (n BIGINT); "
    assert failing(database, declared + f"RECEIVE @x = status FROM {STOCK_QUEUE} INTO @t").number == 8450
    assert failing(database, f"RECEIVE status FROM {STOCK_QUEUE} INTO @nowhere").number == 1087
    database.execute_tsql(SEND_THREE_MESSAGES)
    assert failing(database, declared + f"RECEIVE * FROM {STOCK_QUEUE} INTO @t").number == 213


@pytest.mark.feature(66)
def test_an_empty_receive_has_no_rows(database):
    assert scalar(database, f"WAITFOR (RECEIVE * FROM {STOCK_QUEUE}), TIMEOUT 1; SELECT @@ROWCOUNT") == 0
    results = database.execute_tsql(f"RECEIVE * FROM {STOCK_QUEUE}")
    assert results.rows == []
    assert results.sets[0].columns[0] == "status"


def test_errors_have_number_level_and_line(database):
    error = failing(database, "PRINT 'x'\n\nSEND ON CONVERSATION '6d9a2f2e-8a4b-4b43-8f3e-0c9b3d0a4a52' (N'x')")
    assert error.number == 8426
    assert str(error).startswith("Msg 8426, Level 16, State 1, Line 3: ")
    assert isinstance(error, sb.BrokerError)


def test_a_failed_statement_does_not_end_the_batch(database):
    output = output_and_errors(database, f"SEND ON CONVERSATION '{uuid4()}' (N'x')\nPRINT @@ERROR\nPRINT @@ERROR")
    assert [getattr(message, "text", message) for message in output][1:] == ["8426", "0"]


def test_an_error_of_one_batch_does_not_stop_the_next(database):
    output = output_and_errors(database, "THROW 50001, 'a', 1\nPRINT 'never'\nGO\nPRINT 'next'\nGO\nSELECT 'open")
    assert [message.text.split("\n")[0] for message in output] == [
        "a",
        "next",
        "Unclosed quotation mark after the character string 'open'.",
    ]


def test_try_and_catch(database):
    script = """
        BEGIN TRY
            SELECT 1 / 0;
            PRINT 'never';
        END TRY
        BEGIN CATCH
            SELECT ERROR_NUMBER(), ERROR_SEVERITY(), ERROR_STATE(), ERROR_LINE(), ERROR_PROCEDURE();
            BEGIN TRY
                THROW;
            END TRY
            BEGIN CATCH
                PRINT ERROR_MESSAGE();
            END CATCH
        END CATCH
        SELECT ERROR_NUMBER()"""
    results = database.execute_tsql(script)
    assert results.sets[-2].rows == [(8134, 16, 1, 3, None)]
    assert results.sets[-1].rows == [(None,)]
    assert [message.text for message in results.messages] == ["Divide by zero error encountered."]
    # ERROR_PROCEDURE() is NULL for an error in EXEC ('...')
    caught = "BEGIN TRY EXEC ('SELECT 1/0') END TRY BEGIN CATCH SELECT ERROR_PROCEDURE() END CATCH"
    database.execute_tsql(f"CREATE PROCEDURE Dynamic AS {caught}")
    assert database.execute_tsql("EXEC Dynamic").sets[-1].rows == [(None,)]


def test_transactions_count_and_roll_back(database):
    script = f"""
        CREATE TABLE counts (n INT NOT NULL);
        BEGIN TRAN outermost;
        INSERT counts VALUES (1);
        BEGIN TRAN;
        SELECT @@TRANCOUNT, XACT_STATE();
        COMMIT;
        SAVE TRAN here;
        INSERT counts VALUES (2);
        {SEND_THREE_MESSAGES}
        ROLLBACK TRAN here;
        INSERT counts VALUES (NULL);
        INSERT counts VALUES (3);
        COMMIT;
        SELECT @@TRANCOUNT;
        SELECT n FROM counts ORDER BY n"""
    output = output_and_errors(database, script)
    sets = [result_set.rows for result_set in output if isinstance(result_set, ResultSet)]
    assert sets == [[(2, 1)], [(0,)], [(1,), (3,)]]
    assert [error.number for error in output if isinstance(error, TsqlError)] == [515]
    assert database.receive(STOCK_QUEUE) == []
    assert failing(database, "COMMIT").number == 3902
    assert failing(database, "ROLLBACK").number == 3903
    assert failing(database, "BEGIN TRAN; ROLLBACK TRAN nowhere").number == 6401


def test_an_open_transaction_is_rolled_back_at_the_end(database):
    database.execute_tsql("BEGIN TRAN\n" + SEND_THREE_MESSAGES)
    assert database.receive(STOCK_QUEUE) == []


def test_definitions_belong_to_the_transaction(database):
    script = "BEGIN TRAN; CREATE QUEUE later; CREATE SERVICE [//later] ON QUEUE later; {}; SELECT COUNT(*) FROM later"
    assert failing(database, script.format("ROLLBACK")).number == 208
    assert scalar(database, script.format("COMMIT")) == 0
    assert failing(database, "BEGIN TRAN; ALTER DATABASE CURRENT SET NEW_BROKER").number == 226


def test_xact_abort_dooms_in_try(database):
    script = """
        SET XACT_ABORT ON;
        CREATE TABLE doomed (n INT PRIMARY KEY);
        BEGIN TRY
            BEGIN TRAN;
            INSERT doomed VALUES (1);
            INSERT doomed VALUES (1);
        END TRY
        BEGIN CATCH
            PRINT XACT_STATE();
            PRINT ERROR_NUMBER();
            BEGIN TRY
                COMMIT;
            END TRY
            BEGIN CATCH
                PRINT ERROR_NUMBER();
            END CATCH
            ROLLBACK;
        END CATCH
        PRINT @@TRANCOUNT"""
    assert texts(database, script) == ["-1", "2627", "3930", "0"]


def test_procedures_have_defaults_output_and_return_values(database):
    database.execute_tsql(
        """
        CREATE PROCEDURE dbo.Twice @n INT, @text NVARCHAR(20) = N'none', @result INT = NULL OUTPUT AS
        BEGIN
            SET NOCOUNT ON;
            SET @result = @n * 2;
            IF @text = N'fail' RAISERROR (N'%s: %i', 16, 3, @text, @n);
            SELECT @text;
            RETURN 7;
        END"""
    )
    script = "DECLARE @r INT, @c INT; EXEC @c = Twice @text = N'a', @n = 4, @result = @r OUTPUT; SELECT @r, @c"
    assert [result_set.rows for result_set in database.execute_tsql(script).sets] == [[("a",)], [(8, 7)]]
    error = failing(database, "\nEXEC Twice 1, N'fail'")
    assert (error.number, error.state, error.text, error.procedure, error.line) == (50000, 3, "fail: 1", "Twice", 5)
    assert failing(database, "EXEC Twice").number == 201
    assert failing(database, "EXEC Twice 1, 2, 3, 4").number == 8144
    assert failing(database, "EXEC Twice 1, @other = 2").number == 8145
    assert failing(database, "EXEC Nowhere").number == 2812
    assert failing(database, "CREATE PROC Twice AS RETURN").number == 2714
    database.execute_tsql("CREATE OR ALTER PROC Twice AS SELECT 3")
    assert scalar(database, "EXEC Twice") == 3
    database.execute_tsql("DROP PROCEDURE Twice")
    assert failing(database, "DROP PROC Twice").number == 3701
    database.execute_tsql("DROP PROC IF EXISTS Twice")


def test_recursion_ends_with_error_217(database):
    database.execute_tsql("CREATE PROC Deeper @n INT = 0 AS BEGIN PRINT @n; SET @n += 1; EXEC Deeper @n END")
    output = output_and_errors(database, "EXEC Deeper")
    assert [error.number for error in output if isinstance(error, TsqlError)] == [217]
    assert len(output) == 33


def test_exec_and_sp_executesql_run_text(database):
    script = """
        DECLARE @n INT = 4, @out INT;
        EXEC sp_executesql N'SELECT @a + 1; SET @b = @a * 10', N'@a INT, @b INT OUTPUT', @n, @b = @out OUTPUT;
        SELECT @out;
        EXEC (N'SELECT ' + '6')"""
    assert [result_set.rows for result_set in database.execute_tsql(script).sets] == [[(5,)], [(40,)], [(6,)]]
    assert failing(database, "EXEC (N'SELEC 1')").number in (102, 2812)


def test_values_are_never_pasted_into_sql(database):
    evil = "x'); DROP TABLE kept; --"
    script = (
        "IF OBJECT_ID('kept') IS NULL CREATE TABLE kept (v NVARCHAR(100)); INSERT kept VALUES (@v); SELECT v FROM kept"
    )
    assert database.execute_tsql(script, {"v": evil}).rows == [(evil,)]
    error = failing(database, f"BEGIN DIALOG @h FROM SERVICE [{evil}] TO SERVICE 'x'")
    assert error.number == 137


def test_invalid_text_and_deep_nesting_are_refused(database):
    with pytest.raises(TsqlError) as error:
        database.execute_tsql("\nSELECT @half", {"half": "\ud800"})
    assert (error.value.number, error.value.line) == (9402, 2)
    for nested in ("SELECT " + "(" * 4000 + "1" + ")" * 4000, "IF " + "NOT " * 4000 + "1 = 1 PRINT 1"):
        assert failing(database, nested).number == 191


def test_errors_name_unsupported_statements(database):
    for script, word in [
        ("KILL 51", "KILL"),
        ("CREATE ASSEMBLY a FROM 'x'", "ASSEMBLY"),
        ("ALTER DATABASE CURRENT SET NOTHING_KNOWN ON", "NOTHING_KNOWN"),
    ]:
        error = failing(database, "\n" + script)
        assert error.line == 2
        assert word in error.text
    assert failing(database, "SET NONSENSE ON").number == 195


def test_a_script_runs_inside_a_transaction_of_the_application(database):
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        results = transaction.execute_tsql(
            f"BEGIN TRAN; SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (N'x'); COMMIT; SELECT @@TRANCOUNT",
            {"h": handle},
        )
        assert results.rows == [(1,)]
    assert len(database.receive(STOCK_QUEUE)) == 1


def test_broker_objects_are_created_altered_and_dropped(instance, database):
    name = database.name
    database.execute_tsql(
        f"""
        CREATE MESSAGE TYPE [//d/m] VALIDATION = WELL_FORMED_XML;
        ALTER MESSAGE TYPE [//d/m] VALIDATION = NONE
        CREATE CONTRACT [//d/c] ([//d/m] SENT BY INITIATOR, [DEFAULT] SENT BY ANY)
        CREATE QUEUE [dbo].[DQ] WITH STATUS = ON, RETENTION = OFF, ACTIVATION (STATUS = OFF, PROCEDURE_NAME = dbo.p,
            MAX_QUEUE_READERS = 3, EXECUTE AS OWNER), POISON_MESSAGE_HANDLING (STATUS = OFF) ON [DEFAULT]
        CREATE SERVICE [//d/s] ON QUEUE dbo.DQ ([//d/c])
        ALTER SERVICE [//d/s] (ADD CONTRACT [DEFAULT])
        CREATE ROUTE r WITH SERVICE_NAME = '//far', ADDRESS = 'TCP://far:4022', LIFETIME = 60
        ALTER ROUTE r WITH ADDRESS = 'TCP://near:4022'
        CREATE BROKER PRIORITY p FOR CONVERSATION SET (CONTRACT_NAME = [//d/c], LOCAL_SERVICE_NAME = ANY,
            REMOTE_SERVICE_NAME = '//far', PRIORITY_LEVEL = 8)
        CREATE USER someone WITHOUT LOGIN
        CREATE ROLE readers
        ALTER ROLE readers ADD MEMBER someone
        GRANT SEND ON SERVICE::[//d/s] TO someone
        GRANT RECEIVE ON OBJECT::dbo.DQ TO readers
        ALTER AUTHORIZATION ON SERVICE::[//d/s] TO someone
        ALTER DATABASE {name} SET HONOR_BROKER_PRIORITY ON
        ALTER DATABASE {name} SET TRUSTWORTHY ON, RECOVERY SIMPLE
        """
    )
    script = """
        SELECT max_readers, is_activation_enabled, is_poison_message_handling_enabled FROM sys.service_queues
            WHERE name = 'DQ';
        SELECT address FROM sys.routes WHERE name = 'r';
        SELECT priority FROM sys.conversation_priorities WHERE name = 'p'"""
    assert [result_set.rows for result_set in database.execute_tsql(script).sets] == [
        [(3, 0, 0)],
        [("TCP://near:4022",)],
        [(8,)],
    ]
    database.execute_tsql(
        """
        DROP BROKER PRIORITY p; DROP ROUTE r; DROP SERVICE [//d/s]; DROP QUEUE DQ; DROP CONTRACT [//d/c]
        DROP MESSAGE TYPE [//d/m]
        DROP SERVICE IF EXISTS [//d/s]"""
    )
    assert failing(database, "DROP QUEUE DQ").number == 15151


def test_a_script_creates_and_drops_databases(instance, database):
    name = database.name + "x"
    script = f"""
        USE master
        IF EXISTS (SELECT * FROM sys.databases WHERE name = '{name}') DROP DATABASE {name}
        CREATE DATABASE {name}
        GO
        USE {name}
        SELECT DB_NAME()
        CREATE TABLE t (n INT)
        INSERT t VALUES (1)"""
    for _ in range(2):
        assert database.execute_tsql(script).rows == [(name,)]
    assert failing(database, f"USE {name}\nDROP DATABASE {name}").number == 3702
    assert query(database, "select count(*) from servicebroker.databases where name = %s", name) == [(1,)]


def test_every_session_has_its_own_spid(database):
    with database.tsql_session() as first, database.tsql_session() as second:
        numbers = {session.execute("SELECT @@SPID").rows[0][0] for session in (first, second)}
    assert len(numbers) == 2
    assert all(number > 50 for number in numbers)


PIECES = [
    "SELECT 1",
    "SELECT * FROM t",
    "INSERT t VALUES (1)",
    "UPDATE t SET n = n / 0",
    "BEGIN TRAN",
    "COMMIT",
    "ROLLBACK",
    "SAVE TRAN s",
    "ROLLBACK TRAN s",
    "PRINT @@TRANCOUNT",
    "THROW 50001, 'x', 1",
    "RAISERROR ('x', 16, 1)",
    "SET XACT_ABORT ON",
    "SET XACT_ABORT OFF",
    "BEGIN TRY SELECT 1/0 END TRY BEGIN CATCH PRINT ERROR_NUMBER() END CATCH",
    "BEGIN TRY EXEC Fails END TRY BEGIN CATCH IF XACT_STATE() = -1 ROLLBACK END CATCH",
    "EXEC Fails",
    "EXEC ('SELECT 1 +')",
    "DECLARE @v INT = 1",
    "SET @v = @v + 1",
    "SELECT CAST('x' AS INT)",
    f"WAITFOR (RECEIVE TOP (1) * FROM {STOCK_QUEUE}), TIMEOUT 0",
    "CREATE TABLE #t (n INT); DROP TABLE #t",
    "EXECUTE AS USER = 'guest'",
    "REVERT",
    "SELECT 1\nGO",
    SEND_THREE_MESSAGES.replace("DECLARE @h UNIQUEIDENTIFIER;", "DECLARE @h UNIQUEIDENTIFIER"),
]


def test_random_scripts_raise_only_tsql_errors_and_leave_no_transaction(database, seeded_random):
    """The statements run in any order. Afterwards no transaction is open on the connection."""
    database.execute_tsql("CREATE TABLE t (n INT)\nGO\nCREATE PROC Fails AS BEGIN TRAN INSERT t VALUES ('x') COMMIT")
    for _ in range(40):
        script = "\n".join(seeded_random.choices(PIECES, k=12))
        output = output_and_errors(database, script)
        assert all(not isinstance(error, TsqlError) or error.line >= 1 for error in output), script
        assert scalar(database, "SELECT @@TRANCOUNT") == 0, script
    with database.instance.connection() as connection:
        text = (
            "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in trans%'"
        )
        assert connection.execute(text).fetchone() == (0,)


AUDITED = f"""
CREATE TABLE audited (id INT IDENTITY PRIMARY KEY, name NVARCHAR(20) NOT NULL)
CREATE TABLE audit_handle (h UNIQUEIDENTIFIER)
GO
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE '{STOCK}' ON CONTRACT [{CONTRACT}] WITH ENCRYPTION = OFF
INSERT audit_handle VALUES (@h)
GO
CREATE TRIGGER tr_audited ON dbo.audited AFTER INSERT, UPDATE, DELETE AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @body NVARCHAR(MAX), @h UNIQUEIDENTIFIER;
    SELECT @h = h FROM audit_handle;
    IF EXISTS (SELECT * FROM inserted WHERE name = N'refuse') THROW 50001, 'refused by the trigger', 1;
    IF EXISTS (SELECT * FROM inserted WHERE name = N'undo') BEGIN ROLLBACK; RETURN END
    SET @body = (SELECT i.name AS [@new], d.name AS [@old] FROM inserted i FULL JOIN deleted d ON d.id = i.id
        FOR XML PATH('row'), ROOT('rows'));
    SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (@body);
END
"""


def test_a_trigger_sends_the_changed_rows(database):
    database.execute_tsql(AUDITED)
    database.execute_tsql("INSERT audited (name) VALUES (N'a'), (N'b')")
    database.execute_tsql("UPDATE audited SET name = N'c' WHERE name = N'a'")
    database.execute_tsql("BEGIN TRAN; DELETE audited WHERE name = N'b'; SELECT @@ROWCOUNT; COMMIT")
    assert [message.message_body.decode("utf-16-le") for message in database.receive(STOCK_QUEUE)] == [
        '<rows><row new="a"/><row new="b"/></rows>',
        '<rows><row new="c" old="a"/></rows>',
        '<rows><row old="b"/></rows>',
    ]
    assert failing(database, "INSERT audited (name) VALUES (N'refuse')").number == 50001
    output = output_and_errors(database, "INSERT audited (name) VALUES (N'undo')\nPRINT 'never'")
    assert [error.number for error in output if isinstance(error, TsqlError)] == [3609]
    assert database.execute_tsql("SELECT name FROM audited").rows == [("c",)]
    assert database.receive(STOCK_QUEUE) == []
    database.execute_tsql("DROP TRIGGER tr_audited")
    database.execute_tsql("INSERT audited (name) VALUES (N'refuse')")
    assert database.receive(STOCK_QUEUE) == []
    assert failing(database, "CREATE TRIGGER x ON nowhere AFTER INSERT AS PRINT 1").number in (208, 8197)


def test_a_cursor_keeps_its_rows_while_they_are_deleted(database):
    script = """
        CREATE TABLE numbered (n INT, t NVARCHAR(10))
        INSERT numbered VALUES (1, N'a'), (2, N'b'), (3, N'c')
        DECLARE @n INT, @t NVARCHAR(10)
        DECLARE each CURSOR LOCAL FAST_FORWARD FOR SELECT n, t FROM numbered WHERE n < 3 ORDER BY n
        OPEN each
        FETCH NEXT FROM each INTO @n, @t
        WHILE @@FETCH_STATUS = 0
        BEGIN
            PRINT CAST(@n AS NVARCHAR(10)) + @t
            DELETE numbered WHERE n = @n
            FETCH NEXT FROM each INTO @n, @t
        END
        CLOSE each
        DEALLOCATE each
        SELECT COUNT(*) FROM numbered"""
    results = database.execute_tsql(script)
    assert [message.text for message in results.messages] == ["1a", "2b"]
    assert results.rows == [(1,)]
    assert failing(database, "FETCH NEXT FROM nothing").number == 16916
    declared = "DECLARE c CURSOR FOR SELECT 1 AS a "
    assert failing(database, declared + "FETCH c").number == 16917
    assert failing(database, declared + "OPEN c; DECLARE @a INT, @b INT; FETCH c INTO @a, @b").number == 16924
    assert database.execute_tsql(declared + "OPEN c; FETCH c; FETCH c").sets == [
        ResultSet(("a",), [(1,)]),
        ResultSet(("a",), []),
    ]


def test_defaults_use_the_current_user(database):
    """A DEFAULT is evaluated for the session that inserts, not for the one that created the table."""
    database.execute_tsql(
        "CREATE TABLE Audit (n INT, who sysname DEFAULT USER_NAME(), login sysname NOT NULL DEFAULT (SUSER_SNAME()))"
        " CREATE USER clerk WITHOUT LOGIN GRANT INSERT ON Audit TO clerk"
    )
    script = """
        INSERT Audit (n) VALUES (1)
        BEGIN TRANSACTION
        EXECUTE AS USER = 'clerk'
        INSERT Audit (n) VALUES (2)
        REVERT
        ROLLBACK
        EXECUTE AS USER = 'clerk'
        INSERT Audit (n) VALUES (3)
        REVERT
        INSERT Audit (n) VALUES (4)
        SELECT n, who FROM Audit ORDER BY n"""
    assert database.execute_tsql(script).rows == [(1, "dbo"), (3, "clerk"), (4, "dbo")]
    shown = (
        "BEGIN TRANSACTION SELECT COUNT(*) FROM sys.services ROLLBACK SELECT DISTINCT broker_database FROM sys.services"
    )
    assert database.execute_tsql(shown).rows == [(database.name,)]
    assert failing(database, "DECLARE @x INT = 1 CREATE TABLE t (n INT DEFAULT (@x))").number == 128


def test_errors_spell_names_as_the_script_does(database):
    for script, text in [
        ("SELECT * FROM Nowhere", "Invalid object name 'Nowhere'."),
        ("INSERT INTO dbo.[NoWhere] VALUES (1)", "Invalid object name 'dbo.NoWhere'."),
        ("CREATE TABLE Twice (n INT) SELECT Other FROM Twice", "Invalid column name 'Other'."),
        ("SELECT q.IsThere FROM sys.service_queues q", "Invalid column name 'IsThere'."),
        ("CREATE TABLE Once (n INT) UPDATE Once SET IsThere = 1", "Invalid column name 'IsThere'."),
        ("CREATE TABLE dbo.Thrice (n INT)\nCREATE TABLE dbo.Thrice (n INT)", "already an object named 'Thrice'"),
    ]:
        assert text in failing(database, script).text
