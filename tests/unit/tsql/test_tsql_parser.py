"""Parse T-SQL: the parts of statements, their ends without a semicolon, and the lines of errors."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from servicebroker.operations.queues import Activation
from servicebroker.tsql import syntax
from servicebroker.tsql.parser import parse, parse_text
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Constant, Expression, Name, Variable
from servicebroker.tsql.tokens import batches, tokenize


def only(text: str) -> syntax.Statement:
    (statement,) = parse_text(text)
    return statement


def refusal_of(text: str) -> TsqlError:
    with pytest.raises(TsqlError) as error:
        for batch in batches(text):
            parse(batch.tokens)
    return error.value


def test_begin_dialog_with_every_clause():
    assert only(
        "BEGIN DIALOG CONVERSATION @H FROM SERVICE [//a] TO SERVICE N'//b', 'CURRENT DATABASE' ON CONTRACT @c "
        "WITH RELATED_CONVERSATION_GROUP = @g, LIFETIME = 60, ENCRYPTION = OFF;"
    ) == syntax.BeginDialog(
        1,
        "@h",
        Name(("//a",)),
        Constant("//b"),
        broker_instance=Constant("CURRENT DATABASE"),
        contract=Variable("@c"),
        related_conversation_group=Variable("@g"),
        lifetime=Constant(60),
        encryption=False,
    )


def test_blocks_in_64_levels():
    assert isinstance(only("BEGIN " * 64 + "PRINT 1 " + "END " * 64), syntax.Block)


def test_send_to_several_conversations_keeps_the_body_as_text():
    assert only("send on conversation (@a, @b) message type [m] (N'<x>' + @y)") == syntax.Send(
        1, (Variable("@a"), Variable("@b")), Name(("m",)), Expression("N'<x>' + @y", 1)
    )
    assert only("SEND ON CONVERSATION @a") == syntax.Send(1, (Variable("@a"),), None, None)


def test_receive_with_assignments_and_with_names():
    statement = only(
        "WAITFOR (RECEIVE TOP (1) @h = conversation_handle, @b = CAST(message_body AS XML) FROM dbo.[Q] "
        "WHERE conversation_group_id = @g), TIMEOUT 500"
    )
    assert isinstance(statement, syntax.WaitForMessage)
    assert statement.timeout == Constant(500)
    assert statement.statement == syntax.Receive(
        1,
        Name(("dbo", "Q")),
        (
            syntax.ReceiveItem(Expression("conversation_handle", 1), "@h"),
            syntax.ReceiveItem(Expression("CAST(message_body AS XML)", 1), "@b"),
        ),
        Expression("(1)", 1),
        None,
        "conversation_group_id",
        Variable("@g"),
    )
    statement = only("RECEIVE message_body b, CAST(message_body AS XML) AS [x], n = 1 FROM Q INTO @t")
    assert isinstance(statement, syntax.Receive)
    assert [(item.value.text, item.alias) for item in statement.items] == [
        ("message_body", "b"),
        ("CAST(message_body AS XML)", "x"),
        ("1", "n"),
    ]
    assert statement.into == "@t"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("RECEIVE @a = message_body, message_type_name FROM q", 8447),
        ("RECEIVE @a = message_body FROM q INTO @t", 8450),
        ("RECEIVE * FROM q WHERE message_type_name = 'x'", 102),
        ("RECEIVE FROM q", 102),
        ("SEND ON CONVERSATION", 102),
        ("SELECT 'abc", 105),
        ("SELECT [abc", 105),
        ("SELECT 1 /* a /* b */", 113),
        ("SELECT 1\nCREATE PROCEDURE p AS SELECT 1", 111),
        ("BEGIN SELECT 1", 102),
        ("BEGIN TRY SELECT 1 END TRY", 102),
        ("CREATE CONTRACT c (m SENT BY NOBODY)", 102),
        ("CREATE ASSEMBLY a FROM 'x.dll'", 40515),
        ("BEGIN " * 65 + "PRINT 1 " + "END " * 65, 191),
        ("IF 1 = 1 " * 100 + "PRINT 'x'", 191),
        ("SELECT 1 ¤ 2", 102),
        ("CREATE NONSENSE n", 102),
        ("DECLARE @a INT IF 1 = 1 DECLARE @A INT", 134),
        ("CREATE PROC p @a INT AS DECLARE @a INT", 134),
        (")", 102),
        ("END", 102),
    ],
)
def test_invalid_statements_are_refused_with_their_number(text, number):
    assert refusal_of(text).number == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SELECT 1 WITH c AS (SELECT 1 AS a) SELECT a FROM c", 319),
        ("BEGIN SELECT 1 END WITH XMLNAMESPACES ('u' AS x) SELECT 1 AS a", 319),
        ("BEGIN MERGE t USING s ON t.a = s.a WHEN MATCHED THEN DELETE END", 10713),
    ],
)
def test_a_semicolon_is_missed_in_new_text_only(text, number):
    with pytest.raises(TsqlError) as error:
        parse(tokenize(text), ())
    assert error.value.number == number
    assert parse_text(f"CREATE PROCEDURE p AS {text}")  # like a module stored by an earlier version


def test_an_error_names_the_line_of_the_script():
    assert refusal_of("SELECT 1;\nGO\n\nSEND ON NOTHING").line == 4
    assert refusal_of("SELECT 1\n\n SELECT 'open").line == 3


def test_statements_end_where_the_next_one_begins():
    text = """
        DECLARE @a INT = 1, @b NVARCHAR(10)
        SELECT @a = CASE WHEN @a = 1 THEN 2 ELSE 3 END FROM t WITH (NOLOCK)
        UPDATE t SET a = 1 WHERE b IN (SELECT 1 UNION SELECT 2)
        INSERT INTO t (a) SELECT 1 UNION ALL SELECT 2
        INSERT t VALUES (1), (2)
        DELETE t OUTPUT deleted.* WHERE a = 1
        SET @a += 1
        IF @a = 1 AND EXISTS (SELECT * FROM t) PRINT 'x' ELSE RETURN
        SELECT TOP (1) WITH TIES * FROM t ORDER BY a
        ALTER TABLE t DROP COLUMN c
        DROP TABLE IF EXISTS t, u
        COMMIT TRANSACTION
        END CONVERSATION @h WITH ERROR = 1 DESCRIPTION = 'x'
    """
    assert [(type(node).__name__, node.line) for node in parse_text(text)] == [
        ("DeclareVariable", 2),
        ("DeclareVariable", 2),
        ("Relational", 3),
        ("Relational", 4),
        ("Relational", 5),
        ("Relational", 6),
        ("Relational", 7),
        ("SetVariable", 8),
        ("If", 9),
        ("Relational", 10),
        ("Relational", 11),
        ("Relational", 12),
        ("CommitTransaction", 13),
        ("EndConversation", 14),
    ]


def test_a_common_table_expression_goes_with_its_statement():
    query = "WITH c AS (SELECT 1 AS a) SELECT a FROM c"
    assert len(parse_text(f"a: {query}; IF 1 = 1 {query} ELSE {query}; BEGIN {query} END")) == 4
    first, second = parse_text("SELECT 1; WITH c AS (SELECT 1 a) INSERT INTO t SELECT a FROM c SELECT 2")[1:]
    assert isinstance(first, syntax.Relational)
    assert first.text == "WITH c AS (SELECT 1 a) INSERT INTO t SELECT a FROM c"
    assert isinstance(second, syntax.Relational)


def test_words_of_the_broker_are_names_elsewhere():
    statement = only("SELECT send, receive, move, get FROM message AS conversation")
    assert isinstance(statement, syntax.Relational)


def test_go_separates_batches_and_repeats():
    batches_of_text = list(batches("SELECT 'a\nGO\n'\n go 3 -- three times\nSELECT 2 go\nGO"))
    assert [(batch.tokens.words, batch.times) for batch in batches_of_text] == [
        (["SELECT", "'", ""], 3),
        (["SELECT", "0", "GO", ""], 1),
    ]


def test_a_batch_that_cannot_be_read_does_not_stop_the_one_before():
    batches_of_text = batches("SELECT 1\nGO\nSELECT 'x")
    assert next(batches_of_text).tokens.words == ["SELECT", "0", ""]
    with pytest.raises(TsqlError, match="Unclosed"):
        next(batches_of_text)


def test_procedures_keep_their_text():
    text = "-- why\nCREATE PROCEDURE dbo.p (@a INT, @b NVARCHAR(10) = N'x' OUTPUT) WITH EXECUTE AS OWNER AS\nRETURN @a"
    statement = only(text)
    assert isinstance(statement, syntax.Procedure)
    assert statement.text == text[text.index("CREATE") :]
    assert [(parameter.name, parameter.type, parameter.output) for parameter in statement.parameters] == [
        ("@a", "INT", False),
        ("@b", "NVARCHAR(10)", True),
    ]
    assert statement.execute_as == "OWNER"


def test_objects_say_their_clauses():
    statement = only(
        "ALTER QUEUE dbo.q WITH STATUS = ON, RETENTION = OFF, POISON_MESSAGE_HANDLING (STATUS = OFF), "
        "ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.p, MAX_QUEUE_READERS = 5, EXECUTE AS 'user')"
    )
    assert isinstance(statement, syntax.Definition)
    assert statement.clauses == {
        "status": True,
        "retention": False,
        "poison_message_handling": False,
        "activation": Activation("[dbo].[p]", 5, "user", status=True),
    }


PIECES = (
    "SELECT INSERT UPDATE SET FROM WHERE BEGIN END TRY CATCH IF ELSE WHILE ( ) , ; = @a @b 'x' N'y' 1 "
    "0x1F [n] q . GO DIALOG CONVERSATION TIMER SEND ON RECEIVE TOP WAITFOR CREATE ALTER DROP QUEUE "
    "SERVICE CONTRACT MESSAGE TYPE WITH ERROR DESCRIPTION EXEC PROCEDURE AS DECLARE INT TABLE CASE WHEN "
    "THEN PRINT GRANT TO :: COMMIT ROLLBACK TRAN -- /* */ ' [ ROUTE CERTIFICATE KEY MASTER ENCRYPTION BY "
    "PASSWORD EXISTS INTO GET GROUP MOVE THROW RAISERROR"
)


def test_any_text_is_read_or_refused(seeded_random: random.Random):
    """Words in random order give statements or a TsqlError, and the parser terminates."""
    for _ in range(3000):
        words = seeded_random.choices(PIECES.split(), k=seeded_random.randrange(1, 25))
        text = seeded_random.choice((" ", "\n", "  \n ")).join(words)
        with suppress(TsqlError):
            for batch in batches(text):
                parse(batch.tokens)
