"""LIKE and PATINDEX. T-SQL's patterns have character classes in brackets, which PostgreSQL's LIKE lacks."""

from __future__ import annotations

import re

from servicebroker.model.zero_character import ZERO
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import Sql, Writer, quote_string
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import NVARCHAR, XML

_LITERAL = re.compile(r"'((?:[^']|'')*)'")


def write_like(writer: Writer, value: Sql, pattern: Sql, escape: Sql | None) -> str:
    """Write a LIKE condition.

    Trailing spaces of a char may match the pattern or be ignored; those of an nchar must match.

    Raises:
        TsqlError: 506 ESCAPE is not a single character, 468 the collations differ, 8116 the value is xml.
    """
    if value.type == XML:
        raise TsqlError(8116, "Argument data type xml is invalid for argument 1 of like function.")
    escape_character = _literal_text(escape) if escape is not None else ""
    if escape is None:
        escape_sql = "''"
    elif escape_character is None:
        escape_sql = f"tsql.escape_sign({cast_value(escape, NVARCHAR).text})"
    elif len(escape_character) == 1:
        escape_sql = quote_string(escape_character)
    else:
        raise TsqlError(506, f'The invalid escape character "{escape_character}" was specified in a LIKE predicate.')
    text = cast_value(value, NVARCHAR).text
    # a pattern that ends in % matches the spaces anyway
    if value.type is not None and value.type.name == "char" and not (_literal_text(pattern) or "").endswith("%"):
        texts = (value._replace(text=variant, type=NVARCHAR) for variant in (text, f"rtrim({text}, ' ')"))
        return f"({' OR '.join(write_like(writer, candidate, pattern, escape) for candidate in texts)})"
    ignores_case = writer.ignores_case(value, pattern, operation="like")
    pattern_text = _literal_text(pattern)
    if pattern_text is None or escape_character is None:
        written = f"tsql.like_pattern({cast_value(pattern, NVARCHAR).text}, {escape_sql})"
        return f"(lower({text}) ~ lower({written}))" if ignores_case else f"({text} ~ {written})"
    if ignores_case:
        text, pattern_text = f"lower({text})", pattern_text.lower()
    if "[" not in pattern_text and not escape_character:
        escaped = pattern_text.replace("\\", "\\\\")
        return f"({text} LIKE {quote_string(escaped)})"
    return f"({text} ~ {quote_string(pattern_to_regex(pattern_text, escape_character))})"


def _literal_text(value: Sql) -> str | None:
    match = _LITERAL.fullmatch(value.text) if value.is_untyped else None
    return match[1].replace("''", "'") if match else None


def pattern_to_regex(pattern: str, escape: str = "") -> str:
    """Convert a pattern to a regular expression, as tsql.like_pattern does in PostgreSQL."""
    out, at = ["^"], 0
    while at < len(pattern):
        character = pattern[at]
        if escape and character == escape and at + 1 < len(pattern):
            at += 1
            out.append(_escape(pattern[at]))
        elif character == "%":
            out.append(".*")
        elif character == "_":
            out.append(".")
        elif character == "[" and (end := _class_end(pattern, at)) > at:
            out.append(_class_to_regex(pattern[at + 1 : end]))
            at = end
        else:
            out.append(_escape(character))
        at += 1
    return "".join([*out, "$"])


def _class_end(pattern: str, at: int) -> int:
    start = at + 2 if pattern[at + 1 : at + 2] == "^" else at + 1
    return pattern.find("]", start)


def _class_to_regex(inside: str) -> str:
    negated = inside.startswith("^")
    members = inside[1:] if negated else inside
    escaped = _rewrite_zero_ranges(re.sub(r"([\\\[\]^])", r"\\\1", members))
    if not escaped:
        return "(?!)" if not negated else "."
    return f"[{'^' if negated else ''}{escaped}]"


def _rewrite_zero_ranges(members: str) -> str:
    """Rewrite ranges that begin or end with U+0000. It is the lowest character, but `ZERO`, its substitute, is not."""
    members = members.replace(f"{ZERO}-{ZERO}", ZERO)
    members = re.sub(f"{ZERO}-(?=.)", f"{ZERO}\\\\u0001-", members, flags=re.DOTALL)
    return re.sub(rf"(\\.|[^\\])-{ZERO}", "", members, flags=re.DOTALL)


def _escape(character: str) -> str:
    return "\\" + character if character in r"\.+*?()[]{}|^$" else character
