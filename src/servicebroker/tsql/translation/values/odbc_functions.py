"""ODBC's escapes in braces: {fn UCASE(...)}, {d '2020-01-01'}, written as the functions of T-SQL that do the same."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX, ODBC_PREFIX
from servicebroker.tsql.translation.text_writer import Sql, Writer, write_value
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.translation.values.functions import SPECIAL, check_count
from servicebroker.tsql.types import DATETIME, UNIQUEIDENTIFIER, parse_type

_Nodes = list[exp.Expression]
_Special = Callable[[Writer, _Nodes], Sql]

# names of ODBC for functions of T-SQL with the same arguments
_RENAMED = {
    "atan2": "atn2",
    "character_length": "len",
    "char_length": "len",
    "database": "db_name",
    "dayofmonth": "day",
    "ifnull": "isnull",
    "insert": "stuff",
    "lcase": "lower",
    "length": "len",
    "locate": "charindex",
    "now": "getdate",
    "current_timestamp": "getdate",
    "octet_length": "datalength",
    "repeat": "replicate",
    "ucase": "upper",
    "user": "user_name",
}
_SAME_NAMES = (
    *("abs", "acos", "asin", "atan", "ceiling", "cos", "cot", "degrees", "exp", "floor", "log", "log10", "pi", "power"),
    *("radians", "rand", "round", "sign", "sin", "sqrt", "tan", "ascii", "char", "difference", "left", "ltrim"),
    *("replace", "right", "rtrim", "soundex", "space", "substring", "month", "year"),
)
_PARTS = {
    "dayofweek": "weekday",
    "dayofyear": "dayofyear",
    "hour": "hour",
    "minute": "minute",
    "quarter": "quarter",
    "second": "second",
    "week": "week",
}
_NAMED_PARTS = {"dayname": "weekday", "monthname": "month"}
_INTERVAL_PREFIX = "SQL_TSI_"
_TYPES = {
    "sql_bigint": "bigint",
    "sql_binary": "binary(30)",
    "sql_bit": "bit",
    "sql_char": "char(30)",
    "sql_date": "datetime",
    "sql_decimal": "decimal(18, 0)",
    "sql_double": "float",
    "sql_float": "float",
    "sql_guid": "uniqueidentifier",
    "sql_integer": "int",
    "sql_longvarchar": "varchar(max)",
    "sql_numeric": "decimal(18, 0)",
    "sql_real": "real",
    "sql_smallint": "smallint",
    "sql_time": "datetime",
    "sql_timestamp": "datetime",
    "sql_tinyint": "tinyint",
    "sql_type_date": "datetime",
    "sql_type_time": "datetime",
    "sql_type_timestamp": "datetime",
    "sql_varbinary": "varbinary(30)",
    "sql_varchar": "varchar(30)",
    "sql_wchar": "nchar(30)",
    "sql_wvarchar": "nvarchar(30)",
}


def _call(name: str, *nodes: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=CALL_PREFIX + name, expressions=list(nodes))


def _calling(name: str) -> _Special:
    return lambda writer, nodes: write_value(writer, _call(name, *nodes))


def _taking(function: str, part: str, name: str) -> _Special:
    def write(writer: Writer, nodes: _Nodes) -> Sql:
        check_count(nodes, 1, name)
        return write_value(writer, _call(function, exp.column(part), nodes[0]))

    return write


def _moving(function: str, name: str) -> _Special:
    """Return a writer of TIMESTAMPADD or TIMESTAMPDIFF, whose first argument is SQL_TSI_DAY or the like."""

    def write(writer: Writer, nodes: _Nodes) -> Sql:
        check_count(nodes, 3, name)
        unit = nodes[0].name.upper()
        part = unit.removeprefix(_INTERVAL_PREFIX)
        if part == unit:
            raise TsqlError(155, f"'{nodes[0].name}' is not a recognized {name} option.", severity=15)
        part = "nanosecond" if part == "FRAC_SECOND" else part
        return write_value(writer, _call(function, exp.column(part.lower()), *nodes[1:]))

    return write


def _concat(writer: Writer, nodes: _Nodes) -> Sql:
    """Write CONCAT, which is NULL if an argument is, unlike that of T-SQL."""
    check_count(nodes, 2, "concat")
    return write_value(writer, exp.Add(this=nodes[0], expression=nodes[1]))


def _mod(writer: Writer, nodes: _Nodes) -> Sql:
    check_count(nodes, 2, "mod")
    return write_value(writer, exp.Mod(this=nodes[0], expression=nodes[1]))


def _truncate(writer: Writer, nodes: _Nodes) -> Sql:
    check_count(nodes, 2, "truncate")
    return write_value(writer, _call("round", *nodes, exp.Literal.number(1)))


def _bit_length(writer: Writer, nodes: _Nodes) -> Sql:
    check_count(nodes, 1, "bit_length")
    return write_value(writer, exp.Mul(this=_call("datalength", nodes[0]), expression=exp.Literal.number(8)))


def _extract(writer: Writer, nodes: _Nodes) -> Sql:
    check_count(nodes, 2, "extract")
    return write_value(writer, _call("datepart", *nodes))


def _current_date(writer: Writer, nodes: _Nodes) -> Sql:
    check_count(nodes, 0, "current_date")
    return Sql("tsql.to_varchar(tsql.now(), 23)", parse_type("varchar(10)"))


def _current_time(writer: Writer, nodes: _Nodes) -> Sql:
    """Write CURTIME or CURRENT_TIME, which takes a number of digits of the second."""
    digits = int(nodes[0].name) if len(nodes) == 1 and nodes[0].name.isdigit() else 0
    return Sql(f"tsql.scaled_text(tsql.now()::time, {min(digits, 7)})", parse_type("varchar(16)"))


def _convert(writer: Writer, nodes: _Nodes) -> Sql:
    check_count(nodes, 2, "convert")
    name = _TYPES.get(nodes[1].name.lower())
    if name is None:
        raise TsqlError(243, f"Type {nodes[1].name} is not a defined system type.")
    return cast_value(write_value(writer, nodes[0]), parse_type(name))


def _datetime(writer: Writer, nodes: _Nodes) -> Sql:
    return cast_value(write_value(writer, nodes[0]), DATETIME)


def _time(writer: Writer, nodes: _Nodes) -> Sql:
    """Write {t '10:00:00'}: that time of today."""
    time = cast_value(write_value(writer, nodes[0]), parse_type("time(3)")).text
    return Sql(f"(tsql.now()::date + {time})::timestamp(3)", DATETIME)


def _guid(writer: Writer, nodes: _Nodes) -> Sql:
    return cast_value(write_value(writer, nodes[0]), UNIQUEIDENTIFIER)


_ODBC: dict[str, _Special] = {
    **{name: _calling(name) for name in _SAME_NAMES},
    **{name: _calling(same) for name, same in _RENAMED.items()},
    **{name: _taking("datepart", part, name) for name, part in _PARTS.items()},
    **{name: _taking("datename", part, name) for name, part in _NAMED_PARTS.items()},
    "bit_length": _bit_length,
    "concat": _concat,
    "convert": _convert,
    "curdate": _current_date,
    "current_date": _current_date,
    "current_time": _current_time,
    "curtime": _current_time,
    "extract": _extract,
    "mod": _mod,
    "timestampadd": _moving("dateadd", "timestampadd"),
    "timestampdiff": _moving("datediff", "timestampdiff"),
    "truncate": _truncate,
    "d": _datetime,
    "ts": _datetime,
    "t": _time,
    "guid": _guid,
}
SPECIAL |= {f"{ODBC_PREFIX}{name}": write for name, write in _ODBC.items()}
