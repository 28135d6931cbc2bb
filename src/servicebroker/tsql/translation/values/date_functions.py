"""Functions that take a part of a date, and the current time."""

from __future__ import annotations

import functools
from collections.abc import Callable

from sqlglot import exp

from servicebroker.tsql.date_texts import US_ENGLISH
from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    quote_string,
    session_value_sql,
    typed_text,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.casts import cast_value, own_clock
from servicebroker.tsql.translation.values.functions import SPECIAL, check_count, write_argument
from servicebroker.tsql.types import BIGINT, DATETIME, DATETIME2, INT, NVARCHAR, SqlType

DATETIMEOFFSET = SqlType("datetimeoffset", None, None, 7)

_A_DATETIME = Sql("", DATETIME)

_DATE_PARTS = {
    **dict.fromkeys(("year", "yy", "yyyy"), "year"),
    **dict.fromkeys(("quarter", "qq", "q"), "quarter"),
    **dict.fromkeys(("month", "mm", "m"), "month"),
    **dict.fromkeys(("dayofyear", "dy", "y"), "dayofyear"),
    **dict.fromkeys(("day", "dd", "d"), "day"),
    **dict.fromkeys(("week", "wk", "ww"), "week"),
    **dict.fromkeys(("iso_week", "isowk", "isoww"), "iso_week"),
    **dict.fromkeys(("weekday", "dw", "w"), "weekday"),
    **dict.fromkeys(("hour", "hh"), "hour"),
    **dict.fromkeys(("minute", "mi", "n"), "minute"),
    **dict.fromkeys(("second", "ss", "s"), "second"),
    **dict.fromkeys(("millisecond", "ms"), "millisecond"),
    **dict.fromkeys(("microsecond", "mcs"), "microsecond"),
    **dict.fromkeys(("nanosecond", "ns"), "nanosecond"),
}


def _date_part(node: exp.Expression, function: str) -> str:
    written = node.name.lower()
    if written not in _DATE_PARTS:
        raise TsqlError(155, f"'{written}' is not a recognized {function} option.", severity=15)
    return quote_string(_DATE_PARTS[written])


_TIME_PARTS = frozenset({"hour", "minute", "second", "millisecond", "microsecond", "nanosecond"})


def _check_part(node: exp.Expression, moment: Sql, function: str) -> None:
    """Check that a date has the part: a date has no hours, a time no days.

    Raises:
        TsqlError: 9810 the type has no such part.
    """
    name = moment.type.name if moment.type is not None else ""
    part = _DATE_PARTS.get(node.name.lower(), "")
    if part and (name == "date" if part in _TIME_PARTS else name == "time"):
        raise TsqlError(9810, f"The datepart {part} is not supported by date function {function} for data type {name}.")


def _dateadd(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "dateadd")
    part = _date_part(nodes[0], "dateadd")
    number, moment = write_value(writer, nodes[1]), write_value(writer, nodes[2])
    _check_part(nodes[0], moment, "dateadd")
    number_text = write_argument(number, "i") if number.type != BIGINT else number.text
    text = f"tsql.dateadd({part}, {number_text}, {write_argument(moment, 'd')})"
    return _cast_to_argument_type(text, moment if moment.kind == "date" else _A_DATETIME)


def _datediff(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "datediff")
    first, second = (_write_instant(writer, node) for node in nodes[1:])
    return Sql(f"tsql.datediff_fits(tsql.datediff({_date_part(nodes[0], 'datediff')}, {first}, {second}))", INT)


def _datediff_big(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "datediff_big")
    first, second = (_write_instant(writer, node) for node in nodes[1:])
    return Sql(f"tsql.datediff({_date_part(nodes[0], 'datediff_big')}, {first}, {second})", BIGINT)


def _write_instant(writer: Writer, node: exp.Expression) -> str:
    """Write an argument of DATEDIFF, which counts boundaries in UTC, whatever the offsets are."""
    return write_argument(write_value(writer, node)._replace(offset=None), "d")


def _datepart(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "datepart")
    moment = write_value(writer, nodes[1])
    if nodes[0].name.lower() in _OFFSET_PARTS:
        return Sql(_write_offset(moment, "datepart"), INT)
    _check_part(nodes[0], moment, "datepart")
    by_week = _write_by_first_day(writer, nodes[0], write_argument(moment, "d"))
    return Sql(by_week or f"tsql.datepart({_date_part(nodes[0], 'datepart')}, {write_argument(moment, 'd')})", INT)


