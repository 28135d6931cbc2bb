"""Functions of T-SQL at the boundaries of their arguments, beside the same functions in Python."""

from __future__ import annotations

import calendar
import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from itertools import pairwise, product
from typing import Any

import pytest

import servicebroker as sb

# the ends of a year, a leap day, and Sundays and Mondays around the ends of weeks
MOMENTS = [
    datetime(1899, 12, 30, 23, 59, 59, 999_999),
    datetime(1899, 12, 31),
    datetime(1900, 1, 1),
    datetime(2000, 2, 29, 12, 30, 15, 123_456),
    datetime(2020, 12, 27, 0, 0, 0, 1),
    datetime(2021, 1, 3, 6, 7, 8, 9_999),
    datetime(2021, 1, 4),
    datetime(2023, 12, 31, 23, 59, 59, 999_999),
    datetime(2024, 1, 1),
    datetime(2024, 3, 31, 1, 1, 1, 1_000),
]
MONTHS = {"month": 1, "quarter": 3, "year": 12}
UNITS = {
    **{"week": timedelta(weeks=1), "day": timedelta(days=1), "hour": timedelta(hours=1)},
    **{"minute": timedelta(minutes=1), "second": timedelta(seconds=1), "millisecond": timedelta(milliseconds=1)},
}
DAYS = ("day", "dayofyear", "weekday")
SUNDAY = datetime(1899, 12, 31)


def months_of(moment: datetime) -> int:
    return moment.year * 12 + moment.month - 1


def plus_months(moment: datetime, months: int) -> datetime:
    year, month = divmod(months_of(moment) + months, 12)
    return moment.replace(year=year, month=month + 1, day=min(moment.day, calendar.monthrange(year, month + 1)[1]))


def date_part(part: str, moment: datetime) -> int:
    first_weekday = moment.replace(month=1, day=1).isoweekday() % 7
    day_of_year = moment.timetuple().tm_yday
    return {
        "year": moment.year,
        "quarter": (moment.month + 2) // 3,
        "month": moment.month,
        "dayofyear": day_of_year,
        "day": moment.day,
        "week": (day_of_year + first_weekday - 1) // 7 + 1,
        "iso_week": moment.isocalendar().week,
        "weekday": moment.isoweekday() % 7 + 1,
        "hour": moment.hour,
        "minute": moment.minute,
        "second": moment.second,
        "millisecond": moment.microsecond // 1000,
        "microsecond": moment.microsecond,
        "nanosecond": moment.microsecond * 1000,
    }[part]


PARTS = (
    *("year", "quarter", "month", "dayofyear", "day", "week", "iso_week", "weekday", "hour", "minute", "second"),
    *("millisecond", "microsecond", "nanosecond"),
)


def date_name(part: str, moment: datetime) -> str:
    names = {"month": calendar.month_name[moment.month], "weekday": calendar.day_name[moment.weekday()]}
    return names.get(part) or str(date_part(part, moment))


