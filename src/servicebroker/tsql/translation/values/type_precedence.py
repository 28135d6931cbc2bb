"""Type precedence: the type of an operation on values of several types.

Numbers win over strings, wide types over narrow ones.
"""

from __future__ import annotations

from servicebroker.tsql.translation.text_writer import Sql, typed_text
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import BINARIES, INT, NATIONAL, NVARCHAR, STRINGS, VARCHAR, VARIANT, SqlType

_NUMBER_ORDER = ("bit", "tinyint", "smallint", "int", "bigint", "smallmoney", "money", "decimal", "real", "float")
_EXACT_NUMBERS = _NUMBER_ORDER[:8]


def wider_type(left: SqlType | None, right: SqlType | None) -> SqlType | None:
    """Return the wider one of two number types; other types must be equal. None if they differ, or one is unknown.

    A decimal result has 38 digits, a bit becomes an int.
    """
    if left is None or right is None:
        return None
    if left.name not in _NUMBER_ORDER or right.name not in _NUMBER_ORDER:
        return left if left == right else None
    widest = max(left, right, key=lambda sql_type: _NUMBER_ORDER.index(sql_type.name))
    if widest.name == "decimal":
        scale = max(left.scale or 0, right.scale or 0, 4 if "money" in left.name + right.name else 0)
        return SqlType("decimal", None, 38, scale)
    return INT if widest.name == "bit" else widest


def arithmetic_type(sign: str, left: Sql, right: Sql) -> SqlType | None:
    """Return the type of +, -, *, / and % of two numbers. Decimals get the digits that the result needs, 38 at most.

    None if a type is unknown. The rules are in "Precision, scale, and length" of the Transact-SQL reference.
    """
    sql_type = wider_type(left.type, right.type)
    if sql_type is None or sql_type.name != "decimal":
        return sql_type
    (p1, s1), (p2, s2) = (_digits(value) for value in (left, right))
    whole, scale = {
        "*": (p1 - s1 + p2 - s2 + 1, s1 + s2),
        "/": (p1 - s1 + s2, max(6, s1 + p2 + 1)),
        "%": (min(p1 - s1, p2 - s2), max(s1, s2)),
    }.get(sign, (max(p1 - s1, p2 - s2) + 1, max(s1, s2)))
    if whole + scale > 38:
        least = min(scale, 6) if sign in "*/" else 0
        scale = max(least, min(scale, 38 - whole))
    return SqlType("decimal", None, min(38, whole + scale), scale)


def concatenated_type(left: SqlType | None, right: SqlType | None) -> SqlType:
    """Return the type of two concatenated strings or binaries. It is MAX if the length may exceed the type's limit."""
    types = [sql_type for sql_type in (left, right) if sql_type is not None]
    if any(sql_type.name in BINARIES for sql_type in types):
        kind, longest = "varbinary", 8000
    elif any(sql_type.name in NATIONAL for sql_type in types):
        kind, longest = "nvarchar", 4000
    else:
        kind, longest = "varchar", 8000
    lengths = [-1 if sql_type.length is None else sql_type.length for sql_type in types]
    total = sum(lengths)
    return SqlType(kind, -1 if min(lengths, default=0) < 0 or total > longest else max(1, total))


_DATE_ORDER = ("date", "smalldatetime", "datetime", "datetime2", "datetimeoffset")


def union_type(left: SqlType | None, right: SqlType | None) -> SqlType | None:
    """Return the type of a column of two combined queries. It has room for the values of both.

    If one type is unknown, return the other.
    """
    if left is None or right is None or left == right:
        return left or right
    for family, wide, national in ((STRINGS, "varchar", "nvarchar"), (BINARIES, "varbinary", "")):
        if left.name in family and right.name in family:
            name = national if NATIONAL & {left.name, right.name} else wide
            lengths = [-1 if sql_type.length is None else sql_type.length for sql_type in (left, right)]
            return SqlType(left.name if left.name == right.name else name, -1 if min(lengths) < 0 else max(lengths))
    if left.name in _DATE_ORDER and right.name in _DATE_ORDER:
        return max(right, left, key=lambda sql_type: (_DATE_ORDER.index(sql_type.name), sql_type.scale or 0))
    return wider_type(left, right) or left


def _digits(value: Sql) -> tuple[int, int]:
    """Return precision and scale of a number as a decimal. A literal has as many digits as are written."""
    sql_type = value.type
    if value.text.isdigit():
        return len(value.text), 0
    if sql_type is None or sql_type.name != "decimal":
        digits = {"bit": 1, "tinyint": 3, "smallint": 5, "int": 10, "bigint": 19, "money": 19, "smallmoney": 10}
        return digits.get(
            sql_type.name if sql_type else "", 19
        ), 4 if sql_type is not None and "money" in sql_type.name else 0
    return sql_type.precision or 38, sql_type.scale or 0


def unify_types(values: list[Sql]) -> tuple[SqlType | None, list[str]]:
    """Convert alternative values, such as the branches of CASE, to the type with the highest precedence.

    Return the type, or None if it is unknown, and the converted texts.
    """
    types = [value.type for value in values if value.type is not None]
    kinds = {value.kind for value in values if value.kind is not None}
    is_known = all(value.type is not None or value.is_untyped for value in values)
    if not kinds:
        return None, [value.text for value in values]
    if VARIANT in types:
        return VARIANT, [cast_value(value, VARIANT).text for value in values]
    if kinds == {"string"}:
        national = any(sql_type.name in NATIONAL for sql_type in types)
        return (NVARCHAR if national else VARCHAR) if is_known else None, [typed_text(value) for value in values]
    others = [sql_type for sql_type in types if sql_type.name not in STRINGS]
    winner: SqlType | None = others[0]
    for sql_type in others[1:]:
        winner = wider_type(winner, sql_type) if winner else None
    if winner is None:
        return None, [value.text for value in values]
    return winner, [_convert_to(value, winner) for value in values]


def _convert_to(value: Sql, to: SqlType) -> str:
    if value.kind == "string":
        return cast_value(value, to).text
    if to.name == "decimal" and to.scale and value.type is not None and value.type.name in _EXACT_NUMBERS:
        return value.text if value.type.scale == to.scale else f"round({value.text}::numeric, {to.scale})"
    return value.text
