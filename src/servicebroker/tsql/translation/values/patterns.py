"""LIKE and PATINDEX: T-SQL's patterns have classes of characters in brackets, which PostgreSQL's LIKE has not."""

from __future__ import annotations

import re

from servicebroker.model.zero_character import ZERO
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import Sql, quote_string
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import NVARCHAR

_LITERAL = re.compile(r"'((?:[^']|'')*)'")


def write_like(value: Sql, pattern: Sql, escape: Sql | None) -> str:
    """The condition that a value is like a pattern, without regard to case where the value is a catalog's name.

    The blanks that fill a char may be matched or not; those of an nchar count.

    Raises:
        TsqlError: 506 for an ESCAPE that is not one character.
    """
    sign = _literal_text(escape) if escape is not None else ""
    if escape is None:
        told = "''"
    elif sign is None:
        told = f"tsql.escape_sign({cast_value(escape, NVARCHAR).text})"
    elif len(sign) == 1:
        told = quote_string(sign)
    else:
        raise TsqlError(506, f'The invalid escape character "{sign}" was specified in a LIKE predicate.')
    text = cast_value(value, NVARCHAR).text
    if value.type is not None and value.type.name == "char" and not (_literal_text(pattern) or "").endswith("%"):
        texts = (Sql(each, NVARCHAR) for each in (text, f"rtrim({text}, ' ')"))
        return f"({' OR '.join(write_like(each, pattern, escape) for each in texts)})"
    folded = value.type is not None and value.type.name == "sysname"
    said = _literal_text(pattern)
    if said is None or sign is None:
        written = f"tsql.like_pattern({cast_value(pattern, NVARCHAR).text}, {told})"
        return f"(lower({text}) ~ lower({written}))" if folded else f"({text} ~ {written})"
    if folded:
        text, said = f"lower({text})", said.lower()
    if "[" not in said and not sign:
        escaped = said.replace("\\", "\\\\")
        return f"({text} LIKE {quote_string(escaped)})"
    return f"({text} ~ {quote_string(pattern_to_regex(said, sign))})"


def _literal_text(value: Sql) -> str | None:
    found = _LITERAL.fullmatch(value.text) if value.is_untyped else None
    return found[1].replace("''", "'") if found else None


def pattern_to_regex(pattern: str, escape: str = "") -> str:
    """The regular expression of a pattern; tsql.like_pattern does the same in PostgreSQL."""
    out, at = ["^"], 0
    while at < len(pattern):
        sign = pattern[at]
        if escape and sign == escape and at + 1 < len(pattern):
            at += 1
            out.append(_escape(pattern[at]))
        elif sign == "%":
            out.append(".*")
        elif sign == "_":
            out.append(".")
        elif sign == "[" and (end := _class_end(pattern, at)) > at:
            out.append(_class_to_regex(pattern[at + 1 : end]))
            at = end
        else:
            out.append(_escape(sign))
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
    """Write ranges that begin or end with U+0000, the lowest character, which `ZERO` is not."""
    members = members.replace(f"{ZERO}-{ZERO}", ZERO)
    members = re.sub(f"{ZERO}-(?=.)", f"{ZERO}\\\\u0001-", members, flags=re.DOTALL)
    return re.sub(rf"(\\.|[^\\])-{ZERO}", "", members, flags=re.DOTALL)


def _escape(sign: str) -> str:
    return "\\" + sign if sign in r"\.+*?()[]{}|^$" else sign