def date_add(part: str, number: int, moment: datetime) -> datetime:
    if part in MONTHS:
        return plus_months(moment, number * MONTHS[part])
    small = {"microsecond": timedelta(microseconds=1), "nanosecond": timedelta(microseconds=1) / 1000}
    if part == "nanosecond":
        return moment + timedelta(microseconds=number // 1000)
    return moment + number * (UNITS | small | dict.fromkeys(DAYS, timedelta(days=1)))[part]


def date_trunc(part: str, moment: datetime) -> datetime:
    if part in MONTHS:
        start = months_of(moment) // MONTHS[part] * MONTHS[part]
        return datetime(start // 12, start % 12 + 1, 1)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if part in ("week", "iso_week"):
        return day - timedelta(days=moment.isoweekday() % 7 if part == "week" else moment.weekday())
    if part in ("day", "dayofyear"):
        return day
    unit = timedelta(microseconds=1) if part == "microsecond" else UNITS[part]
    return day + (moment - day) // unit * unit


def date_diff(part: str, first: datetime, last: datetime) -> int:
    if part in MONTHS:
        return months_of(last) // MONTHS[part] - months_of(first) // MONTHS[part]
    unit = UNITS.get(part, timedelta(days=1))
    if part in ("microsecond", "nanosecond"):
        return (last - first) // timedelta(microseconds=1) * (1 if part == "microsecond" else 1000)
    return (last - SUNDAY) // unit - (first - SUNDAY) // unit


def date_bucket(part: str, width: int, moment: datetime, origin: datetime) -> datetime:
    if part not in MONTHS:
        return origin + (moment - origin) // (width * UNITS[part]) * (width * UNITS[part])
    count = (months_of(moment) - months_of(origin)) // (width * MONTHS[part]) + 1
    while plus_months(origin, count * width * MONTHS[part]) > moment:
        count -= 1
    return plus_months(origin, count * width * MONTHS[part])


DateFunction = Callable[[datetime, datetime], Any]
ORIGIN = datetime(1999, 12, 31, 12)


def date_calls() -> Iterator[tuple[str, DateFunction]]:
    """Yield expressions of the columns m, a moment, and n, the next one, with their function in Python."""
    for part in PARTS:
        yield f"DATEPART({part}, m)", lambda m, n, part=part: date_part(part, m)
        yield f"DATENAME({part}, m)", lambda m, n, part=part: date_name(part, m)
        if part not in ("weekday", "nanosecond"):
            yield f"DATETRUNC({part}, m)", lambda m, n, part=part: date_trunc(part, m)
        if part == "iso_week":
            continue
        yield f"DATEDIFF_BIG({part}, m, n)", lambda m, n, part=part: date_diff(part, m, n)
        yield f"DATEDIFF_BIG({part}, n, m)", lambda m, n, part=part: date_diff(part, n, m)
        for number in (-13_000, 25_000) if part == "nanosecond" else (-13, 25):
            yield (
                f"DATEADD({part}, {number}, m)",
                lambda m, n, part=part, number=number: date_add(part, number, m),
            )
    for part, width in product((*MONTHS, *UNITS), (1, 5)):
        yield (
            f"DATE_BUCKET({part}, {width}, m)",
            lambda m, n, part=part, width=width: date_bucket(part, width, m, datetime(1900, 1, 1)),
        )
        yield (
            f"DATE_BUCKET({part}, {width}, m, CAST('{ORIGIN.isoformat()}' AS datetime2))",
            lambda m, n, part=part, width=width: date_bucket(part, width, m, ORIGIN),
        )
    for months in (-13, 0, 2):
        yield (
            f"EOMONTH(m, {months})",
            lambda m, n, months=months: (plus_months(m.replace(day=1), months + 1) - timedelta(days=1)).date(),
        )


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return instance.database("FunctionValues", create=True)


def test_date_functions_agree_with_python_for_every_date_part(shop: sb.Database) -> None:
    calls = list(date_calls())
    rows = [*pairwise(MOMENTS), (MOMENTS[-1], MOMENTS[0])]
    values = ", ".join(f"('{m.isoformat()}', '{n.isoformat()}')" for m, n in rows)
    text = (
        f"WITH t AS (SELECT CAST(a AS datetime2) AS m, CAST(b AS datetime2) AS n FROM (VALUES {values}) v (a, b)) "
        f"SELECT m, n, {', '.join(call for call, _ in calls)} FROM t"
    )
    wrong = {}
    for m, n, *found in shop.execute_tsql(text).rows:
        for (call, function), value in zip(calls, found, strict=True):
            if value != (expected := function(m, n)):
                wrong[call, m, n] = (value, expected)
    assert wrong == {}


# ---------------------------------------------------------------- strings

TEXTS = ("", "b", "abcb", "a.b.c", "ab c ")
PLACES = (-1, 0, 1, 2, 4, 5, 9)


def utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def substring(text: str, start: int, length: int) -> str:
    return "".join(sign for index, sign in enumerate(text, 1) if start <= index < start + length)


def stuff(text: str, start: int, length: int) -> str | None:
    if not 1 <= start <= len(text) or length < 0:
        return None
    return text[: start - 1] + "XY" + text[start - 1 + length :]


def parse_name(text: str, part: int) -> str | None:
    names = text.split(".")
    return names[-part] or None if 1 <= part <= len(names) <= 4 else None


def string_calls() -> Iterator[tuple[str, Any]]:
    """Yield expressions and the values that SQL Server documents."""
    for text, place in product(TEXTS, PLACES):
        yield f"CHARINDEX('b', '{text}', {place})", text.find("b", max(place - 1, 0)) + 1
        yield f"REPLICATE('{text}', {place})", text * place if place >= 0 else None
        yield f"STUFF('{text}', {place}, 1, 'XY')", stuff(text, place, 1)
        yield f"STUFF('{text}', 1, {place}, 'XY')", stuff(text, 1, place)
        yield f"SPACE({place})", " " * place if place >= 0 else None
        for length in (0, 1, 3):
            yield f"SUBSTRING('{text}', {place}, {length})", substring(text, place, length)
        if place >= 0:
            yield f"LEFT('{text}', {place})", text[:place]
            yield f"RIGHT('{text}', {place})", text[max(len(text) - place, 0) :] if place else ""
    for text in (*TEXTS, "a\U0001f600", "\U0001f600\U0001f600b"):
        yield f"DATALENGTH(N'{text}')", 2 * utf16_units(text)
        yield f"REVERSE(N'{text}')", text[::-1]
    for text in TEXTS:
        yield f"LEN('{text}')", len(text.rstrip(" "))
    for text, part in product(("a", "a.b", "a.b.c", "a.b.c.d", "a.b.c.d.e", "a..c", ""), (-1, 0, 1, 2, 3, 4, 5)):
        yield f"PARSENAME('{text}', {part})", parse_name(text, part)
    for length in (0, 1, 127, 128, 129):
        yield f"QUOTENAME(REPLICATE('x', {length}))", None if length > 128 else f"[{'x' * length}]"
    for sign, start, end in (("(", "(", ")"), (">", "<", ">"), ("}", "{", "}"), ('"', '"', '"'), ("`", "`", "`")):
        yield f"QUOTENAME('a{end}b', '{sign}')", f"{start}a{end}{end}b{end}"
    yield "QUOTENAME('a', 'x')", None
    for name, code in {"Ashcraft": "A261", "Ashcroft": "A261", "Tymczak": "T522", "Pfister": "P236", "Honeyman": "H555",
                       "Robert": "R163", "Rubin": "R150", "a": "A000", "": "0000", "1": "0000"}.items():  # fmt: skip
        yield f"SOUNDEX('{name}')", code
    for number, length, digits, text in (
        (3.147, 5, 2, " 3.15"), (3.147, 4, 2, "3.15"), (3.147, 3, 2, "3.1"), (3.147, 2, 2, " 3"), (123.4, 2, 1, "**"),
        (-1.5, 5, 1, " -1.5"), (0.4, 3, 0, "  0"), (1e6, 10, 0, "   1000000"),
    ):  # fmt: skip
        yield f"STR({number}, {length}, {digits})", text
    for pattern, values, text in (
        ("%d|%5d|%-5d|%05d|%+d", (7,) * 5, "7|    7|7    |00007|+7"),
        ("%d|%5d|%-5d|%05d|%+d", (-7,) * 5, "-7|   -7|-7   |-0007|-7"),
        ("%x %X %o %%", (255, 255, 8), "ff FF 10 %"),
        ("%s|%5s|%-5s|%.2s", ("'abc'",) * 4, "abc|  abc|abc  |ab"),
        ("%s %d", ("'a'",), "a (null)"),
    ):
        yield f"FORMATMESSAGE('{pattern}', {', '.join(map(str, values))})", text
    for text in ("1", "-1", "+1", "1.5", ".5", "5.", "1e5", "1E-5", "$1", "-$1", "1,000", "+", "-", ".", "$"):
        yield f"ISNUMERIC('{text}')", 1
    for text in ("", " ", "a", "1a", "1 2", "1..2", "e5", "0x1"):
        yield f"ISNUMERIC('{text}')", 0


def number_calls() -> Iterator[tuple[str, Any]]:
    """Yield expressions of numbers and their values."""
    for number, digits, cuts in product(("1255.5055", "-1255.5055", "0.0000"), range(-5, 6), (0, 1)):
        unit = Decimal(1).scaleb(-min(digits, 4))
        how = ROUND_DOWN if cuts else ROUND_HALF_UP
        yield f"ROUND({number}, {digits}, {cuts})", (Decimal(number) / unit).quantize(Decimal(1), how) * unit
    for number, sign in (("2.5", 1), ("0.0", 0), ("-2.5", -1)):
        yield f"SIGN({number})", sign
        yield f"CEILING({number})", math.ceil(Decimal(number))
        yield f"FLOOR({number})", math.floor(Decimal(number))
        yield f"ABS({number})", abs(Decimal(number))
        yield f"SQUARE({number})", float(number) ** 2
    yield "LOG(8, 2)", pytest.approx(3.0)
    yield "LOG10(1000)", pytest.approx(3.0)
    yield "POWER(2, -1)", 0
    yield "POWER(2.0, -1)", Decimal("0.5")
    yield "POWER(CAST(2 AS float), -1)", 0.5
    yield "ATN2(1, -1)", pytest.approx(3 * math.pi / 4)
    for place in (0, 1, 7, 31):
        yield f"GET_BIT(-2, {place})", int(place > 0)
        yield f"SET_BIT(0, {place})", -(2**31) if place == 31 else 2**place
        yield f"RIGHT_SHIFT(-1, {place})", (2**32 - 1) >> place if place else -1
    for number in range(4):
        yield f"CHOOSE({number}, 'a', 'b')", {1: "a", 2: "b"}.get(number)
    for code in (-1, 0, 1, 65, 127, 128, 255, 256):
        yield f"CHAR({code})", bytes([code]).decode("cp1252", "replace") if code in (1, 65, 127, 128, 255) else (
            "\0" if code == 0 else None
        )  # fmt: skip


def test_string_and_number_functions_return_their_values_at_boundaries(shop: sb.Database) -> None:
    calls = dict([*string_calls(), *number_calls()])
    names, wrong = list(calls), {}
    for start in range(0, len(names), 500):
        some = names[start : start + 500]
        (row,) = shop.execute_tsql("SELECT " + ",\n".join(some)).rows
        wrong |= {call: (found, calls[call]) for call, found in zip(some, row, strict=True) if found != calls[call]}
    assert wrong == {}


# the least and the largest arguments, and those that are one too many
LIMITS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "DATEFROMPARTS": ((1, 1, 1), (9999, 12, 31), (10000, 13, 32)),
    "TIMEFROMPARTS": ((0, 0, 0, 0), (23, 59, 59, 9_999_999), (24, 60, 60, 10_000_000)),
    "SMALLDATETIMEFROMPARTS": ((1900, 1, 1, 0, 0), (2078, 12, 31, 23, 59), (10000, 13, 32, 24, 60)),
    "DATETIMEFROMPARTS": ((1753, 1, 1, 0, 0, 0, 0), (9999, 12, 31, 23, 59, 59, 996), (10000, 13, 32, 24, 60, 60, 1000)),
    "DATETIME2FROMPARTS": ((1, 1, 1, 0, 0, 0, 0), (9999, 12, 31, 23, 59, 59, 999), (10000, 13, 32, 24, 60, 60, 1000)),
}
DIGITS = {"TIMEFROMPARTS": ", 7", "DATETIME2FROMPARTS": ", 3"}


def test_parts_of_dates_are_refused_beyond_their_limits(shop: sb.Database) -> None:
    texts: dict[str, bool] = {}

    def add(name: str, arguments: tuple[int, ...], *, is_valid: bool) -> None:
        texts[f"{name}({', '.join(map(str, arguments))}{DIGITS.get(name, '')})"] = is_valid

    for name, (least, most, beyond) in LIMITS.items():
        add(name, least, is_valid=True)
        add(name, most, is_valid=True)
        for index in range(len(most)):
            add(name, (*most[:index], beyond[index], *most[index + 1 :]), is_valid=False)
            if least[index] < 2:
                add(name, (*least[:index], least[index] - 1, *least[index + 1 :]), is_valid=False)
    script = "".join(
        f"BEGIN TRY SELECT '{text}', CASE WHEN {text} IS NULL THEN 0 ELSE 1 END END TRY "
        f"BEGIN CATCH SELECT '{text}', ERROR_NUMBER() END CATCH\n"
        for text in texts
    )
    results = [result.rows for result in shop.execute_tsql(script).sets if result.rows]
    found = dict(row for rows in results for row in rows)
    wrong = {text: found.get(text) for text, is_valid in texts.items() if found.get(text) != (1 if is_valid else 289)}
    assert wrong == {}
