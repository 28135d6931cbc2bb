"""Functions that take a part of a date, and the current time."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.tsql.function_table import argument_count_error
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    node_not_supported,
    quote_string,
    write_value,
    writes_value,
)
from servicebroker.tsql.translation.values.functions import SPECIAL, check_count, write_argument
from servicebroker.tsql.types import BIGINT, DATETIME, DATETIME2, INT, NVARCHAR, SqlType

DATETIMEOFFSET = SqlType("datetimeoffset", None, None, 7)

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


def _dateadd(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "dateadd")
    part = _date_part(nodes[0], "dateadd")
    number, moment = write_value(writer, nodes[1]), write_value(writer, nodes[2])
    sql_type = moment.type if moment.kind == "date" else DATETIME
    number_text = write_argument(number, "i") if number.type != BIGINT else number.text
    text = f"tsql.dateadd({part}, {number_text}, {write_argument(moment, 'd')})"
    assert sql_type is not None
    return Sql({"date": f"{text}::date", "time": f"{text}::time"}.get(sql_type.name, text), sql_type)


def _datediff(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "datediff")
    first, second = (write_argument(write_value(writer, node), "d") for node in nodes[1:])
    return Sql(f"tsql.datediff({_date_part(nodes[0], 'datediff')}, {first}, {second})::integer", INT)


def _datediff_big(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 3, "datediff_big")
    first, second = (write_argument(write_value(writer, node), "d") for node in nodes[1:])
    return Sql(f"tsql.datediff({_date_part(nodes[0], 'datediff_big')}, {first}, {second})", BIGINT)


def _datepart(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "datepart")
    return Sql(
        f"tsql.datepart({_date_part(nodes[0], 'datepart')}, {write_argument(write_value(writer, nodes[1]), 'd')})", INT
    )


def _datename(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "datename")
    text = f"tsql.datename({_date_part(nodes[0], 'datename')}, {write_argument(write_value(writer, nodes[1]), 'd')})"
    return Sql(text, NVARCHAR)


def _datetrunc(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    check_count(nodes, 2, "datetrunc")
    moment = write_value(writer, nodes[1])
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
    cast = {"date": "::date", "time": "::time", "datetimeoffset": " AT TIME ZONE 'UTC'"}.get(sql_type.name, "")
    return Sql(f"({text}{cast})", sql_type)


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
    if not isinstance(node.args["zone"], exp.Literal) or node.args["zone"].name.upper() != "UTC":
        raise node_not_supported(node, "All times are UTC; add the difference with DATEADD.")
    moment = write_value(writer, node.this)
    if moment.type is not None and moment.type.name == "datetimeoffset":
        return moment
    return Sql(f"({_to_timestamp(write_argument(moment, 'd'))} AT TIME ZONE 'UTC')", DATETIMEOFFSET)
