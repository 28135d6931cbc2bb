"""What only guides the optimizer and the storage of SQL Server is left out before a query is read; what OPTION limits."""

from __future__ import annotations

from collections.abc import Iterator

from servicebroker.tsql.parser.keywords import split_words
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.tokens import Tokens, find_closing
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

# the first words of what OPTION may say
_OPTION_HINTS = split_words(
    "CONCAT DISABLE EXPAND FAST FORCE HASH IGNORE_NONCLUSTERED_COLUMNSTORE_INDEX KEEP KEEPFIXED LABEL LOOP MAXDOP "
    "MAXRECURSION MAX_GRANT_PERCENT MERGE MIN_GRANT_PERCENT NO_PERFORMANCE_SPOOL OPTIMIZE ORDER PARAMETERIZATION "
    "QUERYTRACEON RECOMPILE ROBUST TABLE USE"
)
# what may stand behind a table without WITH
HINTS = split_words(
    "HOLDLOCK NOEXPAND NOLOCK NOWAIT PAGLOCK READCOMMITTED READCOMMITTEDLOCK READPAST READUNCOMMITTED REPEATABLEREAD "
    "ROWLOCK SERIALIZABLE TABLOCK TABLOCKX UPDLOCK XLOCK"
)

_BEHIND_HINT = HINTS | {")", ","}
_WITH_ARGUMENTS = split_words("INDEX FORCESEEK FASTFIRSTROW SPATIAL_WINDOW_MAX_CELLS")
MAX_RECURSION_LEVELS = 32_767  # levels that MAXRECURSION may say
_JOIN_HINTS = split_words("LOOP HASH MERGE REMOTE REDUCE REPLICATE REDISTRIBUTE")
_BEFORE_JOIN_HINT = split_words("INNER LEFT RIGHT FULL OUTER")


def find_ignored_places(tokens: Tokens, first: int, last: int) -> set[int]:
    """The places of a piece that say how SQL Server does something, not what.

    Raises:
        TsqlError: 102 OPTION has no such hint.
    """
    said = tokens.words
    found: set[int] = set()
    for at in range(first, last):
        word = said[at]
        if word == "OPTION" and said[at + 1] == "(":
            found.update(range(at, _option_end(tokens, at + 1)))
        elif word in _JOIN_HINTS and said[at + 1] == "JOIN" and said[at - 1] in _BEFORE_JOIN_HINT:
            found.add(at)
        elif word in _WITH_ARGUMENTS and said[at - 1] in ("(", ",") and said[at + 1] in ("(", "="):
            end = at + 3 if said[at + 1] == "=" else _require_closing(tokens, at + 1) + 1
            found.update(range(at + 1, end))
        elif word == "ALL" and said[at - 1] == "SELECT" and said[at + 1] == "TOP":
            found.add(at)
        elif word == "INTO":
            found.update(_filegroup(tokens, at + 1))
        elif word == "{" and said[at + 1] in ("OJ", "ESCAPE"):
            found.update(_braces(said, at))
    return found


def opens_hints(said: list[str], at: int) -> bool:
    """Whether a table's hints open here in the old form, without WITH."""
    return said[at] == "(" and said[at + 1] in HINTS and said[at + 2] in _BEHIND_HINT


def read_max_recursion(tokens: Tokens) -> int:
    """How deep a common table expression may read itself, by OPTION (MAXRECURSION n); 0 for as deep as it does.

    Raises:
        TsqlError: 310 that is more than may be said.
    """
    for at, word in enumerate(tokens.words[:-1]):
        if word == "MAXRECURSION" and is_whole(tokens.text(at + 1)):
            said = parse_whole_number(tokens.text(at + 1))
            if said > MAX_RECURSION_LEVELS:
                raise TsqlError(
                    310,
                    f"The value {said} specified for the MAXRECURSION option exceeds the allowed maximum of {MAX_RECURSION_LEVELS}.",
                    severity=15,
                )
            return said
    return 100


def _option_end(tokens: Tokens, opening: int) -> int:
    """The place behind OPTION (...)."""
    closing = _require_closing(tokens, opening)
    depth = 0
    for at in range(opening, closing):
        word = tokens.words[at]
        depth += (word == "(") - (word == ")")
        if depth == 1 and word in ("(", ",") and tokens.words[at + 1] not in _OPTION_HINTS:
            raise syntax_error(tokens.text(at + 1), tokens.line(at + 1))
    return closing + 1


def _require_closing(tokens: Tokens, opening: int) -> int:
    place = find_closing(tokens.words, opening)
    if place is None:
        raise syntax_error("(", tokens.line(opening))
    return place


def _braces(said: list[str], at: int) -> Iterator[int]:
    """{oj a LEFT JOIN b ON ...} and {escape '!'}, which mean what they mean without braces."""
    depth, place = 1, at + 1
    while depth and said[place]:
        depth += (said[place] == "{") - (said[place] == "}")
        place += 1
    yield from (at, place - 1)
    if said[at + 1] == "OJ":
        yield at + 1


def _filegroup(tokens: Tokens, at: int) -> Iterator[int]:
    """SELECT ... INTO name ON filegroup FROM."""
    while tokens.words[at + 1 : at + 2] == ["."]:
        at += 2
    if tokens.words[at + 1 : at + 2] == ["ON"] and tokens.words[at + 3 : at + 4] == ["FROM"]:
        yield from (at + 1, at + 2)
