"""Expressions that Python evaluates in place of PostgreSQL: their values, and which are left to PostgreSQL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from servicebroker.tsql.interpreter.simple_expressions import NotSimple, Value, compile_expression
from servicebroker.tsql.types import parse_type

LEFT = "left to PostgreSQL"
VARIABLES: dict[str, tuple[str, Any]] = {
    "@i": ("int", 5),
    "@t": ("tinyint", 200),
    "@small": ("smallint", 32767),
    "@big": ("bigint", 2**40),
    "@most": ("int", 2**31 - 1),
    "@null": ("int", None),
    "@s": ("varchar(5)", "ab "),
    "@empty": ("nvarchar(5)", None),
    "@c": ("char(5)", "ab   "),
    "@bit": ("bit", 1),
    "@id": ("uniqueidentifier", UUID(int=5)),
    "@f": ("float", 1.5),
    "@b": ("varbinary(4)", b"\x01\x02"),
    "@name": ("sysname", "Ab"),
    "@d": ("date", None),
}
TYPES = {name: parse_type(kind) for name, (kind, _) in VARIABLES.items()}


def evaluated(text: str, *, ignores_case: bool = False) -> Any:
    """Return value and type of an expression, or `LEFT`."""
    frame = SimpleNamespace(value_of=lambda name: VARIABLES[name][1], types=TYPES)
    compiled = compile_expression(text)
    if compiled is None:
        return LEFT
    try:
        found: Value = compiled(SimpleNamespace(frame=frame, ignores_case=ignores_case))  # type: ignore[arg-type]
    except NotSimple:
        return LEFT
    return found.value, None if found.type is None else str(found.type)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", (7, "int")),
        ("(1 + 2) * 3", (9, "int")),
        ("7 - 2 - 1", (4, "int")),
        ("-5 + 5", (0, "int")),
        ("@t + 1", (201, "int")),
        ("@t + @t", LEFT),  # an overflow of tinyint
        ("@small + @small", LEFT),
        ("@t + @small", LEFT),
        ("@small + 1", (32768, "int")),
        ("@most + 0", (2**31 - 1, "int")),
        ("@most + 1", LEFT),
        ("@big + 1", LEFT),
        ("2147483648", LEFT),
        ("5 / 2", LEFT),
        ("5 % 2", LEFT),
        ("1.5 + 1", LEFT),
        ("@null + 1", (None, "int")),
        ("@t * @null", (None, "int")),
        ("@f + 1", LEFT),
        ("- @i", LEFT),
        ("'a' + N'b'", ("ab", "nvarchar(2)")),
        ("@s + 'c'", ("ab c", "varchar(6)")),
        ("@empty + 'c'", (None, "nvarchar(6)")),
        ("@c + 'c'", LEFT),
        ("'a' + 1", LEFT),
        ("NULL + 1", LEFT),
    ],
)
def test_sums_and_texts(text: str, expected: Any) -> None:
    assert evaluated(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@i = 5", True),
        ("@i <> 5", False),
        ("@i != 4", True),
        ("@i < 5", False),
        ("@i <= 5", True),
        ("@i > 5", False),
        ("@i >= 5", True),
        ("@null = 1", None),
        ("@null <> 1", None),
        ("NULL = NULL", None),
        ("@i = NULL", None),
        ("@null IS NULL", True),
        ("@null IS NOT NULL", False),
        ("@i IS NULL", False),
        ("@i IS NOT NULL", True),
        ("@s = 'ab'", True),
        ("@s = @c", True),
        ("@s = ' ab'", False),
        ("@s = 'AB'", False),
        ("@s <> 'cd'", True),
        ("@s < 'b'", True),
        ("@s = N'é'", False),
        ("@s = @i", LEFT),
        ("@bit = 1", True),
        ("@id = @id", True),
        ("@f = 1", LEFT),
        ("@b = 0x0102", LEFT),
        ("@d = NULL", LEFT),
        ("@s = @empty", None),
        ("@i = 5 AND @i = 6", False),
        ("@i = 5 AND @null = 1", None),
        ("@i = 6 AND @null = 1", False),
        ("@i = 5 OR @null = 1", True),
        ("@i = 6 OR @null = 1", None),
        ("@i = 6 OR @i = 7", False),
        ("NOT @i = 5", False),
        ("NOT @null = 1", None),
        ("NOT NOT @i = 5", True),
        ("@i = 6 OR @i = 5 AND @i = 4", False),
        ("(@i = 6 OR @i = 5) AND @i = 5", True),
        ("NOT @i = 6 AND @i = 5", True),
        ("@i AND @i = 5", LEFT),
        ("@i = 5 OR @f = 1", LEFT),
    ],
)
def test_conditions_have_three_values(text: str, expected: Any) -> None:
    assert evaluated(text) == (LEFT if expected is LEFT else (expected, None))


@pytest.mark.parametrize(
    ("text", "with_case", "without_case"),
    [
        ("@s = 'ab'", True, True),
        ("'a' = 'b'", False, False),
        ("'A' = 'a'", False, LEFT),
        ("'é' = 'e'", False, LEFT),
        ("'a' < 'b'", True, LEFT),
        ("@name = 'Ab'", True, True),
        ("@name = 'cd'", False, False),
        ("@name = 'aB'", LEFT, LEFT),
    ],
)
def test_case_is_left_to_postgresql_where_it_does_not_count(text: str, with_case: Any, without_case: Any) -> None:
    found = [evaluated(text, ignores_case=ignores_case) for ignores_case in (False, True)]
    assert [one if one is LEFT else one[0] for one in found] == [with_case, without_case]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CAST(@i AS varchar(9))", ("5", "varchar(9)")),
        ("CONVERT(nvarchar(9), @i)", ("5", "nvarchar(9)")),
        ("CAST('12' AS int)", (12, "int")),
        ("CAST('x' AS int)", LEFT),
        ("CAST(@i AS tinyint)", (5, "tinyint")),
        ("CAST(300 AS tinyint)", LEFT),
        ("CAST(@f AS int)", LEFT),
        ("CAST(@i AS decimal(5,2))", LEFT),
        ("CAST(NULL AS int)", (None, "int")),
        ("CAST(@b AS nvarchar(9))", ("\u0201", "nvarchar(9)")),
        ("CAST('ab' AS varbinary(1))", (b"a", "varbinary(1)")),
        ("CAST(@i AS varbinary(4))", LEFT),
        ("CAST(@id AS nvarchar(36))", (str(UUID(int=5)), "nvarchar(36)")),
        ("CAST(@s AS varchar)", ("ab ", "varchar(30)")),
        ("0x0102", (b"\x01\x02", "varbinary(2)")),
        ("N''", ("", "nvarchar(1)")),
        ("'It''s'", ("It's", "varchar(4)")),
        ("LEN(@s)", LEFT),
        ("(SELECT 1)", LEFT),
        ("1 2", LEFT),
        ("", LEFT),
        ("@i.value", LEFT),
        ("@b", (b"\x01\x02", "varbinary(4)")),
        ("1 " + "+ 1 " * 250, LEFT),
    ],
)
def test_constants_and_conversions(text: str, expected: Any) -> None:
    assert evaluated(text) == expected
