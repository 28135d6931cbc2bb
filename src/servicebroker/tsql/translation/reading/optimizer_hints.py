"""Hints for SQL Server's optimizer and storage, which are removed before parsing, and the limit of recursion."""

from __future__ import annotations

from collections.abc import Iterator

from servicebroker.tsql.parser.keywords import split_words
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.tokens import Tokens, find_closing
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

# first words of the hints in OPTION
_OPTION_HINTS = split_words(
    "ALTERCOLUMN BYPASS CHECKCONSTRAINTS CONCAT DISABLE EXPAND FAST FORCE HASH IGNORE_NONCLUSTERED_COLUMNSTORE_INDEX KEEP KEEPFIXED LABEL LOOP MAXDOP "
    "MAXRECURSION MAX_GRANT_PERCENT MERGE MIN_GRANT_PERCENT NO_PERFORMANCE_SPOOL OPTIMIZE ORDER PARAMETERIZATION "
    "QUERYTRACEON RECOMPILE ROBUST SHRINKDB TABLE USE USEPLAN"
)
# hints that may follow a table without WITH
HINTS = split_words(
    "HOLDLOCK NOEXPAND NOLOCK NOWAIT PAGLOCK READCOMMITTED READCOMMITTEDLOCK READPAST READUNCOMMITTED REPEATABLEREAD "
    "ROWLOCK SERIALIZABLE TABLOCK TABLOCKX UPDLOCK XLOCK"
)

_AFTER_HINT = HINTS | {")", ","}
_HINTS_WITH_ARGUMENTS = split_words("INDEX FORCESEEK FASTFIRSTROW SPATIAL_WINDOW_MAX_CELLS")
MAX_RECURSION_LEVELS = 32_767  # SQL Server's maximum of MAXRECURSION
_JOIN_HINTS = split_words("LOOP HASH MERGE REMOTE REDUCE REPLICATE REDISTRIBUTE")
_BEFORE_JOIN_HINT = split_words("INNER LEFT RIGHT FULL OUTER")


def find_ignored_places(tokens: Tokens, first: int, last: int) -> set[int]:
    """Return the token indexes that concern the execution in SQL Server and not the result.

    Raises:
        TsqlError: 102 an unknown hint in OPTION.
    """
    words = tokens.words
    indexes: set[int] = set()
    for at in range(first, last):
        word = words[at]
        if word == "OPTION" and words[at + 1] == "(":
            indexes.update(range(at, _option_end(tokens, at + 1)))
        elif word in _JOIN_HINTS and words[at + 1] == "JOIN" and words[at - 1] in _BEFORE_JOIN_HINT:
            indexes.add(at)
        elif word in _HINTS_WITH_ARGUMENTS and words[at - 1] in ("(", ",") and words[at + 1] in ("(", "="):
            end = at + 3 if words[at + 1] == "=" else _require_closing(tokens, at + 1) + 1
            indexes.update(range(at + 1, end))
        elif word == "ALL" and words[at - 1] == "SELECT" and words[at + 1] == "TOP":
            indexes.add(at)
        elif word == "INTO":
            indexes.update(_filegroup(tokens, at + 1))
        elif word == "{" and words[at + 1] in ("OJ", "ESCAPE"):
            indexes.update(_braces(words, at))
    return indexes


def opens_hints(words: list[str], at: int) -> bool:
    """Check whether table hints in the old form, without WITH, open here."""
    return words[at] == "(" and words[at + 1] in HINTS and words[at + 2] in _AFTER_HINT


def read_max_recursion(tokens: Tokens) -> int:
    """Return the limit of recursion, from OPTION (MAXRECURSION n). 0 means no limit, 100 is the default.

    Raises:
        TsqlError: 310 the limit is too high.
    """
    for at, word in enumerate(tokens.words[:-1]):
        if word == "MAXRECURSION" and is_whole(tokens.text(at + 1)):
            levels = parse_whole_number(tokens.text(at + 1))
            if levels > MAX_RECURSION_LEVELS:
                raise TsqlError(
                    310,
                    f"The value {levels} specified for the MAXRECURSION option exceeds the allowed maximum of {MAX_RECURSION_LEVELS}.",
                    severity=15,
                )
            return levels
    return 100


def _option_end(tokens: Tokens, opening: int) -> int:
    """Return the index after OPTION (...)."""
    closing = _require_closing(tokens, opening)
    depth = 0
    for at in range(opening, closing):
        word = tokens.words[at]
        depth += (word == "(") - (word == ")")
        if depth == 1 and word in ("(", ",") and tokens.words[at + 1] not in _OPTION_HINTS:
            raise syntax_error(tokens.text(at + 1), tokens.line(at + 1))
    return closing + 1


def _require_closing(tokens: Tokens, opening: int) -> int:
    index = find_closing(tokens.words, opening)
    if index is None:
        raise syntax_error("(", tokens.line(opening))
    return index


def _braces(words: list[str], at: int) -> Iterator[int]:
    """Yield the indexes of braces in {oj a LEFT JOIN b ON ...} and {escape '!'}, which have no effect."""
    depth, index = 1, at + 1
    while depth and words[index]:
        depth += (words[index] == "{") - (words[index] == "}")
        index += 1
    yield from (at, index - 1)
    if words[at + 1] == "OJ":
        yield at + 1


def _filegroup(tokens: Tokens, at: int) -> Iterator[int]:
    """Yield the indexes of ON filegroup in SELECT ... INTO name ON filegroup FROM."""
    while tokens.words[at + 1 : at + 2] == ["."]:
        at += 2
        while tokens.words[at] == ".":
            at += 1
    if tokens.words[at + 1 : at + 2] == ["ON"] and tokens.words[at + 3 : at + 4] == ["FROM"]:
        yield from (at + 1, at + 2)
