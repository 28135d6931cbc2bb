"""Syntax trees of T-SQL, parsed by sqlglot.

Spellings that sqlglot would misread are rewritten first. Incomplete trees are refused.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from servicebroker.tsql.function_table import CALLS, GLOBALS
from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.statement_errors import TsqlError, syntax_error, unsupported
from servicebroker.tsql.tokens import (
    COMPOUND_OPERATORS,
    END,
    NUMBER,
    QUOTED,
    STRING,
    VARIABLE,
    WORD,
    Tokens,
    complete_exponent,
    find_closing,
    string_value,
    tokenize,
    unquote,
)
from servicebroker.tsql.translation.reading.grammar_check import NOT_ALIASES, check_form
from servicebroker.tsql.translation.reading.optimizer_hints import HINTS, find_ignored_places, opens_hints
from servicebroker.tsql.types import DATES, MONEY, NUMBERS, parse_type

_PLAIN_VARIABLE = re.compile(r"@[^\W\d]\w*")
MAX_CACHED_CHARS = 20_000  # longer texts are rarely repeated
CALL_PREFIX = "tsql_"  # prefix of function names, so that sqlglot keeps the call as written
ODBC_PREFIX = "odbc_"  # prefix of calls for ODBC escapes in braces: {fn UCASE(...)}, {d '2020-01-01'}
ROW_ADDRESS, CURSOR_ADDRESS = "place_of_row", "current_of_cursor"
NULL_ON_NULL = CALL_PREFIX + "nulls"  # last argument of JSON_ARRAY, stands for NULL ON NULL

_BEFORE_NAMES = frozenset({"INTO", "TABLE", "JOIN", "UPDATE", "INSERT", "VIEW", "REFERENCES", "INDEX", ".", "AS"})
_BEFORE_HINT = HINTS | {")"}
_AFTER_HINT = HINTS | {")", ","}
_BEFORE_SOURCES = frozenset(
    {"FROM", "JOIN", "APPLY"}
)  # after these, a user-defined function may have the name of a built-in one
_TABLES_OF_SQLGLOT = frozenset({"OPENJSON", "OPENXML", "VALUES", "UNNEST"})
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_ASSIGNMENT_ENDS = frozenset(
    {",", ")", "FROM", "WHERE", "OUTPUT", "OPTION", "GROUP", "HAVING", "ORDER", "FOR", "UNION", "", ";"}
)


_APPLY_JOINS = {"CROSS": "CROSS JOIN", "OUTER": "LEFT JOIN"}  # APPLY of a plain table is a join
_PARSE_FUNCTIONS = {"PARSE": f"{CALL_PREFIX}parse(TRY_CAST", "TRY_PARSE": "TRY_CAST"}
_AFTER_OPERAND = frozenset({"", ")", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "UNION"})
_BEFORE_VALUES = frozenset({"SELECT", "DISTINCT", "(", ",", "BY", "SET", "VALUES"})
_NEEDS_OPERAND = frozenset({",", "BY", "AS", "EXISTS"})


_TSQL = sqlglot.Dialect.get_or_raise("tsql")
_NOT_NAMES = RESERVED | set(_TSQL.tokenizer_class.KEYWORDS)
_is_reading = ContextVar("is_reading", default=False)
# sqlglot warns of text that it returns as a Command; such text raises an error here, so the warning is noise
logging.getLogger("sqlglot").addFilter(lambda record: not _is_reading.get())


class Slice(NamedTuple):
    """The tokens of a text from index `first` up to, but not including, index `last`."""

    tokens: Tokens
    first: int
    last: int

    @property
    def words(self) -> list[str]:
        """The words of the slice, as in `Tokens.words`."""
        return self.tokens.words[self.first : self.last]

    @property
    def text(self) -> str:
        """The source text."""
        if self.first >= self.last:
            return ""
        return self.tokens.source[self.tokens.starts[self.first] : self.tokens.ends[self.last - 1]]

    def alone(self) -> Tokens:
        """Return the tokens, followed by an END token. They keep their offsets in the text."""
        tokens, part = self.tokens, slice(self.first, self.last)
        end = tokens.ends[self.last - 1] if self.last else 0
        return Tokens(
            tokens.source,
            [*tokens.words[part], ""],
            [*tokens.kinds[part], END],
            [*tokens.starts[part], end],
            [*tokens.ends[part], end],
            tokens.lines,
        )

    def part(self, first: int, last: int) -> Slice:
        """Return a part, given by indexes into `words`."""
        return Slice(self.tokens, self.first + first, self.first + last)

    def find(self, *wanted: str, after: int = 0) -> int | None:
        """Return the index of the first word among `wanted`, outside of parentheses and CASE; None without one."""
        for index in self.outside(after):
            if self.tokens.words[self.first + index] in wanted:
                return index
        return None

    def outside(self, after: int = 0) -> Iterator[int]:
        """Yield the indexes outside of parentheses and CASE ... END."""
        depth = 0
        for index, word in enumerate(self.words):
            if word in (")", "END"):
                depth -= 1
            if depth == 0 and index >= after:
                yield index
            if word in ("(", "CASE"):
                depth += 1

    def split(self) -> list[Slice]:
        """Return the parts between commas."""
        words = self.words
        indexes = [index for index in self.outside() if words[index] == ","]
        starts = [0, *(index + 1 for index in indexes)]
        return [self.part(first, last) for first, last in zip(starts, [*indexes, len(words)], strict=True)]

    def closing(self, opening: int) -> int:
        """Return the index of the parenthesis that closes the one at `opening`."""
        index = find_closing(self.words, opening)
        if index is None:
            raise syntax_error("(", self.line(opening))
        return index

    def line(self, index: int = 0) -> int:
        """Return the line of a token."""
        return self.tokens.line(min(self.first + index, len(self.tokens.words) - 1))


def slice_text(text: str) -> Slice:
    """Return the tokens of a text, without leading and trailing semicolons."""
    tokens = tokenize(text)
    first, last = 0, len(tokens.words) - 1
    while first < last and tokens.words[first] == ";":
        first += 1
    while last > first and tokens.words[last - 1] == ";":
        last -= 1
    return Slice(tokens, first, last)


def parse_slice(piece: Slice, before: str = "") -> exp.Expression:
    """Return the syntax tree of a slice, parsed as if the words `before` preceded it.

    Raises:
        TsqlError: 102 the syntax is wrong.
    """
    try:
        check_form(piece.alone(), before)
    except RecursionError:
        raise _too_deep() from None
    text = f"{before} {_rewrite_for_sqlglot(piece)}"
    return _cached_tree(text) if len(text) <= MAX_CACHED_CHARS else _parse_with_sqlglot(text)


def constant_tree(piece: Slice) -> exp.Expression | None:
    """Return the tree of a single string, number or NULL without sqlglot, or None for any other text.

    Scripts that load data consist mostly of constants.
    """
    if piece.last - piece.first != 1:
        return None
    kind, text = piece.tokens.kinds[piece.first], piece.tokens.text(piece.first)
    if kind == STRING:
        value = string_value(text)
        return exp.National(this=value) if text[0] in "nN" else exp.Literal.string(value)
    if kind == NUMBER and _DIGITS.fullmatch(text):
        return exp.Literal.number(text)
    return exp.Null() if piece.tokens.words[piece.first] == "NULL" else None


def plain_name(piece: Slice) -> str | None:
    """Return the name in a slice of one token; None for any other slice, and for a word with another meaning."""
    if piece.last - piece.first != 1:
        return None
    kind, text = piece.tokens.kinds[piece.first], piece.tokens.text(piece.first)
    if kind == WORD:
        return text if text[0] != "#" and piece.tokens.words[piece.first] not in _NOT_NAMES else None
    return unquote(text) if kind == QUOTED and len(text) > 2 else None


def _too_deep() -> TsqlError:
    return TsqlError(
        191,
        "Some part of your SQL statement is nested too deeply. Rewrite the query or break it up into smaller queries.",
        severity=15,
    )


def _parse_with_sqlglot(text: str) -> exp.Expression:
    token = _is_reading.set(True)
    try:
        tree = sqlglot.parse_one(text, read=_TSQL)
        near = missing_part(tree) if isinstance(tree, exp.Expression) else None
    except SqlglotError as problem:
        raise _syntax_error(problem) from None
    except RecursionError:
        raise _too_deep() from None
    except Exception:  # unexpected text makes sqlglot fail with TypeError, AttributeError ...
        raise syntax_error(text.split()[0], 0) from None
    finally:
        _is_reading.reset(token)
    if isinstance(tree, exp.Command):
        raise syntax_error(text.split()[0], 0)
    assert isinstance(tree, exp.Expression)
    if near is not None:
        raise syntax_error(near.removeprefix(CALL_PREFIX), 0)
    return tree


_cached_tree = functools.lru_cache(maxsize=2000)(_parse_with_sqlglot)  # trees are shared: copy before changing one


OPENXML_MARK = "openxml:"  # begins the path of an OPENJSON that was written as OPENXML; flags and ":" follow


class _OpenXml(NamedTuple):
    """OPENXML(@handle, 'pattern', flags), to be read as OPENJSON: the place of the pattern, and what stands there."""

    place: int
    path: str
    dropped: set[int]


def _read_openxml(tokens: Tokens, at: int, end: int) -> _OpenXml | None:
    """Return how to read OPENXML at a place; None for another form of it."""
    words, kinds, place = tokens.words, tokens.kinds, at + 4
    if place + 1 >= end or words[at + 1] != "(" or kinds[at + 2] != VARIABLE or words[at + 3] != ",":
        return None
    has_flags = words[place + 1] == "," and place + 3 < end and kinds[place + 2] == NUMBER
    flags = tokens.text(place + 2) if has_flags else ""
    if kinds[place] != STRING or words[place + (3 if has_flags else 1)] != ")" or not (flags or "0").isdigit():
        return None
    path = f"{OPENXML_MARK}{flags}:{string_value(tokens.text(place))}".replace("'", "''")
    return _OpenXml(place, f"'{path}'", {place + 1, place + 2} if has_flags else set())


def _syntax_error(problem: SqlglotError) -> TsqlError:
    errors = getattr(problem, "errors", None)
    near = str(errors[0].get("highlight") or "") if errors else ""
    return syntax_error(near.removeprefix(CALL_PREFIX)[:60], 0)


def _rewrite_for_sqlglot(piece: Slice) -> str:
    """Return the text of a slice, with replacements for spellings that sqlglot would misread."""
    tokens = piece.tokens
    words, kinds = tokens.words, tokens.kinds
    out: list[str] = []
    pending: list[int] = []  # depths of open operands of compound assignments
    depth = 0
    copied_to = tokens.starts[piece.first] if piece.first < piece.last else 0  # offset in the source
    without = set(find_ignored_places(tokens, piece.first, piece.last))
    ordered: set[int] = set()  # ends of OVER after NEXT VALUE FOR
    applied: set[int] = set()  # indexes after tables of OUTER APPLY
    replaced: dict[int, str] = {}  # texts for tokens, by index
    for at in range(piece.first, piece.last):
        word = words[at]
        if at in applied:
            out.append(" ON 1 = 1")
        if at in without:
            copied_to = tokens.starts[at]
            continue
        if pending and depth == pending[-1] and word in _ASSIGNMENT_ENDS:
            out.append(")")
            pending.pop()
        if word == ";":
            raise syntax_error(";", tokens.line(at))
        if _lacks_operand(word, words, at, piece):  # sqlglot accepts it
            raise syntax_error(tokens.text(min(at + 1, piece.last - 1)), 0)
        out.append(" " if tokens.starts[at] > copied_to else "")
        copied_to = tokens.ends[at]
        depth += {"(": 1, ")": -1, "CASE": 1, "END": -1}.get(word, 0)
        text = tokens.text(at)
        if words[at : at + 3] == ["NEXT", "VALUE", "FOR"] and at + 3 < piece.last:
            end = _name_end(tokens, at + 3, piece.last)
            name = tokens.source[tokens.starts[at + 3] : tokens.ends[end - 1]].replace("'", "''")
            without |= {*range(at + 1, end)}
            out.append(f"{CALL_PREFIX}next_value('{name}'")
            closing = find_closing(words, end + 1) if words[end : end + 2] == ["OVER", "("] else None
            if closing is None:
                out.append(")")
            else:
                out.append(", ROW_NUMBER()")
                ordered.add(closing)
        elif at in ordered:
            out.append("))")
        elif word == "{" and (escape := _read_escape(tokens, at, piece.last)):
            out.append(escape.text)
            without |= escape.dropped
            replaced |= dict.fromkeys(escape.commas, ",")
        elif at in replaced:
            out.append(replaced[at])
        elif word in _APPLY_JOINS and words[at + 1] == "APPLY" and (end := _table_end(tokens, at + 2, piece.last)):
            out.append(_APPLY_JOINS[word])
            without.add(at + 1)
            applied |= {end} if word == "OUTER" else set()
        elif word == "CURRENT" and words[at + 1] == "OF" and at + 2 < piece.last:
            skipped = 3 if words[at + 2] == "GLOBAL" and at + 3 < piece.last else 2
            out.append(f"{CURSOR_ADDRESS}({_literal(tokens.text(at + skipped))}) = 1")
            without |= {*range(at + 1, at + skipped + 1)}
        elif kinds[at] == WORD and (text[0] == "#" or words[at - 1 : at + 2] == [".", "ROWS", "("]):
            out.append(f"[{text}]")  # any word after # or ##; a function named Rows
        elif opens_hints(words, at) and words[at - 1] != "WITH":
            alias = _alias_after(tokens, at, piece.last)
            out.append(" ".join(["", *map(tokens.text, alias), "WITH ("]))
            without |= {*alias}
        elif word in HINTS and at > piece.first and words[at - 1] in _BEFORE_HINT and words[at + 1] in _AFTER_HINT:
            out.append(f", {text}")  # hints may stand without commas
        elif word == "OPENXML" and (reading := _read_openxml(tokens, at, piece.last)):
            out.append("OPENJSON")
            without |= reading.dropped
            replaced[reading.place] = reading.path
        elif word in ("!<", "!>"):
            out.append(">=" if word == "!<" else "<=")
        elif word in COMPOUND_OPERATORS:
            out.append(f"= {tokens.text(at - 1)} {COMPOUND_OPERATORS[word]} (")
            pending.append(depth)
        elif kinds[at] == NUMBER and text.lower() == "0x":
            out.append(f"{CALL_PREFIX}no_bytes()")
        elif kinds[at] == NUMBER and complete_exponent(text) != text:
            out.append(complete_exponent(text))
        elif kinds[at] == NUMBER and not text[0].isdigit() and text[0] != ".":  # a currency sign
            out.append(f"CAST({text[1:] or '0'} AS MONEY)")
        elif (
            word in ("NULL", "ABSENT")
            and words[at + 1 : at + 4] == ["ON", "NULL", ")"]
            and _is_in_json_array(words, at)
        ):
            out.append(f", {NULL_ON_NULL}()" if word == "NULL" else "")
            without |= {at + 1, at + 2}
        elif kinds[at] == VARIABLE and text.lower() in GLOBALS:
            out.append(f"{CALL_PREFIX}global('{text}')")
        elif kinds[at] == VARIABLE and not _PLAIN_VARIABLE.fullmatch(text):  # @, @# or @@x
            out.append(f"@[{text[1:]}]")
        elif kinds[at] == WORD and _is_function(words, at, piece):
            out.append(
                f"1 = {CALL_PREFIX}{text}" if word == "UPDATE" else CALL_PREFIX + text
            )  # UPDATE(column) is a condition
        elif word in ("CURRENT_USER", "SESSION_USER", "SYSTEM_USER", "USER") and _is_value(words, at, piece):
            out.append(f"{CALL_PREFIX}{text}()")
        elif kinds[at] == STRING and at > piece.first and kinds[at - 1] == STRING:  # an alias
            out.append(f"AS {text}")
        elif word == "REAL" and (words[at - 1], words[at + 1]) in (("AS", ")"), ("(", ",")):
            out.append("FLOAT(24)")
        elif word in _PARSE_FUNCTIONS and kinds[at] == WORD and words[at + 1] == "(" and words[at - 1] != ".":
            out.append(_PARSE_FUNCTIONS[word])
            dropped, changed = _read_parse(tokens, at)
            without |= dropped
            replaced |= changed
        elif word == ")" and _is_tablesample(words, at):  # without ROWS or PERCENT
            out.append(" PERCENT)")
        elif word == "." and words[at + 1] == "." and words[at + 3 : at + 4] == ["."]:  # database..table.column
            out.append(".dbo")
        elif word == "SOME" and words[at + 1] == "(":
            out.append("ANY")
        else:
            out.append(text)
    out.extend(")" * len(pending))
    if piece.last in applied:
        out.append(" ON 1 = 1")
    return "".join(out)


class _Escape(NamedTuple):
    """An ODBC escape: the text that replaces its brace, the tokens to drop, and the tokens to replace by a comma."""

    text: str
    dropped: set[int]
    commas: set[int]


def _read_escape(tokens: Tokens, at: int, last: int) -> _Escape | None:
    """Return the ODBC escape that begins at token `at`; None if it is incomplete."""
    words = tokens.words
    if at + 3 >= last:
        return None
    name = f"{CALL_PREFIX}{ODBC_PREFIX}{words[at + 1 if words[at + 3] == '}' else at + 2].lower()}"
    if words[at + 3] == "}" and tokens.kinds[at + 2] == STRING:
        return _Escape(f"{name}({tokens.text(at + 2)})", {at + 1, at + 2, at + 3}, set())
    closing = find_closing(words, at + 3) if words[at + 3] == "(" else None
    if words[at + 1] != "FN" or closing is None or closing + 1 >= last or words[closing + 1] != "}":
        return None
    is_extract = words[at + 2] == "EXTRACT" and words[at + 5] == "FROM"
    return _Escape(name, {at + 1, at + 2, closing + 1}, {at + 5} if is_extract else set())


def _read_parse(tokens: Tokens, at: int) -> tuple[set[int], dict[int, str]]:
    """Return the indexes of USING culture in the call of PARSE that begins here, and the texts for other tokens.

    A number may have commas, an amount of money a sign and parentheses.

    Raises:
        TsqlError: 40515 a culture other than en-US, 10761 a type other than numbers and dates.
    """
    words, closing = tokens.words, find_closing(tokens.words, at + 1)
    as_ = max((index for index in range(at, closing or at) if words[index] == "AS"), default=0)
    if closing is None or not as_:
        raise syntax_error(tokens.text(at), tokens.line(at))
    has_culture = words[closing - 2] == "USING"
    sql_type = parse_type(tokens.source[tokens.starts[as_ + 1] : tokens.ends[closing - (3 if has_culture else 1)]])
    if sql_type.name not in NUMBERS | DATES or sql_type.name == "bit":
        raise TsqlError(10761, f"Invalid data type {sql_type} in function {words[at]}.", severity=15)
    changed: dict[int, str] = {}
    if sql_type.name in NUMBERS:
        changed = {at + 1: f"({CALL_PREFIX}parsed_{'money' if sql_type.name in MONEY else 'number'}(", as_: ") AS"}
    culture = tokens.text(closing - 1) if has_culture else "''"
    if words[at] == "PARSE":
        changed[closing] = f"), {culture})"
    if not has_culture:
        return set(), changed
    if tokens.kinds[closing - 1] != STRING or string_value(culture).lower() not in ("", "en", "en-us"):
        raise unsupported(
            f"{words[at]} USING {culture[:40]}", "Write numbers and dates in the format of en-US.", tokens.line(at)
        )
    return {closing - 2, closing - 1}, changed


def _literal(name: str) -> str:
    return "'" + unquote(name).replace("'", "''") + "'"


def _is_tablesample(words: list[str], at: int) -> bool:
    return words[at - 3 : at - 1] == ["TABLESAMPLE", "("] or words[at - 4 : at - 1] == ["TABLESAMPLE", "SYSTEM", "("]


def _name_end(tokens: Tokens, at: int, last: int) -> int:
    """Return the index after a name of several parts."""
    at += 1
    while at + 1 < last and tokens.words[at] == ".":
        at += 2
    return at


def _table_end(tokens: Tokens, at: int, last: int) -> int:
    """Return the index after a table with alias and hints, 0 for a function or query."""
    words, kinds = tokens.words, tokens.kinds
    while at < last and (words[at] == "." or (kinds[at] in (WORD, QUOTED, VARIABLE) and words[at] not in RESERVED)):
        at += 1
        if words[at] != "." != words[at - 1]:
            break
    else:
        return 0
    is_old = opens_hints(words, at)
    if at < last and words[at] == "(" and not is_old:
        return 0
    if not is_old:
        at += words[at] == "AS"
        is_name = at < last and kinds[at] in (WORD, QUOTED)
        at += is_name and not (kinds[at] == WORD and words[at] in RESERVED | NOT_ALIASES)
    if opens_hints(words, at):
        alias = _alias_after(tokens, at, last)
        return alias.stop if alias else (find_closing(words, at) or at) + 1
    if words[at : at + 2] == ["WITH", "("]:
        return (find_closing(words, at + 1) or at + 1) + 1
    return at


def _is_in_json_array(words: list[str], at: int) -> bool:
    """Check whether the enclosing parentheses are those of JSON_ARRAY."""
    depth = 0
    while at > 0 and depth >= 0:
        at -= 1
        depth += (words[at] == ")") - (words[at] == "(")
    return words[at - 1] == "JSON_ARRAY"


def _lacks_operand(word: str, words: list[str], at: int, piece: Slice) -> bool:
    """Check for a comma or keyword without the operand that it needs."""
    if word not in _NEEDS_OPERAND:
        return False
    after = words[at + 1] if at + 1 < piece.last else ""
    if word == "EXISTS":
        return after != "("
    if after in _AFTER_OPERAND or (word != "," and after == ","):
        return True
    return word == "," and at > piece.first and words[at - 1] in _BEFORE_VALUES


def _alias_after(tokens: Tokens, at: int, last: int) -> range:
    """Return the indexes of the alias after the hints that open here. An alias may also precede the hints."""
    begin = (find_closing(tokens.words, at) or at) + 1
    end = begin + (tokens.words[begin] == "AS")
    is_name = end < last and tokens.kinds[end] in (WORD, QUOTED)
    if not is_name or (tokens.kinds[end] == WORD and tokens.words[end] in RESERVED | NOT_ALIASES):
        return range(0)
    return range(begin, end + 1)


def _is_function(words: list[str], at: int, piece: Slice) -> bool:
    if at + 1 >= piece.last or words[at + 1] != "(" or opens_hints(words, at + 1):
        return False
    if at > piece.first and words[at - 1] in _BEFORE_SOURCES and words[at] not in _TABLES_OF_SQLGLOT:
        return True
    if words[at] not in CALLS:
        return False
    closing = find_closing(words, at + 1)
    if closing is not None and words[closing + 1 : closing + 3] == ["AS", "("]:  # a common table expression
        return False
    before = words[max(at - 2, piece.first) : at]
    is_type = words[at] in ("CHAR", "NCHAR") and before[:1] in (["CONVERT"], ["TRY_CONVERT"]) and before[1:] == ["("]
    return not is_type and before[-1:] not in ([name] for name in _BEFORE_NAMES)


def _is_value(words: list[str], at: int, piece: Slice) -> bool:
    before = words[at - 1] if at > piece.first else ""
    after = words[at + 1] if at + 1 < piece.last else ""
    return after not in ("(", ".") and before not in ("AS", ".")


def missing_part(tree: exp.Expression) -> str | None:
    """Return the name of the first incomplete node of a tree, or None for a complete tree."""
    for node in tree.walk():
        if not isinstance(node, exp.Expression) or any(node.error_messages()):
            return type(node).__name__.upper()
        has_all = _REQUIRED_PARTS.get(type(node))
        if has_all is not None and not has_all(node):
            return node.name or type(node).__name__.upper()
    return None


def _requires_any(*names: str) -> Callable[[Any], bool]:
    return lambda node: any(node.args.get(name) for name in names)


def _is_number(node: Any) -> bool:
    """Check a literal. sqlglot joins digits on both sides of a lone dot into a literal with two dots."""
    return bool(node.is_string) or node.this.count(".") < 2


_REQUIRED_PARTS: dict[type[exp.Expression], Callable[[Any], bool]] = {
    exp.Literal: _is_number,
    exp.GroupConcat: _requires_any("separator"),
    exp.In: _requires_any("expressions", "query"),
}
