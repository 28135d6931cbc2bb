"""Sentences of the whole T-SQL grammar. Error 102 means that SQL Server would refuse the text, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servicebroker.tsql.check import Row, Verdict, check
from servicebroker.tsql.parser import parse
from servicebroker.tsql.statement_errors import SYNTAX_ERROR, TsqlError
from servicebroker.tsql.tokens import Batch, batches

FOLDER = Path(__file__).parents[2] / "grammar"
NAMES = ("definitions", "storage", "statements", "variants", "broker", "queries", "administration", "programs")
VALID = [FOLDER / f"{name}.sql" for name in NAMES]


def sentences(file: Path) -> list[Batch]:
    return list(batches(file.read_text()))


def error_numbers(text: str) -> list[str]:
    """Return the error numbers of `tsql check` for a sentence, and the number if its batch cannot be parsed."""
    numbers = [finding.note.split(":")[0] for finding in check(text) if finding.verdict is Verdict.REFUSED]
    try:
        parse(next(batches(text)).tokens)
    except TsqlError as error:
        numbers.append(str(error.number))
    return numbers


def text_of(batch: Batch) -> str:
    tokens = batch.tokens
    return tokens.source[tokens.starts[0] : tokens.ends[-2]]


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_no_valid_sentence_is_a_syntax_error(file: Path) -> None:
    sentences_of_file = sentences(file)
    assert len(sentences_of_file) > 190
    assert [
        text_of(sentence)
        for sentence in sentences_of_file
        if {str(SYNTAX_ERROR), "195"} & set(error_numbers(text_of(sentence)))
    ] == []


def test_every_difference_is_a_row_of_the_page() -> None:
    page = FOLDER.parent.parent / "docs" / "reference" / "t-sql.md"
    table = page.read_text().split("## Differences")[1].split("\n\n## ")[0]
    cells = [line[2:].split(" | ")[0] for line in table.splitlines() if line.startswith("| ")]
    assert [row for row in Row if row and not any(cell.startswith(row) for cell in cells)] == []
    sentences_of_file = [
        finding for file in VALID for sentence in sentences(file) for finding in check(text_of(sentence))
    ]
    differing = [finding for finding in sentences_of_file if finding.verdict is Verdict.DIFFERS]
    assert [finding for finding in differing if not finding.row] == []
    assert {finding.row for finding in differing} == set(Row) - {Row.NONE}
    assert not any(finding.row for finding in sentences_of_file if finding.verdict is not Verdict.DIFFERS)


def test_every_broken_sentence_is_a_syntax_error() -> None:
    sentences_of_file = sentences(FOLDER / "broken.sql")
    assert len(sentences_of_file) > 150
    assert [
        text_of(sentence) for sentence in sentences_of_file if str(SYNTAX_ERROR) not in error_numbers(text_of(sentence))
    ] == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SELECT 'it's' FROM dbo.Orders", "105"),
        ("SELECT [Id FROM dbo.Orders", "105"),
        ('SELECT "Id FROM dbo.Orders', "105"),
        ("SELECT N'open", "105"),
        ("SELECT 1 /* open /* closed */", "113"),
        ("SELECT \u00a7 FROM dbo.Orders", "102"),
    ],
)
def test_a_text_without_its_end_is_no_batch(text: str, number: str) -> None:
    assert [finding.note.split(":")[0] for finding in check(text)] == [number]


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_no_valid_sentence_is_one_once_its_variables_are_declared(file: Path) -> None:
    """An undeclared variable raises 137, which would hide later errors."""
    wrong = []
    for text in map(text_of, sentences(file)):
        if {"137", "1087"} & set(error_numbers(text)):
            names = sorted({name.lower() for name in re.findall(r"(?<![@\w])@\w+", text)})
            declared = f"DECLARE {', '.join(f'{name} nvarchar(50)' for name in names)} {text}"
            wrong += [text] if {str(SYNTAX_ERROR), "156", "195", "4145"} & set(error_numbers(declared)) else []
    assert wrong == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("DECLARE @h uniqueidentifier DROP ASSEMBLY Sorting", "END CONVERSATION @h WITH CLEANUP"),
        ("DECLARE @h uniqueidentifier CREATE FEDERATION f", "END CONVERSATION @h"),
        ("ALTER TABLE t CHECK CONSTRAINT ALL", 'SELECT "a" FROM "t"'),
        ("SELECT 1 AS a UNION ALL SELECT 2", "DISK RESIZE NAME = 'x', SIZE = 5"),
        ("SELECT Ship FROM dbo.Calls TABLESAMPLE (3 ROWS)", "RENAME DATABASE Port TO Haven"),
        ("ALTER TABLE t REBUILD", "COPY INTO t (a) FROM 'x'"),
        ("SELECT a FROM t FOR XML PATH ('')", "LOAD TRANSACTION Port FROM DISK = 'x'"),
    ],
)
def test_a_statement_ends_where_the_next_begins(first: str, second: str) -> None:
    assert str(SYNTAX_ERROR) not in error_numbers(f"{first}\n{second}")
    assert len([finding for finding in check(f"{first}\n{second}") if finding.statement != "batch"]) > 1
