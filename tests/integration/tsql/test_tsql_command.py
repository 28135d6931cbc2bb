"""`servicebroker sql` and `servicebroker tsql check` as a user calls them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from servicebroker.cli.main import app

ACTIVATED = """
CREATE DATABASE Echo
GO
USE Echo
CREATE TABLE Heard (body NVARCHAR(20))
CREATE QUEUE InQ
CREATE QUEUE OutQ
CREATE SERVICE Ear ON QUEUE InQ ([DEFAULT])
CREATE SERVICE Mouth ON QUEUE OutQ
GO
CREATE PROCEDURE dbo.Listen AS
WHILE 1 = 1
BEGIN
    DECLARE @body NVARCHAR(20) = NULL
    BEGIN TRANSACTION
    WAITFOR (RECEIVE TOP (1) @body = CAST(message_body AS NVARCHAR(20)) FROM InQ), TIMEOUT 60000
    IF @@ROWCOUNT = 0 BEGIN ROLLBACK; BREAK END
    INSERT Heard VALUES (@body)
    COMMIT
    PRINT 'for the log'
END
GO
ALTER QUEUE InQ WITH ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.Listen, MAX_QUEUE_READERS = 1, EXECUTE AS OWNER)
GO
"""
SPEAK = """
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG @h FROM SERVICE Mouth TO SERVICE 'Ear' WITH ENCRYPTION = OFF
SEND ON CONVERSATION @h (N'hello')
"""


@pytest.fixture
def sql(make_instance_url: Callable[..., str]) -> Callable[..., Any]:
    """Runs `servicebroker sql` with these arguments on one instance."""
    url = make_instance_url()
    return lambda *arguments: CliRunner().invoke(app, ["sql", "--instance", url, *map(str, arguments)])


def test_queues_start_their_readers_while_a_script_runs(sql: Callable[..., Any], tmp_path: Path) -> None:
    """The last statement's message is processed before the command ends; a waiting reader holds nothing up."""
    script = tmp_path / "echo.sql"
    script.write_bytes((ACTIVATED + SPEAK).encode("utf-16"))
    began = time.monotonic()
    done = sql("-i", script)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "for the log" not in done.stdout
    assert time.monotonic() - began < 20  # the reader would wait for a minute
    assert sql("-d", "Echo", "-Q", SPEAK).exit_code == 0
    report = sql("-d", "Echo", "--json", "-Q", "SELECT body FROM Heard").stdout
    assert json.loads(report)["results"][0] == {"columns": ["body"], "rows": [["hello"], ["hello"]]}


def test_an_error_is_shown_and_the_next_batch_runs(sql: Callable[..., Any]) -> None:
    done = sql("-Q", "PRINT 'one'\nGO\nEND CONVERSATION '00000000-0000-0000-0000-000000000000'\nGO\nPRINT 'two'")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == ["one", "two"]
    assert done.stderr.startswith("Msg 8426, Level 16, State 1, Line 3\n")  # of the script


def test_a_table_in_a_pipe_has_whole_values_and_datetimes_with_three_digits(sql: Callable[..., Any]) -> None:
    text = "SELECT CAST('2020-01-02 03:04:05.67' AS datetime) AS at, REPLICATE('word ', 200) + 'end' AS long"
    done = sql("-Q", text)
    assert "2020-01-02 03:04:05.670" in done.stdout
    assert "word word end" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) > 1000
