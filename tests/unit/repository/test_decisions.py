"""Decisions stay true: status, index, names, figures and tests of each record are compared with the repository.

A record quotes a figure as the code has it, between backticks: `PACE = 0.02`, or `daemon.PACE = 0.02` where another
file has a constant of that name. A merged record lists the numbers that it replaces, so each old number is found.
"""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/decisions"
DECISIONS = {int(path.name[:3]): path for path in sorted(FOLDER.glob("[0-9]*.md"))}
MOST_RECORDS = 80
NUMBERS = r"\d+(?:, \d+)*"
STATUS = re.compile(
    rf"# \d+\. (?P<title>.+)\n\n"
    rf"Status: (?:accepted|(?:changed|superseded) by (?P<later>{NUMBERS}))(?:; replaces (?P<replaced>{NUMBERS}))?\n\n"
)
INDEX_LINE = re.compile(rf"^- \[(\d+)\]\(([\w.-]+)\): (.+?)(?: \(replaces ({NUMBERS})\))?$", re.MULTILINE)
CONSTANT = re.compile(r"(?:([a-z_0-9]+)\.)?(_?[A-Z][A-Z_0-9]*) = (.+)")

every_decision = pytest.mark.parametrize("number", DECISIONS)


@every_decision
def test_status(number: int) -> None:
    status = STATUS.match(DECISIONS[number].read_text())
    assert status, "under the title stands: Status: accepted | changed by N | superseded by N [; replaces N, M]"
    assert numbers(status["later"]) <= DECISIONS.keys() - {number}


def test_the_number_of_records_is_limited() -> None:
    assert len(DECISIONS) <= MOST_RECORDS, "merge records of one subject"


def test_a_number_belongs_to_one_record() -> None:
    owners = [*DECISIONS, *(old for number in DECISIONS for old in replaced_numbers(number))]
    assert sorted(owners) == sorted(set(owners))


def test_the_index_lists_every_record() -> None:
    """The index has titles and replaced numbers, so that a search for an old number leads to its record."""
    index = INDEX_LINE.findall((FOLDER / "README.md").read_text())
    listed = {int(number): (name, title, numbers(old)) for number, name, title, old in index}
    assert len(listed) == len(index)
    records = {number: STATUS.match(path.read_text()) for number, path in DECISIONS.items()}
    assert listed == {
        number: (DECISIONS[number].name, record["title"], replaced_numbers(number))
        for number, record in records.items()
        if record
    }


def test_every_number_that_is_named_leads_to_a_record() -> None:
    folders = [ROOT / name for name in ("src", "lab", "tests", "tools", "docs", "examples")]
    files = [path for folder in folders for end in ("py", "sql", "md") for path in folder.rglob(f"*.{end}")]
    mention = re.compile(r"\b[Dd]ecisions?[ /](\d{1,3})\b")
    named = {int(number) for path in [*files, *ROOT.glob("*.md")] for number in mention.findall(path.read_text())}
    assert named <= DECISIONS.keys() | {old for number in DECISIONS for old in replaced_numbers(number)}


def replaced_numbers(number: int) -> set[int]:
    """Return the old numbers that a record has taken over."""
    status = STATUS.match(DECISIONS[number].read_text())
    return numbers(status["replaced"]) if status else set()


def numbers(text: str | None) -> set[int]:
    """Return the numbers of a comma-separated list; None is an empty list."""
    return {int(number) for number in (text or "").split(", ") if number}


@every_decision
def test_identifiers_named_by_a_record_exist(number: int) -> None:
    """Identifiers have an underscore or more than one capital. Names of rejected alternatives need not exist."""
    named = {name for code in quoted_text(number) for name in re.findall(r"[A-Za-z_]\w*", code)}
    ours = {name for name in named if "_" in name.strip("_") or re.fullmatch(r"(?:[A-Z]+[a-z0-9]+){2,}", name)}
    assert sorted(ours - words() - {"pg_dump", "pg_restore"}) == []


@every_decision
def test_the_figures_are_those_of_the_code(number: int) -> None:
    for code in quoted_text(number):
        if match := CONSTANT.fullmatch(code):
            file, name, value = match.groups()
            known = {
                figure for (stem, constant), figure in constants().items() if constant == name and file in (None, stem)
            }
            assert known == {evaluate(ast.parse(value, mode="eval").body)}, code


@every_decision
def test_the_tests_that_prove_it_are_there(number: int) -> None:
    text = " ".join(DECISIONS[number].read_text().split())
    for command in re.findall(r"`([^`]+)`", text):
        files = re.findall(r"(?:tests/\w+/)?test_\w+\.py", command)
        paths = [next(ROOT.glob(name if "/" in name else f"tests/**/{name}"), None) for name in files]
        assert None not in paths, command
        if match := re.search(r"-k (?:\"([^\"]+)\"|(\w+))", command):
            names = [name for path in paths if path for name in re.findall(r"\bdef (test_\w+)", path.read_text())]
            for word in re.split(r" (?:or|and) ", match[1] or match[2]):
                assert any(word in name for name in names), f"no test of {files} has {word} in its name"


def quoted_text(number: int) -> list[str]:
    """Return the text between backticks, without rejected alternatives and command lines."""
    text = re.sub(
        r"\*\*Rejected.*?(?=\n\n(?:\*\*|## )|\Z)|## Rejected.*?(?=\n## |\Z)", "", _text(number), flags=re.DOTALL
    )
    return [code for code in re.findall(r"`([^`]+)`", text) if not re.search(r"\bpytest |(?<!-)-k |tests/", code)]


def _text(number: int) -> str:
    text = DECISIONS[number].read_text()
    return "" if "\nStatus: superseded" in text else text


@cache
def words() -> set[str]:
    """Return every word of the sources, tests and tools, and the names of their files."""
    folders = [ROOT / name for name in ("src", "lab", "tests", "tools")]
    files = [path for folder in folders for end in ("py", "sql", "toml") for path in folder.rglob(f"*.{end}")]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml"]
    found = {path.stem for path in files}
    for path in files:
        if path.name != Path(__file__).name:
            found |= set(re.findall(r"\w+", path.read_text().replace("{id}", "N").replace("_{", "_N{")))
    return found


@cache
def constants() -> dict[tuple[str, str], Any]:
    """Return every module constant with a computable value, by file and name."""
    values = {}
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "lab").rglob("*.py")]:
        for line in ast.parse(path.read_text()).body:
            if isinstance(line, ast.Assign) and len(line.targets) == 1:
                target = line.targets[0]
                together = isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple)
                pairs = zip(target.elts, line.value.elts, strict=False) if together else [(target, line.value)]
                for name, value in pairs:
                    if isinstance(name, ast.Name) and (told := evaluate(value)) is not None:
                        values[path.stem, name.id] = told
    return values


def evaluate(value: ast.expr) -> Any:
    """Return the value of a constant's expression, or None if it is not purely numeric."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    if names - {"timedelta"}:
        return None
    code = compile(ast.Expression(value), "", "eval")
    try:
        return eval(code, {"__builtins__": {}, "timedelta": timedelta})
    except Exception:
        return None
