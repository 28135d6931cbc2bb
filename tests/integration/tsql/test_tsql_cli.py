"""`servicebroker sql` and `servicebroker tsql check`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from servicebroker.cli.main import app
from servicebroker.cli.prompt import is_complete

TWO_SIDES = """
IF EXISTS (SELECT * FROM sys.databases WHERE name = 'Hello') DROP DATABASE Hello
CREATE DATABASE Hello
GO
ALTER DATABASE Hello SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;
USE Hello
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'not a secret 1!'
CREATE MESSAGE TYPE Question VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE Answer VALIDATION = WELL_FORMED_XML
CREATE CONTRACT Talk (Question SENT BY INITIATOR, Answer SENT BY TARGET)
CREATE QUEUE AskQueue; CREATE QUEUE AnswerQueue;
CREATE SERVICE Ask ON QUEUE AskQueue
CREATE SERVICE Answers ON QUEUE AnswerQueue (Talk)
GO
CREATE PROCEDURE AnswerAll AS
BEGIN
    DECLARE @h UNIQUEIDENTIFIER, @type SYSNAME, @body XML
    WHILE (1 = 1)
    BEGIN
        BEGIN TRANSACTION
        WAITFOR (
            RECEIVE TOP (1) @h = conversation_handle, @type = message_type_name, @body = CAST(message_body AS XML)
            FROM dbo.AnswerQueue
        ), TIMEOUT 10
        IF (@@ROWCOUNT = 0)
        BEGIN
            COMMIT
            BREAK
        END
        IF @type = N'Question'
        BEGIN
            DECLARE @answer NVARCHAR(MAX) = N'<a>' + @body.value('(/q)[1]', 'NVARCHAR(50)') + N'!</a>';
            SEND ON CONVERSATION @h MESSAGE TYPE Answer (@answer)
            END CONVERSATION @h
        END
        COMMIT
    END
