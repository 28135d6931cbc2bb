"""Ends of expressions and relational statements.

T-SQL needs no semicolons, so the first word of the next statement ends them.
"""

from __future__ import annotations

from servicebroker.tsql.parser.keywords import STARTERS, begins_statement
from servicebroker.tsql.tokens import Tokens

_DELIMITERS = frozenset(["(", ")", ",", ";", "", "CASE", "END", ":"])
_IN_EXPRESSION = _DELIMITERS | STARTERS
_SET_OPERATORS = ("UNION", "ALL", "EXCEPT", "INTERSECT")
_COLUMN_CHANGES = ("COLUMN", "CONSTRAINT", "PERIOD", "NOT", "ROWGUIDCOL", "PERSISTED", "MASKED", "SPARSE", "HIDDEN")
_IN_STATEMENT = (_IN_EXPRESSION | {"VALUES"}) - {","}


def expression_end(tokens: Tokens, at: int, stops: frozenset[str] = frozenset()) -> int:
    """Return the index after the expression that begins at `at`."""
    words = tokens.words
    interesting = _IN_EXPRESSION | stops if stops else _IN_EXPRESSION
    depth = cases = 0
    while True:
        word = words[at]
        if word in interesting:
            if word == "":
                return at
            if word == "(":
                depth += 1
            elif word == ")":
                if depth == 0:
                    return at
                depth -= 1
            elif depth == 0:
                if word == "CASE":
                    cases += 1
                elif cases:
                    cases -= word == "END"
                elif word == ":":
                    return at - 1  # the name before it is a label
                elif word in stops or word in (",", ";") or _ends_expression(tokens, at):
                    return at
        at += 1


def _ends_expression(tokens: Tokens, at: int) -> bool:
    word = tokens.words[at]
    if word in ("RECEIVE", "WITH"):  # reserved outside of a query
        return True
    return not _is_in_braces(tokens.words, at) and begins_statement(tokens, at)


def _is_in_braces(words: list[str], at: int) -> bool:
    """Check for the name of a function of ODBC, which may be a word of T-SQL: {fn INSERT(...)}."""
    return words[at - 2 : at] == ["{", "FN"]


def statement_end(tokens: Tokens, at: int) -> int:
    """Return the index after the relational statement that begins at `at`."""
    words = tokens.words
    if words[at + 1 : at + 3] == ["OR", "ALTER"]:  # after CREATE
        at += 2
    keyword = words[at]
    awaits_query = keyword in ("INSERT", "WITH") or (keyword in ("CREATE", "ALTER") and words[at + 1] == "VIEW")
    awaits_set = keyword == "UPDATE"
    is_table = keyword == "ALTER"
    depth = cases = 0
    at += keyword != "("
    if is_table and words[at] == "TABLE":
        at = _skip_altered_table(words, at)
    while True:
        word = words[at]
        if word not in _IN_STATEMENT:
            at += 1
            continue
        if word == "":
            return at
        if word == "(":
            depth += 1
        elif word == ")":
            if depth == 0:
                return at
            depth -= 1
        elif depth:
            pass
        elif word == ";":
            return at
        elif word == ":":
            return at - 1
        elif word == "CASE":
            cases += 1
        elif cases:
            cases -= word == "END"
        elif word == "VALUES":
            awaits_query = False
        elif awaits_query and word in ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"):
            awaits_query = word == "INSERT"
            awaits_set = word == "UPDATE"
        elif awaits_query and word in ("EXEC", "EXECUTE"):
            return at
        elif awaits_query and word == "WITH":
            pass
        elif awaits_set and word == "SET":
            awaits_set = False
        elif _continues_statement(words, at, is_table=is_table):
            pass
        elif begins_statement(tokens, at):
            return at
        at += 1


def merge_end(tokens: Tokens, at: int) -> int:
    """Return the index after the MERGE whose first word is before `at`: of its semicolon, or of the next statement."""
    words = tokens.words
    depth = cases = 0
    awaits_merge = words[at - 1] == "WITH"
    while True:
        word = words[at]
        if word in ("", ";"):
            return at
        depth += (word == "(") - (word == ")")
        if depth or word not in _IN_STATEMENT:
            pass
        elif word == "CASE":
            cases += 1
        elif cases:
            cases -= word == "END"
        elif word == "MERGE" and awaits_merge:
            awaits_merge = False
        elif word in STARTERS and not _continues_merge(words, at) and begins_statement(tokens, at):
            return at
        at += 1


def _continues_merge(words: list[str], at: int) -> bool:
    """Check whether a word that can begin a statement is an action of MERGE."""
    if _is_in_braces(words, at):
        return True
    return words[at - 1] == "UPDATE" if words[at] == "SET" else words[at - 1] == "THEN"


def _skip_altered_table(words: list[str], at: int) -> int:
    """Return the index after ALTER TABLE name and the word for the kind of change."""
    while words[at + 2 : at + 3] == ["."]:
        at += 2
    return min(at + (3 if words[at + 2 : at + 3] != ["("] else 2), len(words) - 1)


def _continues_statement(words: list[str], at: int, *, is_table: bool) -> bool:
    """Check whether a word that can begin a statement belongs to the current one."""
    word, before = words[at], words[at - 1]
    if _is_in_braces(words, at):
        return True
    if word == "END":  # PERIOD FOR SYSTEM_TIME
        return before in ("ROW", "TRANSACTION_ID", "SEQUENCE_NUMBER", "SUSER_SID", "SUSER_SNAME")
    if word == "SELECT":
        return before in _SET_OPERATORS and (before != "ALL" or words[at - 2] == "UNION")
    if word == "FETCH":
        return before in ("ROWS", "ROW") or words[at + 1] in ("APPROX", "APPROXIMATE")
    if word in ("DELETE", "UPDATE"):
        return before == "ON"
    if word == "SET":
        return before in ("DELETE", "UPDATE")
    if word == "MERGE":
        return words[at + 1] in ("JOIN", "UNION")
    if word == "IF":
        return before in ("TABLE", "VIEW", "INDEX", "COLUMN", "CONSTRAINT", "SEQUENCE", "SCHEMA")
    return is_table and word in ("DROP", "ALTER", "SET", "CHECK") and words[at + 1] in _COLUMN_CHANGES
