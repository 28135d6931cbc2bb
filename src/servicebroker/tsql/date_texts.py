"""Dates and times written as text, and the session's settings for them.

SET DATEFORMAT decides what 03/04/2024 means, SET DATEFIRST which day begins a week. SET LANGUAGE sets both.
tsql.moment_of in `store/tsql/conversions.sql` reads the same texts in PostgreSQL.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import NamedTuple


class DateSettings(NamedTuple):
    """The settings of a session: the order of day, month and year, and the first day of the week, 1 for Monday."""

    order: str = "mdy"
    first: int = 7
    language: str = "us_english"


US_ENGLISH = DateSettings()
_EUROPEAN = (
    "Deutsch German|Français French|Dansk Danish|Español Spanish|Italiano Italian|Nederlands Dutch|Norsk Norwegian|"
    "Suomi Finnish|čeština Czech|polski Polish|română Romanian|slovenčina Slovak|slovenski Slovenian|ελληνικά Greek|"
    "български Bulgarian|русский Russian|Türkçe Turkish|eesti Estonian|Arabic Arabic"
)
_BY_LANGUAGE = {
    "us_english": US_ENGLISH,
    "english": US_ENGLISH,
    "british": DateSettings("dmy", 1, "British"),
    "british english": DateSettings("dmy", 1, "British"),
    **{
        name.lower(): DateSettings("dmy", 1, pair.split()[0]) for pair in _EUROPEAN.split("|") for name in pair.split()
    },
    **{
        name.lower(): DateSettings(order, first, names[0])
        for order, first, *names in (
            ("ymd", 7, "日本語", "Japanese"), ("dmy", 7, "Português", "Portuguese"), ("ymd", 1, "Svenska", "Swedish"),
            ("ymd", 1, "magyar", "Hungarian"), ("ymd", 1, "hrvatski", "Croatian"), ("ymd", 1, "latviešu", "Latvian"),
            ("ymd", 1, "lietuvių", "Lithuanian"), ("dmy", 7, "Português (Brasil)", "Brazilian"),
            ("ymd", 7, "繁體中文", "Traditional Chinese"), ("ymd", 7, "한국어", "Korean"),
            ("ymd", 7, "简体中文", "Simplified Chinese"), ("dmy", 7, "ไทย", "Thai"),
        )
        for name in names
    },
}  # fmt: skip
ORDERS = ("mdy", "dmy", "ymd", "ydm", "myd", "dym")

# the session's date order, for conversions on assignment, which get no session
DATE_ORDER: ContextVar[str] = ContextVar("date_order", default="mdy")

_ZERO = datetime(1900, 1, 1)  # the date of a text without one
_LAST_YEAR_OF_TWO_DIGITS = 2049
_MONTH_NAMES = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTHS = tuple(name[:3] for name in _MONTH_NAMES)
_TIME = re.compile(
    r"(?:^|(?<=\d)T|\s+)(\d{1,2})(?:(?::(\d{1,2})(?::(\d{1,2})(?:[.:](\d{1,9}))?)?)?\s*([AP]M)|"
    r":(\d{1,2})(?::(\d{1,2})(?:[.:](\d{1,9}))?)?)$",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"(\d{1,4})\s*([-/.])\s*(\d{1,2})\s*\2\s*(\d{1,4})")
_DIGITS = re.compile(r"\d{4}|\d{6}|\d{8}")
_WORD = re.compile(r"\d{1,4}|[A-Za-z]{3,9}")


def settings_of_language(name: str) -> DateSettings | None:
    """Return the settings of a language by its name or alias, None if it is unknown."""
    return _BY_LANGUAGE.get(name.lower())


def parse_date_text(text: str, *, is_legacy: bool) -> datetime:
    """Return the date and time in a text without an offset.

    `is_legacy`: for datetime and smalldatetime, where DATEFORMAT decides between month and day in 2024-02-03 too.

    Raises:
        ValueError: the text has no date and no time, or one that does not exist.
    """
    if not text:
        return _ZERO
    match = _TIME.search(text)
    day = text if match is None else text[: match.start()].strip()
    has_t = match is not None and match[0][:1] in "Tt"
    date = _parse_day(day, is_legacy=is_legacy and not has_t) if day else _ZERO
    return date if match is None else date + _parse_time(match)


def _parse_time(match: re.Match[str]) -> timedelta:
    hour, is_after_noon = int(match[1]), (match[5] or "").upper() == "PM"
    minute, second, fraction = match.group(2, 3, 4) if match[5] else match.group(6, 7, 8)
    if match[5] and not 0 <= hour <= 12:
        raise ValueError(match[0])
    if match[5]:
        hour = hour % 12 + 12 * is_after_noon
    microsecond = int((fraction or "0").ljust(6, "0")[:6])
    if fraction and ":" in match[0].rpartition(fraction)[0][-1:]:  # milliseconds
        microsecond = int(fraction) * 1000
    clock = datetime(1900, 1, 1, hour, int(minute or 0), int(second or 0), microsecond)
    return clock - _ZERO


def _parse_day(text: str, *, is_legacy: bool) -> datetime:
    if _DIGITS.fullmatch(text):
        year = int(text[:-4]) if len(text) > 4 else int(text)
        month, day = (int(text[-4:-2]), int(text[-2:])) if len(text) > 4 else (1, 1)
        return datetime(_whole_year(year, len(text) - 4 if len(text) > 4 else 4), month, day)
    numbers = _NUMBERS.fullmatch(text)
    if numbers is not None:
        return _parse_numeric_date(numbers[1], numbers[3], numbers[4], is_legacy=is_legacy)
    return _parse_month_name_date(text)


def _parse_numeric_date(*written: str, is_legacy: bool) -> datetime:
    """Return the date of three numbers. A year of four digits may come first or last, whatever the order."""
    order = DATE_ORDER.get()
    day_first = order.index("d") < order.index("m")
    if len(written[0]) > 2:
        order = "ydm" if day_first and is_legacy else "ymd"
    elif len(written[2]) > 2:
        order = "dmy" if day_first else "mdy"
    parts = dict(zip(order, written, strict=True))
    if len(parts["m"]) > 2 or len(parts["d"]) > 2:
        raise ValueError(written)
    return datetime(_whole_year(int(parts["y"]), len(parts["y"])), int(parts["m"]), int(parts["d"]))


def _parse_month_name_date(text: str) -> datetime:
    """Return the date of a text with the name of a month: Feb 3, 2024; 3 February 2024; 03-Feb-2024; 2024 Feb."""
    words = re.split(r"[\s,/.-]+", text.strip(" ,"))
    if not 2 <= len(words) <= 3 or not all(_WORD.fullmatch(word) for word in words):
        raise ValueError(text)
    names = [word.lower() for word in words if word.isalpha()]
    numbers = [word for word in words if not word.isalpha()]
    if len(names) != 1 or not (names[0] in _MONTHS or names[0] in _MONTH_NAMES):
        raise ValueError(text)
    month = _MONTHS.index(names[0][:3]) + 1
    years = [number for number in numbers if len(number) == 4]
    if len(numbers) == 1 and years:
        return datetime(int(years[0]), month, 1)
    if len(numbers) != 2 or len(years) > 1:
        raise ValueError(text)
    day = next(number for number in numbers if number not in years)
    year = years[0] if years else numbers[1]
    return datetime(_whole_year(int(year), len(year)), month, int(day))


def _whole_year(year: int, digits: int) -> int:
    """Return a year of two digits in its century: 49 is 2049, 50 is 1950."""
    if digits > 2:
        return year
    return year + (2000 if year <= _LAST_YEAR_OF_TWO_DIGITS - 2000 else 1900)
