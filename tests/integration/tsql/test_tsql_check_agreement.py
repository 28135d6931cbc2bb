"""`tsql check` and the run are one judgement: over every script and snippet of the repository, whatever it is about."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Finding, Verdict, check
from servicebroker.tsql.parser.keywords import STARTERS
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import SYNTAX_ERROR, UNSUPPORTED_ERROR, TsqlError
from servicebroker.tsql.tokens import batches
from tsql_support import SEEDS

ROOT = Path(__file__).parents[3]
BY_ITS_TEXT = {SYNTAX_ERROR, UNSUPPORTED_ERROR}
_SNIPPET = re.compile(r"```sql\n(.*?)```", re.DOTALL)
_TEMPLATE = re.compile(r"\{\w*\}")
_MAY_NOT_COME = re.compile(r"\b(IF|BEGIN|RETURN|PROCEDURE|PROC|TRIGGER)\b", re.IGNORECASE)
# Refusals that depend on values, rows or PostgreSQL's knowledge of functions.
_AT_THE_RUN = re.compile(
    "not known|FORMAT for the culture|sp_rename of|Give it another name|goes on from row to row"
    "|depends on more than its row"
)
_WAITING_STATEMENTS = re.compile(r"\b(WAITFOR|WHILE|GOTO)\b", re.IGNORECASE)  # without a message it never ends


def grammar() -> Iterator[str]:
    for file in sorted((ROOT / "tests" / "grammar").glob("*.sql")):
        for batch in batches(file.read_text()):
            tokens = batch.tokens
            yield tokens.source[tokens.starts[0] : tokens.ends[-2]]


def snippets() -> Iterator[str]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from _SNIPPET.findall(page.read_text())
    for file in [*sorted((ROOT / "examples").rglob("*.sql")), *sorted((ROOT / "src").rglob("demo/**/*.sql"))]:
        yield file.read_text()


def strings() -> Iterator[str]:
    """Yield the strings of tests and examples that begin as a statement does."""
    for file in [*sorted((ROOT / "tests").rglob("test_tsql_*.py")), *sorted((ROOT / "examples").rglob("*.py"))]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = node.value.split(None, 1)
                if len(words) == 2 and words[0] in STARTERS and not _TEMPLATE.search(node.value):
                    yield node.value


def listings() -> Iterator[str]:
    """The lines of the seeds' documents from one that begins as a statement does to the next blank one."""
    for file in sorted(SEEDS.glob("*.txt")):
        for block in re.split(r"\n\s*\n", file.read_text()):
            if block.split(None, 1)[:1] and block.split(None, 1)[0] in STARTERS:
                yield block


SOURCES = {"grammar": grammar, "snippets": snippets, "strings": strings, "listings": listings}


def numbers_of(database: sb.Database, script: str) -> list[int]:
    """Return the numbers of a run's refusals in a new session, without those that no text tells."""
    results: list[object] = []
    with Session(database, results.append) as session:
        session.run(script)
    return [item.number for item in results if isinstance(item, TsqlError) and not _AT_THE_RUN.search(item.text)]


def disagreement(script: str, found: list[Finding], numbers: list[int]) -> bool:
    """Return whether check and run differ: a refusal by text alone must be one of both."""
    refused = {int(one.note.split(":")[0]) for one in found if one.verdict is Verdict.REFUSED}
    return bool((BY_ITS_TEXT & set(numbers)) - refused) or bool(
        refused & BY_ITS_TEXT and not numbers and not _MAY_NOT_COME.search(script)
    )


@pytest.mark.parametrize("source", ["grammar", "snippets", "listings", pytest.param("strings", marks=pytest.mark.full)])
def test_check_agrees_with_the_run(instance: sb.Instance, source: str) -> None:
    judged = instance.database("Judged", create=True)
    scripts = [script for script in dict.fromkeys(SOURCES[source]()) if not _WAITING_STATEMENTS.search(script)]
    wrong = []
    for index, script in enumerate(scripts):
        findings, numbers = list(check(script)), numbers_of(judged, script)
        if disagreement(script, findings, numbers):  # unless by what the scripts before it have made
            numbers = numbers_of(instance.database(f"Empty{index}", create=True), script)
        if disagreement(script, findings, numbers):
            wrong.append(f"{script}\n-- the run: {numbers}; check: {[one for one in findings if one.note]}")
    assert not wrong, "\n\n".join(wrong)