def _write_by_first_day(writer: Writer, part: exp.Expression, moment: str) -> str:
    """Write the weekday or week of a date where a week does not begin on Sunday, "" for other parts and weeks."""
    name = _DATE_PARTS.get(part.name.lower())
    if name not in ("weekday", "week"):
        return ""
    writer.scope_answers["date first", ""] = writer.scope.date_first
    first = session_value_sql(writer.scope, "@@datefirst") if writer.is_body() else str(writer.scope.date_first)
    if first == str(US_ENGLISH.first):
        return ""
    if name == "weekday":
        return f"((tsql.datepart('weekday', {moment}) + 6 - {first}) % 7 + 1)"
    days_before = f"(tsql.datepart('weekday', date_trunc('year', {_to_timestamp(moment)})) + 6 - {first}) % 7"
    return f"((tsql.datepart('dayofyear', {moment}) + {days_before} - 1) / 7 + 1)"


def _datename(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "datename")
    moment = write_value(writer, nodes[1])
    if nodes[0].name.lower() in _OFFSET_PARTS:
        return Sql(f"tsql.offset_text({_write_offset(moment, 'datename')})", NVARCHAR)
    _check_part(nodes[0], moment, "datename")
    if _DATE_PARTS.get(nodes[0].name.lower()) == "week":
        by_week = _write_by_first_day(writer, nodes[0], write_argument(moment, "d"))
        if by_week:
            return Sql(f"{by_week}::text", NVARCHAR)
    return Sql(f"tsql.datename({_date_part(nodes[0], 'datename')}, {write_argument(moment, 'd')})", NVARCHAR)


_OFFSET_PARTS = ("tzoffset", "tz")
_TYPES_WITHOUT_OFFSET = ("date", "time", "datetime", "smalldatetime")


def _write_offset(moment: Sql, function: str) -> str:
    """Write the offset of a date in minutes: 0 for a datetime2.

    Raises:
        TsqlError: 9810 the type has none.
    """
    if moment.type is not None and moment.type.name in _TYPES_WITHOUT_OFFSET:
        raise TsqlError(
            9810,
            f"The datepart tzoffset is not supported by date function {function} for data type {moment.type.name}.",
        )
    if moment.type is None or moment.kind == "string":
        moment = cast_value(moment, DATETIMEOFFSET)
    return f"(CASE WHEN {typed_text(moment)} IS NOT NULL THEN {moment.offset() if moment.offset else 0} END)"


def _datetrunc(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "datetrunc")
    moment = write_value(writer, nodes[1])
    _check_part(nodes[0], moment, "datetrunc")
    text = f"tsql.datetrunc({_date_part(nodes[0], 'datetrunc')}, {write_argument(moment, 'd')})"
    return _cast_to_argument_type(text, moment)


