"""Faults in SQL files: a table of changes of text. No mutation tool for Python reads SQL.

Comments and strings are left out. A change that PostgreSQL cannot read counts as killed, so each pattern looks at
enough of its surroundings to leave valid statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from servicebroker_lab.mutation.candidates import Candidate

_LEFT_OUT = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
_CONDITION = r"\b(?:where|and|or|on|when|if|elsif|not)\s+\(?[\w.\"{}]+(?:\([^()\n]*\))?\s*"  # up to its comparison
_CLAUSE_END = re.compile(
    r"\b(?:and|or|order|group|having|limit|for|returning|union|then|loop|on|window|from|as|end)\b|;|\Z"
)
_BETWEEN = re.compile(r"\bbetween\s+[^;]*?\Z")


class SqlOperator(NamedTuple):
    """Replaces what the group `it` of the pattern matches, or the whole match."""

    family: str
    name: str
    pattern: re.Pattern[str]
    replacement: str


def _operator(family: str, name: str, pattern: str, replacement: str = "") -> SqlOperator:
    return SqlOperator(family, name, re.compile(pattern, re.IGNORECASE), replacement)


OPERATORS = (
    _operator("sql lock", "DropSkipLocked", r"\bskip locked\b"),
    _operator(
        "sql lock",
        "DropForUpdate",
        r"\bfor (?:no key )?(?:update|share|key share)(?: of [\w, ]+?)?(?: skip locked| nowait)?(?=\s*[);\n])",
    ),
    _operator(
        "sql lock",
        "DropAdvisoryLock",
        r"\bperform (?P<it>pg_advisory_xact_lock(?:_shared)?\([^;]*?\))(?=\s*(?:from|;))",
        "1",
    ),
    _operator("sql comparison", "EqualToUnequal", _CONDITION + r"(?P<it>(?<![<>:!=])=(?![>=]))", "<>"),
    _operator("sql comparison", "UnequalToEqual", r"<>", "="),
    _operator("sql boundary", "LessToLessOrEqual", r"(?<= )<(?= )", "<="),
    _operator("sql boundary", "LessOrEqualToLess", r"(?<= )<=(?= )", "<"),
    _operator("sql boundary", "GreaterToGreaterOrEqual", r"(?<= )>(?= )", ">="),
    _operator("sql boundary", "GreaterOrEqualToGreater", r"(?<= )>=(?= )", ">"),
    _operator("sql condition", "IsNullToIsNotNull", r"\bis null\b", "is not null"),
    _operator("sql condition", "IsNotNullToIsNull", r"\bis not null\b", "is null"),
    _operator("sql condition", "DropNot", r"\bnot (?=exists\b|\w+\.is_|is_|found\b|\()"),
    _operator(
        "sql condition",
        "AddNotToIf",
        r"\bif (?!not\b|exists\b)(?=\w)(?=[^\n]* then\b)(?![^\n]*\b(?:and|or)\b)",
        "if not ",
    ),
    _operator("sql constant", "TrueToFalse", r"\btrue\b", "false"),
    _operator("sql constant", "FalseToTrue", r"\bfalse\b", "true"),
    _operator("sql constant", "OffByOne", r"(?<=[+-] )1\b(?!\.)", "0"),
    _operator("sql constant", "LimitOfOne", r"\blimit (?P<it>\d+)\b", "0"),
    _operator("sql order", "DropDescending", r"(?<=\w) desc\b"),
    _operator("sql order", "MinimumToMaximum", r"\bmin(?=\()", "max"),
    _operator("sql order", "LeastToGreatest", r"\bleast(?=\()", "greatest"),
    _operator("sql order", "GreatestToLeast", r"\bgreatest(?=\()", "least"),
)
_BY_NAME = {operator.name: operator for operator in OPERATORS}
_DROPPED_CLAUSE = "DropClause"


def candidates(text: str) -> Iterator[Candidate]:
    """Yield every fault that can be planted in a file of SQL."""
    code = _without_comments(text)
    for operator in OPERATORS:
        for occurrence, (start, _) in enumerate(_spans(code, operator)):
            yield Candidate(operator.family, operator.name, occurrence, _line(text, start))
    for occurrence, (start, _) in enumerate(_clauses(code)):
        yield Candidate("sql condition", _DROPPED_CLAUSE, occurrence, _line(text, start))


def plant(text: str, candidate: Candidate) -> str | None:
    """Return the text with the fault; None if there are fewer places."""
    code = _without_comments(text)
    operator = _BY_NAME.get(candidate.operator)
    spans = list(_clauses(code) if operator is None else _spans(code, operator))
    if candidate.occurrence >= len(spans):
        return None
    start, end = spans[candidate.occurrence]
    return text[:start] + (operator.replacement if operator else "") + text[end:]


def _without_comments(text: str) -> str:
    """Return a text of the same length in which comments and strings are blank."""
    return _LEFT_OUT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _spans(code: str, operator: SqlOperator) -> Iterator[tuple[int, int]]:
    has_group = "it" in operator.pattern.groupindex
    for match in operator.pattern.finditer(code):
        yield match.span("it" if has_group else 0)


def _clauses(code: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each `and ...` of a condition, to the next word or closing parenthesis of its level."""
    for match in re.finditer(r"\band\b", code, re.IGNORECASE):
        before = re.split(r"\b(?:and|or|where|on|when|if|select)\b", code[: match.start()])[-1]
        if _BETWEEN.search(before):
            continue
        end = _clause_end(code, match.end())
        if code[match.end() : end].strip():
            yield match.start(), end


