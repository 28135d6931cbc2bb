"""`tsql check` reports the errors that a run would raise, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from servicebroker.cli.main import app
from servicebroker.tsql.check import Verdict, check


def error_numbers(text: str) -> list[int]:
    """Return the error numbers of the refused statements."""
    return [int(finding.note.split(":")[0]) for finding in check(text) if finding.verdict is Verdict.REFUSED]


TABLE = "DECLARE @t TABLE (a INT) "


@pytest.mark.parametrize("text", ["'SELECT 1'", "'SELECT ' + '1'", "'SELECT ' + @s", "'SELECT * FROM #x'"])
def test_a_batch_keeps_its_table_variables_behind_dynamic_sql(text: str) -> None:
    script = f"DECLARE @s NVARCHAR(9) = N'1' {TABLE} EXEC ({text}) INSERT @t VALUES (1) SELECT a FROM @t"
    assert error_numbers(script) == []


def test_dynamic_sql_has_its_own_variables() -> None:
    assert error_numbers(f"{TABLE} EXEC ('SELECT a FROM @t')") == [1087]
    assert error_numbers("EXEC ('DECLARE @t TABLE (a INT)') SELECT a FROM @t") == [1087]
    assert error_numbers(f"{TABLE}\nGO\nEXEC ('SELECT 1')\nGO\nSELECT a FROM @t") == [1087]


def test_dynamic_sql_is_judged_at_the_line_of_its_statement() -> None:
    (found,) = [finding for finding in check("\nEXEC ('SELECT FROM WHERE')") if finding.verdict is Verdict.REFUSED]
    assert (found.line, found.note[:4]) == (2, "102:")
    assert error_numbers("EXEC ('SELECT ''open') PRINT 1 EXEC ('FROM')") == [105, 102]


@pytest.mark.parametrize("database", ["", "USE master; "])
@pytest.mark.parametrize(
    ("dates", "number"),
    [
        ("EXPIRY_DATE = '20230101'", 402),
        ("START_DATE = '20230501', EXPIRY_DATE = '2023-04-30'", 402),
        ("EXPIRY_DATE = 'soon'", 241),
        ("START_DATE = '20230101', EXPIRY_DATE = '20240101'", 0),
        ("EXPIRY_DATE = '29990101'", 0),
    ],
)
def test_dates_of_certificates_are_judged(database: str, dates: str, number: int) -> None:
    assert error_numbers(f"{database}CREATE CERTIFICATE c WITH SUBJECT = 's', {dates}") == ([number] if number else [])


@pytest.mark.parametrize(
    "name", ["sysprotects", "dbo.sysdevices", "master..syscharsets", "sys.sysopentapes", "syslockinfo"]
)
def test_missing_views_of_old_are_told_of(name: str) -> None:
    assert error_numbers(f"SELECT * FROM {name}") == [208]


def test_a_fault_in_one_file_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "half": b"\xff\xfeP\x00R",
        "zero": b"\0\0\0",
        "latin": b"PRINT '\xe9'",
        "good": b"CREATE QUEUE",
        "folder": b"",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.sql").write_bytes(text)
    (tmp_path / "folder.sql").unlink()
    (tmp_path / "folder.sql").mkdir()
    files = [str(tmp_path / f"{name}.sql") for name in (*texts, "missing")]
    result = CliRunner().invoke(app, ["tsql", "check", *files, files[3]])
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.output.count("CREATE QUEUE") == 2
    assert result.output.count("It cannot be read") == 2


@pytest.mark.parametrize(
    "text",
    [
        "ALTER USER ann WITH PASSWORD = 'x' OLD_PASSWORD = 'y'",
        "ALTER USER ann",
        "CREATE DATABASE d ON PRIMARY (NAME = a) LOG",
        "SELECT JSON_OBJECTAGG(NULL ON NULL)",
        "ALTER TABLE t ADD DEFAULT 0 FOR",
        "EXEC p 1e999",
        "EXECUTE AS USER = " + "1" * 39,
        "DBCC INPUTBUFFER (1e999)",
        "CREATE FUN\nCREATE TABLE t (a INT) x (HEAP)\nALTER FULLTEXT CATALOG c REBUILD $1 ACCENT_SENSITIVITY = OFF",
        "\0",
        "CREATE SCHEMA [a\0b]",
        "SELECT '\ud800'",
    ],
)
def test_check_has_no_traceback_and_every_finding_a_line(text: str) -> None:
    findings = list(check(f"\n{text}"))
    assert findings
    assert all(finding.line and finding.statement for finding in findings)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n\n\nCREATE TABLE t (a INT,\n b INT wrong)", 5),
        ("\n\nALTER TABLE t ADD\n x INT wrong", 4),
        ("\n\nSELECT * FROM t OPTION (\nnonsense)", 4),
        ("\n\nSELECT a b c", 3),
        ("PRINT 1\nGO\n\nEXEC ('\nSELECT a b c')", 4),
    ],
)
def test_lines_count_from_the_beginning_of_the_script(text: str, line: int) -> None:
    assert [finding.line for finding in check(text) if finding.verdict is Verdict.REFUSED] == [line]