def _date_bucket(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if not 3 <= len(nodes) <= 4:
        raise argument_count_error("date_bucket", 3, 4)
    moment = write_value(writer, nodes[2])
    origin = write_argument(write_value(writer, nodes[3]), "d") if len(nodes) == 4 else "timestamp '1900-01-01'"
    width = write_argument(write_value(writer, nodes[1]), "i")
    arguments = f"{width}, {_to_timestamp(write_argument(moment, 'd'))}, {_to_timestamp(origin)}"
    return _cast_to_argument_type(f"tsql.date_bucket({_date_part(nodes[0], 'date_bucket')}, {arguments})", moment)


def _to_timestamp(text: str) -> str:
    return f"tsql.to_datetime2({text})"


def _cast_to_argument_type(text: str, moment: Sql) -> Sql:
    """Cast a timestamp to the type of the date argument. For a string argument it is a datetime2."""
    sql_type = moment.type if moment.kind == "date" else DATETIME2
    assert sql_type is not None
    if sql_type.name == "datetimeoffset":
        return _at_offset(text, moment.offset, sql_type)
    cast = {"date": "::date", "time": "::time"}.get(sql_type.name, "")
    return Sql(f"({text}{cast})", sql_type)


def _at_offset(clock: str, offset: Callable[[], str] | None, sql_type: SqlType) -> Sql:
    """Write the datetimeoffset whose clock shows a timestamp."""
    return Sql(f"tsql.at_offset({clock}, {offset() if offset else 0})", sql_type, offset=offset)


_DATE_PART_FUNCTIONS = {
    "datetrunc": _datetrunc,
    "date_bucket": _date_bucket,
    "dateadd": _dateadd,
    "datediff": _datediff,
    "datediff_big": _datediff_big,
    "datepart": _datepart,
    "datename": _datename,
}
SPECIAL |= _DATE_PART_FUNCTIONS


def is_date_part(node: exp.Column) -> bool:
    """Check whether a column node is the name of a date part, as in DATEDIFF(day, ...)."""
    call = node.parent
    if not isinstance(call, exp.Anonymous) or call.name.lower().removeprefix(CALL_PREFIX) not in _DATE_PART_FUNCTIONS:
        return False
    return call.expressions[0] is node


@writes_value(exp.CurrentTimestamp)
def _current_timestamp(writer: Writer, node: exp.CurrentTimestamp) -> Sql:
    return Sql("tsql.now()::timestamp(3)", DATETIME)


@writes_value(exp.AtTimeZone)
def _at_time_zone(writer: Writer, node: exp.AtTimeZone) -> Sql:
    """Write AT TIME ZONE: the instant of a datetimeoffset with the offset of a zone, or a clock read in the zone."""
    moment = write_value(writer, node.this)
    zone = f"tsql.zone_named({write_argument(write_value(writer, node.args['zone']), 's')})"
    if moment.type is not None and (moment.kind != "date" or moment.type.name in ("date", "time")):
        raise TsqlError(
            8116, f"Argument data type {moment.type.name} is invalid for argument 1 of AT TIME ZONE function."
        )
    if moment.type is not None and moment.type.name == "datetimeoffset":
        instant, sql_type = moment.text, moment.type
    else:
        instant = f"tsql.in_zone({_to_timestamp(write_argument(moment, 'd'))}, {zone})"
        sql_type = SqlType("datetimeoffset", None, None, _scale_of(moment))
    return Sql(instant, sql_type, offset=functools.partial("tsql.offset_in_zone({}, {})".format, instant, zone))


def _switchoffset(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "switchoffset")
    moment = write_value(writer, nodes[0])
    sql_type = moment.type if moment.type is not None and moment.type.name == "datetimeoffset" else DATETIMEOFFSET
    minutes = _write_minutes(write_value(writer, nodes[1]), "switchoffset")
    instant = cast_value(moment, sql_type).text
    # strict, so that an offset that is wrong or NULL is noticed
    return Sql(f"tsql.with_minutes({instant}, {minutes})", sql_type, offset=lambda: minutes)


def _todatetimeoffset(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "todatetimeoffset")
    clock = own_clock(write_value(writer, nodes[0]))
    minutes = _write_minutes(write_value(writer, nodes[1]), "todatetimeoffset")
    text = cast_value(clock, DATETIME2).text
    return _at_offset(text, lambda: minutes, SqlType("datetimeoffset", None, None, _scale_of(clock)))


def _scale_of(moment: Sql) -> int:
    """Return the scale of a datetimeoffset that is made of a date and time: that of its type."""
    if moment.type is None or moment.kind != "date":
        return 7
    return {"datetime": 3, "smalldatetime": 0}.get(
        moment.type.name, 7 if moment.type.scale is None else moment.type.scale
    )


def _write_minutes(value: Sql, caller: str) -> str:
    """Write an offset, given in minutes or as '+hh:mm', in minutes."""
    text = write_argument(value, "i" if value.kind == "number" else "s")
    return f"tsql.offset_minutes({text}, '{caller}')"


def _datetimeoffset_from_parts(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 10, "datetimeoffsetfromparts")
    parts = [write_argument(write_value(writer, node), "i") for node in nodes]
    is_constant = isinstance(nodes[9], exp.Literal) and nodes[9].name.isdigit() and int(nodes[9].name) <= 7
    sql_type = SqlType("datetimeoffset", None, None, int(nodes[9].name) if is_constant else 7)
    text = f"tsql.datetimeoffset_of_parts({', '.join(parts)})"
    return Sql(text, sql_type, offset=lambda: f"({parts[7]} * 60 + {parts[8]})")


SPECIAL |= {
    "switchoffset": _switchoffset,
    "todatetimeoffset": _todatetimeoffset,
    "datetimeoffsetfromparts": _datetimeoffset_from_parts,
}