def _clause_end(code: str, start: int) -> int:
    """Return the end of a condition that begins there: at its own level of parentheses and of CASE."""
    level = 0
    for token in re.finditer(r"[()]|\bcase\b|\bend\b|;|\b[a-z]+\b|\Z", code[start:], re.IGNORECASE):
        word = token[0].lower()
        if level == 0 and (word == ")" or (_CLAUSE_END.fullmatch(word) and not _is_distinct_from(code[start:], token))):
            return start + len(code[start : start + token.start()].rstrip())
        level += (word in {"(", "case"}) - (word in {")", "end"})
    return len(code)


def _is_distinct_from(code: str, token: re.Match[str]) -> bool:
    """Return whether the word is the FROM of IS DISTINCT FROM."""
    return token[0].lower() == "from" and code[: token.start()].rstrip().lower().endswith("distinct")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


_UNIT = re.compile(
    r"^-- name: (?P<statement>[\w.]+)$"
    r"|^create (?:or replace )?(?:function|view|procedure|trigger) (?:\w+\.)?(?P<object>[\w{}]+)",
    re.MULTILINE | re.IGNORECASE,
)


def unit_of(text: str, line: int) -> tuple[str | None, str | None]:
    """Return the names of the statement and of the function or view in which a line stands."""
    statement = made = None
    position = sum(len(previous_line) + 1 for previous_line in text.split("\n")[:line])
    for match in _UNIT.finditer(text, 0, position):
        if match["statement"]:
            statement, made = match["statement"], None
        else:
            made = plain_name(match["object"])
    return statement, made


def functions_of(text: str) -> dict[str, set[str]]:
    """Return the functions and views that a file makes, each with the names that its text calls."""
    marks = [match for match in _UNIT.finditer(text) if match["object"]]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    made: dict[str, set[str]] = {}
    for mark, end in zip(marks, ends, strict=False):  # a file without functions has an end only
        made.setdefault(plain_name(mark["object"]), set()).update(called_in(text[mark.end() : end]))
    return made


_CALLED = re.compile(r"\b(?:servicebroker\w*|sys|tsql\w*)\.([\w{}]+)")


def called_in(sql: str) -> set[str]:
    """Return the names of our functions and views that a statement mentions."""
    return {plain_name(name) for name in _CALLED.findall(sql)}


def plain_name(name: str) -> str:
    """Return the name of a queue's function or table without the number of the queue."""
    return re.sub(r"_(?:\{id\}|\d+)", "", name)
