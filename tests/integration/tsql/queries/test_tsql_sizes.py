"""The size of a target, crossed with the type of what it is given and with the way by which that gets there.

SQL Server's rules: bytes of a number are cut and filled on the left, all other bytes on the right. Text is cut. A
number that is too long for its text becomes * or an error. A decimal is rounded; too many digits before its point are
an error.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

import pytest

import servicebroker as sb

WHOLE_BYTES = {"bit": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
IDENTIFIER = uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
# type, literal, and the same in Python
VALUES: list[tuple[str, str, Any]] = [
    ("bit", "1", 1),
    ("tinyint", "0", 0),
    ("tinyint", "255", 255),
    ("smallint", "-32768", -32768),
    ("smallint", "258", 258),
    ("int", "7", 7),
    ("int", "123456", 123456),
    ("int", "-1", -1),
    ("int", "-2147483648", -(2**31)),
    ("bigint", "9007199254740993", 9007199254740993),
    ("bigint", "-5", -5),
    ("decimal(9,2)", "1234.56", Decimal("1234.56")),
    ("decimal(9,2)", "-0.05", Decimal("-0.05")),
    ("decimal(5,0)", "99999", Decimal(99999)),
    ("money", "1234.5678", Decimal("1234.5678")),
    ("smallmoney", "-3.1", Decimal("-3.1")),
    ("float", "2.5", 2.5),
    ("real", "-1.25", -1.25),
    ("varchar(9)", "'abc'", "abc"),
    ("varchar(9)", "''", ""),
    ("varchar(20)", "'123.456'", "123.456"),
    ("nvarchar(9)", "N'aé€b'", "aé€b"),
    ("char(4)", "'ab'", "ab  "),
    ("nchar(3)", "N'é'", "é  "),
    ("varbinary(5)", "0x0102030405", bytes(range(1, 6))),
    ("varbinary(5)", "0x", b""),
    ("binary(3)", "0xFF00", b"\xff\0\0"),
    ("uniqueidentifier", f"'{IDENTIFIER}'", IDENTIFIER),
    ("date", "'2020-02-03'", date(2020, 2, 3)),
    ("datetime", "'2020-02-03T04:05:06'", datetime(2020, 2, 3, 4, 5, 6)),
    ("datetime2(3)", "'2020-02-03T04:05:06.789'", datetime(2020, 2, 3, 4, 5, 6, 789_000)),
    ("time(0)", "'04:05:06'", time(4, 5, 6)),
]
DATES = ("date", "datetime", "datetime2", "time")
STRINGS = ("char", "nchar", "varchar", "nvarchar")
TARGETS = [
    *(f"{kind}({size})" for kind in ("binary", "varbinary", *STRINGS) for size in (1, 2, 3, 4, 5, 8, 11, 36, 40)),
    *(f"{kind}(max)" for kind in ("varbinary", "varchar", "nvarchar")),
    *(
        f"decimal({precision},{scale})"
        for precision, scale in ((1, 0), (3, 1), (4, 0), (5, 2), (9, 4), (18, 0), (38, 6))
    ),
]
CONVERSIONS = {
    "cast": "DECLARE @t {target} = CAST(@v AS {target}) SELECT @t",
    "convert": "SELECT CONVERT({target}, @v)",
    "query": "SELECT CAST(q.v AS {target}) FROM (SELECT @v AS v) q",
    "try": "SELECT TRY_CAST(@v AS {target})",
    "assigned": "DECLARE @t {target} = @v SELECT @t",
    "set": "DECLARE @t {target} SET @t = @v SELECT @t",
    "selected": "DECLARE @t {target} SELECT @t = q.v FROM (SELECT @v AS v) q SELECT @t",
    "given": "EXEC sp_executesql N'SELECT @p', N'@p {target}', @p = @v",
    "column": "DECLARE @x TABLE (c {target}) INSERT @x VALUES (@v) SELECT c FROM @x",
    "changed": "DECLARE @x TABLE (c {target}) INSERT @x VALUES (NULL) UPDATE @x SET c = @v SELECT c FROM @x",
}
EXPLICIT = ("cast", "convert", "query", "try")
STORED = ("column", "changed")
NOT_ALLOWED = 529  # "Explicit conversion ... is not allowed", by TRY_CAST too
TOO_LONG = (2628, 8152)  # "String or binary data would be truncated", with and without the column


class Kind(NamedTuple):
    """A type: `national` and `fixed` say how a string or binary one is kept; the size is -1 for max."""

    name: str
    size: int
    scale: int

    @property
    def is_fixed(self) -> bool:
        return self.name in ("binary", "char", "nchar")


def kind_of(written: str) -> Kind:
    name, _, sizes = written.rstrip(")").partition("(")
    first, _, second = sizes.partition(",")
    return Kind(name, -1 if first == "max" else int(first or 0), int(second or 0))


def is_number(source: Kind) -> bool:
    return source.name in WHOLE_BYTES or source.name in ("decimal", "money", "smallmoney", "float", "real")


def text_of(source: Kind, value: Any, *, national: bool) -> str:
    if isinstance(value, bytes):
        return (value + b"\0" * (len(value) % 2)).decode("utf-16-le") if national else value.decode("cp1252")
    if isinstance(value, uuid.UUID):
        return str(value).upper()
    if source.name in ("money", "smallmoney"):
        return str(value.quantize(Decimal("0.01"), ROUND_HALF_UP))
    return str(value)


def fitted_text(source: Kind, value: Any, target: Kind) -> Any:
    """The text, or the number of the error."""
    national = target.name.startswith("n")
    text = text_of(source, value, national=national)
    if not national and isinstance(value, str):
        text = text.encode("cp1252", "replace").decode("cp1252")
    if 0 <= target.size < len(text):
        if source.name in ("bit", "tinyint", "smallint", "int"):
            text = "" if national else "*"
            if national:
                return 8115
        elif source.name in ("bigint", "decimal"):
            return 8115
        elif source.name in ("money", "smallmoney"):
            return 234 if source.name == "money" else 292
        elif source.name in ("float", "real"):
            return 232
        elif source.name == "uniqueidentifier":
            return 8170
        text = text[: target.size]
    return text.ljust(target.size) if target.is_fixed else text


def fitted_bytes(source: Kind, value: Any, target: Kind) -> Any:
    """The bytes, or None."""
    if source.name in WHOLE_BYTES:
        size = WHOLE_BYTES[source.name]
        data = value.to_bytes(size, "big", signed=size > 1)
        if target.size < 0:
            return data
        return data[-target.size :].rjust(target.size, b"\0") if target.is_fixed else data[-target.size :]
    if is_number(source):
        return None
    if isinstance(value, str):
        data = value.encode("utf-16-le") if source.name.startswith("n") else value.encode("cp1252")
    else:
        data = value.bytes_le if isinstance(value, uuid.UUID) else value
    if isinstance(value, uuid.UUID) and target.size >= 0:
        return data[-target.size :].rjust(target.size, b"\0") if target.is_fixed else data[-target.size :]
    if target.size < 0:
        return data
    return data[: target.size].ljust(target.size, b"\0") if target.is_fixed else data[: target.size]


def fitted_number(source: Kind, value: Any, target: Kind) -> Any:
    if isinstance(value, bytes | uuid.UUID):
        return None
    try:
        number = Decimal(str(value).strip())
    except ArithmeticError:
        return 8114
    rounded = number.quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP)
    return 8115 if abs(rounded) >= Decimal(10) ** (target.size - target.scale) else rounded


def expected_value(source: Kind, value: Any, target: Kind) -> Any:
    """Return the value of SQL Server. None: this test does not know it, and the ways have to agree."""
    if isinstance(value, date | time):
        return None
    fit = fitted_number if target.name == "decimal" else fitted_bytes if "binary" in target.name else fitted_text
    return fit(source, value, target)


def is_implicit(source: Kind, target: Kind) -> bool:
    """SQL Server converts it without being asked to (else error 257)."""
    if "binary" in target.name:
        return source.name not in (*STRINGS, *DATES, "float", "real")
    if target.name == "decimal":
        return "binary" not in source.name and source.name not in ("uniqueidentifier", *DATES)
    return source.name not in ("money", "smallmoney")


def is_cut(source: Kind, value: Any, target: Kind) -> bool:
    """A column refuses text and bytes that are longer than it, but for blanks."""
    if (
        isinstance(value, date | time)
        or target.size < 0
        or target.name == "decimal"
        or is_number(source)
        or source.name == "uniqueidentifier"
    ):
        return False
    if "binary" in target.name or isinstance(value, bytes):
        return (
            isinstance(value, bytes)
            and len(text_of(source, value, national=target.name.startswith("n")) if target.name in STRINGS else value)
            > target.size
        )
    return isinstance(value, str) and len(value.rstrip()) > target.size


def plain(found: Any) -> Any:
    return bytes(found) if isinstance(found, memoryview | bytearray) else found


def outcomes(db: sb.Database, written: str, literal: str, target: str, ways: list[str]) -> dict[str, Any]:
    """The value by each way: the value itself, or the number of the error."""
    found = {}
    for way in ways:
        script = f"DECLARE @v {written} = {literal} {CONVERSIONS[way].format(target=target)}"
        try:
            found[way] = plain(db.execute_tsql(script).rows[0][0])
        except sb.TsqlError as error:
            found[way] = error.number
    return found


def is_too_small(source: Kind, value: Any, target: Kind) -> bool:
    """The value does not fit into the target as it is."""
    if target.name == "decimal":
        return target.size < 6
    if isinstance(value, date | time):
        return target.size < 3
    if "binary" in target.name:
        return target.size < len(fitted_bytes(source, value, target._replace(size=-1)) or b"1234")
    return target.size < len(text_of(source, value, national=target.name.startswith("n")))


def pairs(rng: random.Random, count: int) -> Iterator[tuple[tuple[str, str, Any], str]]:
    """Of each type and each kind of target one pair that does not fit, and so many others."""
    every = [(value, target) for value in VALUES for target in TARGETS]
    rng.shuffle(every)
    cells: dict[tuple[str, str], tuple[tuple[str, str, Any], str]] = {}
    for value, target_text in every:
        source, target = kind_of(value[0]), kind_of(target_text)
        if target.size > 0 and is_too_small(source, value[2], target):
            family = "whole" if source.name in WHOLE_BYTES else source.name.replace("small", "").lstrip("n")
            cells.setdefault((family, target.name), (value, target_text))
    yield from cells.values()
    yield from every[:count]


@pytest.mark.timeout(0)
def test_every_way_into_a_target_fits_the_value_to_its_size(
    db: sb.Database, seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    wrong = []
    for (written, literal, value), target_text in pairs(seeded_random, request.config.option.tsql_sizes):
        source, target = kind_of(written), kind_of(target_text)
        ways = [way for way in CONVERSIONS if way in EXPLICIT or is_implicit(source, target)]
        found = outcomes(db, written, literal, target_text, ways)
        expected = expected_value(source, value, target)
        for way, outcome in found.items():
            right = found["cast"] if expected is None else expected
            if way == "try" and isinstance(right, int) and right != NOT_ALLOWED:
                right = None
            is_date_as_text = source.name in DATES and target.name in STRINGS and outcome in TOO_LONG
            if way in STORED and (is_cut(source, value, target) or is_date_as_text):
                right = outcome if outcome in TOO_LONG else TOO_LONG
            if way == "try" and expected is None and outcome is None:
                continue  # bytes of a number are read by CAST only
            if outcome != right or type(outcome) is not type(right):
                wrong.append(f"{literal} ({written}) {way} {target_text}: {outcome!r}, not {right!r}")
    assert not wrong, "\n".join(wrong)
