"""Random scripts: each statement is checked, or refused with a T-SQL error and its line, without a warning."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servicebroker.cli.sqlcmd import Sqlcmd
from servicebroker.tsql.check import check
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import tokenize

SCRIPT = """
CREATE MESSAGE TYPE [//m] VALIDATION = VALID_XML WITH SCHEMA COLLECTION dbo.c; CREATE CONTRACT [//c] ([//m] SENT BY
ANY); CREATE QUEUE dbo.q WITH STATUS = ON, RETENTION = OFF, ACTIVATION (PROCEDURE_NAME = dbo.p, MAX_QUEUE_READERS =
4, EXECUTE AS SELF), POISON_MESSAGE_HANDLING (STATUS = OFF); ALTER QUEUE q WITH ACTIVATION (DROP); CREATE SERVICE
[//s] AUTHORIZATION dbo ON QUEUE q ([//c]); ALTER SERVICE [//s] (ADD CONTRACT [//d], DROP CONTRACT [//c]); CREATE
ROUTE r WITH SERVICE_NAME = '//s', ADDRESS = 'TCP://h:4022', LIFETIME = 60; CREATE REMOTE SERVICE BINDING b TO
SERVICE '//s' WITH USER = u, ANONYMOUS = OFF; CREATE BROKER PRIORITY p FOR CONVERSATION SET (CONTRACT_NAME = ANY,
LOCAL_SERVICE_NAME = [//s], PRIORITY_LEVEL = 7); CREATE EVENT NOTIFICATION e ON QUEUE q FOR QUEUE_ACTIVATION TO
SERVICE '//s', 'current database'; CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER
(ENCRYPTION = REQUIRED); CREATE LOGIN l WITH PASSWORD = 'x', CHECK_POLICY = OFF; CREATE USER u FOR LOGIN l; CREATE
MASTER KEY ENCRYPTION BY PASSWORD = 'x'; CREATE CERTIFICATE c WITH SUBJECT = 's', EXPIRY_DATE = '20300101'; BACKUP
CERTIFICATE c TO FILE = 'f'; GRANT SEND, CONTROL ON SERVICE::[//s] TO public WITH GRANT OPTION; REVOKE RECEIVE ON q
FROM u CASCADE; ALTER AUTHORIZATION ON SERVICE::[//s] TO u; EXECUTE AS USER = 'u' WITH NO REVERT; REVERT; CREATE
DATABASE d; ALTER DATABASE d SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE; USE d; DECLARE @h UNIQUEIDENTIFIER, @b XML =
'<a/>', @n INT = 1; DECLARE @t TABLE (a INT PRIMARY KEY, b NVARCHAR(MAX) DEFAULT N''); BEGIN DIALOG CONVERSATION @h
FROM SERVICE [//s] TO SERVICE '//t', 'CURRENT DATABASE' ON CONTRACT [//c] WITH RELATED_CONVERSATION = @h, LIFETIME =
60, ENCRYPTION = OFF; BEGIN CONVERSATION TIMER (@h) TIMEOUT = 5; SEND ON CONVERSATION (@h, @h) MESSAGE TYPE [//m]
(@b); WAITFOR (RECEIVE TOP (1) @h = conversation_handle, CAST(message_body AS XML) AS x FROM q INTO @t WHERE
conversation_group_id = @h), TIMEOUT 100; WAITFOR (GET CONVERSATION GROUP @h FROM q); MOVE CONVERSATION @h TO @h; END
CONVERSATION @h WITH ERROR = 1 DESCRIPTION = N'd'; END CONVERSATION @h WITH CLEANUP; WAITFOR DELAY '00:00:01'; IF @n
> 1 OR EXISTS (SELECT 1 FROM t) BEGIN BREAK; END ELSE WHILE 1 = 1 CONTINUE; BEGIN TRY THROW 50000, 'x', 1; END TRY
BEGIN CATCH RAISERROR ('%s', 16, 1, @n) WITH LOG, NOWAIT; PRINT ERROR_MESSAGE(); RETURN; END CATCH; BEGIN TRAN x;
SAVE TRAN y; ROLLBACK TRAN y; COMMIT; SET NOCOUNT ON; SET @n += 1; SET @b = (SELECT a FROM t FOR XML PATH('r'),
TYPE); EXEC @n = dbo.p @a = 1, @b = @n OUTPUT; EXEC sp_executesql N'SELECT @x', N'@x INT', @x = 1; EXEC ('SELECT 1');
DECLARE k CURSOR LOCAL FAST_FORWARD FOR SELECT a FROM t ORDER BY a; OPEN k; FETCH NEXT FROM k INTO @n; CLOSE k;
DEALLOCATE k; MERGE t USING (VALUES (1)) AS s (a) ON t.a = s.a WHEN MATCHED THEN DELETE OUTPUT $action; WITH x AS
(SELECT a FROM t UNION ALL SELECT 1) SELECT TOP (1) x.a, COUNT(*) OVER (PARTITION BY a) FROM x LEFT JOIN t WITH
(UPDLOCK) ON x.a = t.a CROSS APPLY @b.nodes('/a') AS n(c) WHERE n.c.value('.', 'int') BETWEEN 1 AND 2 GROUP BY x.a
HAVING MAX(a) > 1 ORDER BY 1 OFFSET 1 ROWS; INSERT INTO t (a, b) OUTPUT inserted.a INTO @t (a) VALUES (1, DEFAULT);
UPDATE TOP (1) t SET a += 1, @n = b OUTPUT deleted.* FROM t WHERE a IN (1, 2); DELETE FROM t; CREATE TABLE t (a INT
IDENTITY(1,1) NOT NULL CONSTRAINT k PRIMARY KEY CLUSTERED, c AS a + 1 PERSISTED, CHECK (a > 0)); ALTER TABLE t ADD d
INT;
GO 2
CREATE PROCEDURE dbo.p @a INT = NULL, @b XML OUTPUT AS BEGIN DECLARE @r dbo.rows; RETURN 1; END
GO
CREATE FUNCTION dbo.f (@a INT) RETURNS TABLE AS RETURN (SELECT @a AS a);
GO
CREATE TRIGGER g ON t AFTER INSERT AS SELECT * FROM inserted; DISABLE TRIGGER g ON t;
GO
:setvar x "1"
:r nowhere.sql
SELECT $(x); {fn NOW()} GOTO l; l: CREATE TYPE dbo.rows AS TABLE (a INT); DROP SYNONYM IF EXISTS z; DBCC CHECKDB
"""
TOKENS = tokenize(SCRIPT)
WORDS = [TOKENS.text(at) for at in range(len(TOKENS.words) - 1)]
STRETCHES = st.tuples(st.integers(0, len(WORDS) - 1), st.integers(1, 14)).map(lambda at: WORDS[at[0] : sum(at)])
BREAKS = st.sampled_from((" ", " ", " ", "\n"))


@settings.get_profile("fuzz")
@given(st.lists(STRETCHES | st.sampled_from(WORDS).map(lambda word: [word]), max_size=6), BREAKS)
def test_pieces_of_a_script_in_any_order(pieces: list[list[str]], between: str) -> None:
    text = between.join(word for piece in pieces for word in piece)
    refused = None
    try:
        text = Sqlcmd().expand(text, Path("nowhere")).text
        findings = list(check(text))
    except TsqlError as error:  # of sqlcmd
        refused = error
        findings = []
    assert refused is None or refused.line
    assert all(finding.line and finding.statement for finding in findings)


def test_warnings_of_sqlglot_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    (finding,) = check("WITH x AS (CREATE QUEUE q) SELECT 1")
    assert finding.note.startswith("102")
    assert not caplog.records
    logging.getLogger("sqlglot").warning("of somebody else")
    assert [record.message for record in caplog.records] == ["of somebody else"]