END
GO
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG CONVERSATION @h FROM SERVICE Ask TO SERVICE N'Answers' ON CONTRACT Talk WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE Question (N'<q>hello</q>')
GO
EXEC AnswerAll
PRINT N'done ü'
SELECT message_type_name, CAST(message_body AS XML) AS body, message_sequence_number AS n
FROM AskQueue ORDER BY queuing_order
"""


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def results_of(result: Result) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(result.stdout)["results"]
    return results


def test_a_script_from_a_file_makes_everything(make_instance_url, tmp_path: Path):
    script = tmp_path / "hello.sql"
    script.write_bytes(TWO_SIDES.encode("utf-16"))
    result = run("sql", "--instance", make_instance_url(), "-i", str(script), "--json")
    assert result.exit_code == 0, result.stdout
    end_dialog = "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
    assert results_of(result)[-2:] == [
        {"message": "done ü"},
        {
            "columns": ["message_type_name", "body", "n"],
            "rows": [["Answer", "<a>hello!</a>", 0], [end_dialog, None, 1]],
        },
    ]


def test_a_refusal_is_said_in_the_familiar_form_and_the_next_batch_runs(make_instance_url):
    url = make_instance_url()
    text = "PRINT 1\nSEND ON CONVERSATION '6d9a2f2e-8a4b-4b43-8f3e-0c9b3d0a4a52' (N'x')\nGO\nSELECT 2 AS two"
    result = run("sql", "--instance", url, "-d", "Made", "-Q", text)
    assert result.exit_code == 1
    assert "Msg 8426, Level 16, State 1, Line 2" in result.output
    assert "two" in result.stdout
    result = run(
        "sql", "--instance", url, "-d", "Made", "--json", text="SELECT DB_NAME() AS d, 0x0A AS b, 2.5 AS n, NULL AS z"
    )
    assert results_of(result) == [{"columns": ["d", "b", "n", "z"], "rows": [["Made", "0x0A", 2.5, None]]}]


def test_an_error_inside_a_procedure_names_it(make_instance_url):
    text = "CREATE PROC Fails AS\nSELECT 1/0\nGO\nEXEC Fails"
    result = run("sql", "--instance", make_instance_url(), "-d", "P", "-Q", text, "--json")
    (error,) = [line for line in results_of(result) if "message" in line]
    assert error["message"].startswith("Msg 8134, Level 16, State 1, Procedure Fails, Line 2\n")
    assert (error["number"], error["procedure"], error["line"]) == (8134, "Fails", 2)


def test_a_script_may_be_one_of_sqlcmd(make_instance_url, tmp_path: Path):
    (tmp_path / "names.sql").write_text(":setvar what Orders\n")
    script = tmp_path / "made.sql"
    script.write_text(":on error exit\n:r names.sql\nPRINT '$(what) $(who)'\nGO\nSELECT 1/0\nGO\nPRINT 'never'\n")
    result = run("sql", "--instance", make_instance_url(), "-i", str(script), "-v", "who=Ann", "--json")
    assert result.exit_code == 1
    first, error = results_of(result)
    assert first == {"message": "Orders Ann"}
    assert (error["number"], error["line"]) == (8134, 5)
    assert run("sql", "-v", "nothing", "-Q", "PRINT 1").exit_code == 2


def test_tsql_check_reports_statements_and_a_summary(tmp_path: Path):
    script = tmp_path / "old.sql"
    script.write_text(
        TWO_SIDES
        + "GO\nSET ANSI_NULLS ON\nALTER DATABASE Hello SET RECOVERY SIMPLE\nSELECT n FROM P FOR SYSTEM_TIME ALL\n"
    )
    result = run("tsql", "check", str(script))
    assert result.exit_code == 1
    *found, summary = result.stdout.splitlines()
    assert [line.rsplit(":", 1)[0].split(": ")[1] for line in found] == [
        "CREATE DATABASE differs",
        "SET OPTION differs",
        "ALTER DATABASE differs",
        "SELECT does not run",
    ]
    assert "statements: 9" in summary
    result = run("tsql", "check", str(script), "--json", "--all")
    sums = json.loads(result.stdout)
    assert sums["does not run"]["statements"] == 1
    assert sums["statements"] == len(sums["found"])


def test_check_reads_on_after_a_batch_that_it_cannot_read(tmp_path: Path):
    script = tmp_path / "broken.sql"
    script.write_text("CREATE NONSENSE\nGO\nSELECT 1\nGO\nDBCC CHECKDB")
    result = run("tsql", "check", str(script), "--all")
    assert [line.split(":")[1] for line in result.stdout.splitlines()[:-1]] == ["1", "3", "5"]


def test_check_reads_a_block_twice_and_its_variables_once(tmp_path: Path):
    script = tmp_path / "block.sql"
    script.write_text("IF 1 = 1\nBEGIN\nDECLARE @n INT = 1\nDBCC CLONEDATABASE (a, b)\nPRINT @n\nEND")
    result = run("tsql", "check", str(script))
    assert [line.split(":")[1:3] for line in result.stdout.splitlines()[:-1]] == [
        ["4", " DBCC CLONEDATABASE does not run"]
    ]


def test_check_accepts_objects_of_other_scripts(tmp_path: Path):
    script = tmp_path / "part.sql"
    script.write_text("""
    CREATE PROCEDURE Part @price dbo.Money9, @rows dbo.Rows READONLY AS
        DECLARE @more dbo.Rows, @half dbo.Money9 = @price
        IF OBJECT_ID('tempdb..#Old') IS NOT NULL DROP TABLE #Old
        INSERT @more SELECT * FROM #Given WHERE price > @price
        SELECT price, COUNT(*) FROM #Given GROUP BY price
        SELECT @half
    GO
    CREATE PROCEDURE ##Mine @a INT AS SELECT @a
    GO
    SELECT * FROM @nowhere
    """)
    result = run("tsql", "check", str(script))
    assert [line.split(": ")[1:3] for line in result.stdout.splitlines()[:-1]] == [
        ["PROCEDURE does not run", "40515"],
        ["batch does not run", "1087"],
    ]


@pytest.mark.parametrize(
    ("text", "runs"), [("SELECT 1", False), ("SELECT 1\nGO", True), ("go 3", True), ("exit;", True), (":r x.sql", True)]
)
def test_the_prompt_runs_a_batch_at_go(text, runs):
    assert is_complete(text) is runs
