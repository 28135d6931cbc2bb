"""T-SQL's functions: which function of PostgreSQL or of the schema tsql does the work of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.errors import TsqlError
from servicebroker.tsql.translation.alternatives import alike
from servicebroker.tsql.translation.conversions import converted
from servicebroker.tsql.translation.patterns import expression as pattern_expression
from servicebroker.tsql.translation.reading import MARK
from servicebroker.tsql.translation.writer import (
    Sql,
    Writer,
    as_text,
    closed_text,
    refused,
    string,
    unsupported,
    value_of,
    write_value,
)
from servicebroker.tsql.types import (
    BIGINT,
    DATETIME,
    DATETIME2,
    FLOAT,
    INT,
    NVARCHAR,
    SYSNAME,
    UNIQUEIDENTIFIER,
    VARBINARY,
    VARCHAR,
    SqlType,
)

DATE = SqlType("date")
TIME = SqlType("time", None, None, 7)
SMALLINT = SqlType("smallint")
DECIMAL_38 = SqlType("decimal", None, 38, 0)


class Function(NamedTuple):
    """How a function with plain arguments is written: `text` has {0}, {1}, ... and {all}.

    `takes` has a letter for each argument: s string, n number, i integer, d date, b bytes, a anything, x anything that
    is made to have a type. Letters after a ? may be left out; a last * stands for any number more.
    """

    takes: str
    text: str
    type: SqlType | None = None


def _f(takes: str, text: str, of: SqlType | None = None) -> Function:
    return Function(takes, text, of)


FUNCTIONS: dict[str, Function] = {
    # strings
    "len": _f("s", "length(rtrim({0}, ' '))", INT),
    "datalength": _f("x", "tsql.datalength({0})", INT),
    "substring": _f("xii", "tsql.substring({0}, {1}, {2})"),
    "left": _f("si", "left({0}, tsql.not_negative({1}))"),
    "right": _f("si", "right({0}, tsql.not_negative({1}))"),
    "charindex": _f("ss?i", "tsql.charindex({all})", INT),
    "replace": _f("sss", "tsql.replace({0}, {1}, {2})"),
    "stuff": _f("siis", "tsql.stuff({0}, {1}, {2}, {3})"),
    "replicate": _f("si", "tsql.replicate({0}, {1})"),
    "ltrim": _f("s", "ltrim({0}, ' ')"),
    "rtrim": _f("s", "rtrim({0}, ' ')"),
    "upper": _f("s", "upper({0})"),
    "lower": _f("s", "lower({0})"),
    "reverse": _f("s", "reverse({0})"),
    "space": _f("i", "repeat(' ', {0})", VARCHAR),
    "str": _f("n?ii", "tsql.str({all})", VARCHAR),
    "format": _f("xs", "tsql.format({0}, {1})", NVARCHAR),
    "concat_ws": _f("ss*", "concat_ws({all})", NVARCHAR),
    "quotename": _f("s?s", "tsql.quotename({all})", SqlType("nvarchar", 258)),
    "ascii": _f("s", "ascii(nullif({0}, ''))", INT),
    "unicode": _f("s", "ascii(nullif({0}, ''))", INT),
    "char": _f("i", "tsql.char({0})", SqlType("char", 1)),
    "nchar": _f("i", "tsql.nchar({0})", SqlType("nchar", 1)),
    "translate": _f("sss", "translate({0}, {1}, {2})", NVARCHAR),
    "string_escape": _f("ss", "tsql.string_escape({0}, {1})", NVARCHAR),
    "parsename": _f("si", "tsql.parsename({0}, {1})", SYSNAME),
    "formatmessage": _f("sx*", "tsql.formatmessage({all})", NVARCHAR),
    # times
    "getdate": _f("", "tsql.now()::timestamp(3)", DATETIME),
    "getutcdate": _f("", "tsql.now()::timestamp(3)", DATETIME),
    "sysdatetime": _f("", "tsql.now()", DATETIME2),
    "sysutcdatetime": _f("", "tsql.now()", DATETIME2),
    "sysdatetimeoffset": _f("", "statement_timestamp()", SqlType("datetimeoffset", None, None, 7)),
    "year": _f("d", "date_part('year', {0})::integer", INT),
    "month": _f("d", "date_part('month', {0})::integer", INT),
    "day": _f("d", "date_part('day', {0})::integer", INT),
    "eomonth": _f("d?i", "tsql.eomonth({all})", DATE),
    "datefromparts": _f("iii", "make_date({0}, {1}, {2})", DATE),
    "datetimefromparts": _f(
        "iiiiiii", "make_timestamp({0}, {1}, {2}, {3}, {4}, {5} + {6} / 1000.0)::timestamp(3)", DATETIME
    ),
    "timefromparts": _f("iiiii", "make_time({0}, {1}, {2} + {3} / power(10, {4}))", TIME),
    "isdate": _f("s", "tsql.isdate({0})", INT),
    # numbers
    "abs": _f("n", "abs({0})"),
    "round": _f("ni?i", "tsql.round({all})"),
    "ceiling": _f("n", "ceil({0})"),
    "floor": _f("n", "floor({0})"),
    "power": _f("nn", "tsql.power({0}, {1})"),
    "sqrt": _f("n", "sqrt({0}::float8)", FLOAT),
    "square": _f("n", "power({0}::float8, 2)", FLOAT),
    "exp": _f("n", "exp({0}::float8)", FLOAT),
    "log": _f("n?n", "tsql.log({all})", FLOAT),
    "log10": _f("n", "log({0}::float8)", FLOAT),
    "sign": _f("n", "sign({0})"),
    "pi": _f("", "pi()", FLOAT),
    "sin": _f("n", "sin({0}::float8)", FLOAT),
    "cos": _f("n", "cos({0}::float8)", FLOAT),
    "tan": _f("n", "tan({0}::float8)", FLOAT),
    "atn2": _f("nn", "atan2({0}::float8, {1}::float8)", FLOAT),
    "degrees": _f("n", "degrees({0}::float8)", FLOAT),
    "radians": _f("n", "radians({0}::float8)", FLOAT),
    "rand": _f("?i", "tsql.rand({all})", FLOAT),
    "greatest": _f("aa*", "GREATEST({all})"),
    "least": _f("aa*", "LEAST({all})"),
    "isnumeric": _f("x", "tsql.isnumeric({0})", INT),
    "checksum": _f("x*", "tsql.checksum(concat_ws('|', {all}))", INT),
    "binary_checksum": _f("x*", "tsql.checksum(concat_ws('|', {all}))", INT),
    # identifiers
    "newid": _f("", "gen_random_uuid()", UNIQUEIDENTIFIER),
    "newsequentialid": _f("", "gen_random_uuid()", UNIQUEIDENTIFIER),
    # names and numbers of objects
    "type_id": _f("s", "tsql.type_id({database}, {all})", INT),
    "object_id": _f("s?s", "tsql.object_id({database}, {all})", INT),
    "object_name": _f("i?i", "tsql.object_name({0})", SYSNAME),
    "object_schema_name": _f("i?i", "tsql.object_schema_name({0})", SYSNAME),
    "schema_id": _f("?s", "tsql.schema_id({database}, {all_or_dbo})", INT),
    "schema_name": _f("?i", "tsql.schema_name({database}, {all_or_null})", SYSNAME),
    "type_name": _f("i", "tsql.type_name({0})", SYSNAME),
    "col_length": _f("ss", "tsql.col_length({database}, {0}, {1})", SMALLINT),
    "fulltextserviceproperty": _f("s", "(0 * length({0}))", INT),
    "serverproperty": _f("s", "tsql.serverproperty({0})", NVARCHAR),
    "databasepropertyex": _f("ss", "tsql.databasepropertyex({0}, {1})", NVARCHAR),
    "objectproperty": _f("is", "tsql.objectproperty({0}, {1})", INT),
    "get_transmission_status": _f("a", "tsql.get_transmission_status({0})", SqlType("nvarchar", 4000)),
    "certencoded": _f("i", "tsql.certencoded({0})", VARBINARY),
    "cert_id": _f("s", "tsql.cert_id({database}, {0})", INT),
    "database_principal_id": _f("?s", "tsql.principal_id({database}, {all_or_dbo})", INT),
    "user_id": _f("?s", "tsql.principal_id({database}, {all_or_dbo})", INT),
    # JSON
    "isjson": _f("s", "tsql.isjson({0})", INT),
    "json_value": _f("ss", "tsql.json_value({0}, {1})", SqlType("nvarchar", 4000)),
    "json_query": _f("s?s", "tsql.json_query({all})", NVARCHAR),
    "no_bytes": _f("", "'\\x'::bytea", VARBINARY),
}

# what only the session knows: the name under which Scope.functions has it, and its type
SESSION: dict[str, SqlType] = {
    "@@rowcount": INT,
    "@@error": INT,
    "@@trancount": INT,
    "@@spid": SMALLINT,
    "@@procid": INT,
    "@@nestlevel": INT,
    "@@identity": DECIMAL_38,
    "@@fetch_status": INT,
    "@@servername": NVARCHAR,
    "@@servicename": NVARCHAR,
    "@@version": NVARCHAR,
    "@@language": NVARCHAR,
    "@@options": INT,
    "@@datefirst": SqlType("tinyint"),
    "@@max_precision": SqlType("tinyint"),
    "@@cpu_busy": INT,
    "@@dbts": VARBINARY,
    "scope_identity": DECIMAL_38,
    "xact_state": SMALLINT,
    "error_number": INT,
    "error_message": SqlType("nvarchar", 4000),
    "error_severity": INT,
    "error_state": INT,
    "error_line": INT,
    "error_procedure": SYSNAME,
    "db_id": SMALLINT,
    "db_name": SYSNAME,
    "suser_name": SYSNAME,
    "suser_sname": SYSNAME,
    "suser_id": INT,
    "original_login": SYSNAME,
    "user_name": SYSNAME,
    "current_user": SYSNAME,
    "session_user": SYSNAME,
    "system_user": SYSNAME,
    "user": SYSNAME,
    "app_name": SqlType("nvarchar", 128),
    "host_name": SqlType("nvarchar", 128),
    "eventdata": SqlType("xml"),
    "trigger_nestlevel": INT,
    "context_info": VARBINARY,
}
_WITH_ARGUMENT = {
    "db_id": _f("s", "tsql.db_id({0})", SMALLINT),
    "db_name": _f("i", "tsql.db_name({0})", SYSNAME),
    "user_name": _f("i", "tsql.user_name({database}, {0})", SYSNAME),
}
# the result has the type of the first argument
_LIKE_FIRST = frozenset(
    [
        "left",
        "right",
        "replace",
        "stuff",
        "replicate",
        "ltrim",
        "rtrim",
        "upper",
        "lower",
        "reverse",
        "abs",
        "round",
        "ceiling",
        "floor",
        "power",
        "sign",
        "substring",
        "greatest",
        "least",
    ]
)


@value_of(exp.Anonymous)
def _call(writer: Writer, node: exp.Anonymous) -> Sql:
    written = str(node.this)
    name = written.lower().removeprefix(MARK)
    special = SPECIAL.get(name)
    if special is not None:
        return special(writer, list(node.expressions))
    if name in SESSION and not node.expressions:
        return _session_value(writer, name)
    function = _WITH_ARGUMENT.get(name) or FUNCTIONS.get(name)
    if function is None:
        raise TsqlError(195, f"'{written.removeprefix(MARK)[:60]}' is not a recognized built-in function name.")
    return _written(writer, name, function, list(node.expressions))


def _session_value(writer: Writer, name: str) -> Sql:
    known = name in writer.scope.functions
    writer.used["function", name] = known
    if not known:
        raise refused(name.upper())
    return Sql(writer.parameter(name, SESSION[name]), SESSION[name])


def _written(writer: Writer, name: str, function: Function, nodes: list[exp.Expression]) -> Sql:
    wanted = _letters(function.takes, len(nodes), name)
    values = [write_value(writer, node) for node in nodes]
    texts = [_argument(value, letter) for value, letter in zip(values, wanted, strict=True)]
    every = ", ".join(texts)
    text = function.text.format(
        *texts,
        all=every,
        all_or_dbo=every or "'dbo'",
        all_or_null=every or "NULL",
        database=string(writer.scope.database),
    )
    of = function.type
    if of is None and name in _LIKE_FIRST and values:
        of = _result_type(name, values[0].type)
    return Sql(text, of)


def _result_type(name: str, of: SqlType | None) -> SqlType | None:
    if of is None or of.name == "xml":
        return None
    if of.name in ("varchar", "char", "text"):
        return VARCHAR
    if of.name in ("nvarchar", "nchar", "ntext", "sysname"):
        return NVARCHAR
    if name in ("ceiling", "floor") and of.name in ("decimal", "money"):
        return DECIMAL_38
    if name in ("round", "power") and of.name in ("tinyint", "smallint"):
        return INT
    return VARBINARY if of.name in ("binary", "varbinary") else of


def _letters(takes: str, given: int, name: str) -> str:
    least = takes.split("?")[0].rstrip("*")
    most = takes.replace("?", "")
    if most.endswith("*"):
        most = most[:-1] + most[-2] * max(0, given - len(most) + 1)
        least = least[:-1] if takes.endswith("*") and "?" not in takes else least
    if not len(least) <= given <= len(most):
        bounds = f"{len(least)} to {len(most)} arguments" if len(least) != len(most) else f"{len(least)} argument(s)"
        raise TsqlError(
            189 if bounds.count("to") else 174, f"The {name.lower()} function requires {bounds}.", severity=15
        )
    return most[:given]


def _argument(value: Sql, letter: str) -> str:
    """An argument as the function takes it."""
    if value.is_open and value.type is None:
        return {
            "s": "NULL::text",
            "i": "NULL::integer",
            "d": "NULL::timestamp",
            "b": "NULL::bytea",
            "x": "NULL::text",
        }.get(letter, "NULL")
    if letter == "s":
        return as_text(value) if value.kind == "string" else f"tsql.to_nvarchar({value.text})"
    if letter == "i" and value.kind != "number":
        return f"tsql.to_int({closed_text(value)})"
    if letter == "i" and value.type is not None and value.type.name != "int":
        return f"{value.text}::integer"
    if letter == "n" and value.kind == "string":
        return f"tsql.to_float({closed_text(value)})"
    if letter == "d" and value.kind != "date":
        return f"tsql.to_datetime({closed_text(value)})"
    return closed_text(value)


# --- functions whose arguments are not plain values ---

_PARTS = {
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


def _part(node: exp.Expression, function: str) -> str:
    written = node.name.lower()
    if written not in _PARTS:
        raise TsqlError(155, f"'{written}' is not a recognized {function} option.", severity=15)
    return string(_PARTS[written])


def _count(nodes: list[exp.Expression], number: int, name: str) -> None:
    if len(nodes) != number:
        raise TsqlError(174, f"The {name} function requires {number} argument(s).", severity=15)


def _dateadd(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 3, "dateadd")
    part = _part(nodes[0], "dateadd")
    number, moment = write_value(writer, nodes[1]), write_value(writer, nodes[2])
    of = moment.type if moment.kind == "date" else DATETIME
    number_text = _argument(number, "i") if number.type != BIGINT else number.text
    text = f"tsql.dateadd({part}, {number_text}, {_argument(moment, 'd')})"
    assert of is not None
    return Sql({"date": f"{text}::date", "time": f"{text}::time"}.get(of.name, text), of)


def _datediff(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 3, "datediff")
    first, second = (_argument(write_value(writer, node), "d") for node in nodes[1:])
    return Sql(f"tsql.datediff({_part(nodes[0], 'datediff')}, {first}, {second})::integer", INT)


def _datediff_big(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 3, "datediff_big")
    first, second = (_argument(write_value(writer, node), "d") for node in nodes[1:])
    return Sql(f"tsql.datediff({_part(nodes[0], 'datediff_big')}, {first}, {second})", BIGINT)


def _datepart(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 2, "datepart")
    return Sql(f"tsql.datepart({_part(nodes[0], 'datepart')}, {_argument(write_value(writer, nodes[1]), 'd')})", INT)


def _datename(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 2, "datename")
    text = f"tsql.datename({_part(nodes[0], 'datename')}, {_argument(write_value(writer, nodes[1]), 'd')})"
    return Sql(text, NVARCHAR)


def _isnull(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 2, "isnull")
    first, second = (write_value(writer, node) for node in nodes)
    if first.type is not None and second.type is not None and first.type != second.type:
        second = converted(second, first.type._replace(length=-1) if first.is_open else first.type)
    return Sql(f"COALESCE({closed_text(first)}, {closed_text(second)})", first.type or second.type)


def _choose(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) < 2:
        raise TsqlError(189, "The choose function requires 2 to 255 arguments.", severity=15)
    index = _argument(write_value(writer, nodes[0]), "i")
    kind, texts = alike([write_value(writer, node) for node in nodes[1:]])
    branches = " ".join(f"WHEN {number} THEN {text}" for number, text in enumerate(texts, 1))
    return Sql(f"(CASE {index} {branches} END)", kind)


def _concat(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) < 2:
        raise TsqlError(189, "The concat function requires 2 to 254 arguments.", severity=15)
    values = [write_value(writer, node) for node in nodes]
    texts = [f"COALESCE({_argument(value, 's')}, '')" for value in values]
    return Sql("(" + " || ".join(texts) + ")", NVARCHAR)


def _patindex(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 2, "patindex")
    pattern = nodes[0]
    text = _argument(write_value(writer, nodes[1]), "s")
    written = pattern.this if isinstance(pattern, exp.Literal | exp.National) else None
    if isinstance(written, str) and written.startswith("%"):
        return Sql(f"tsql.patindex({string(pattern_expression(written)[1:].removeprefix('.*'))}, {text})", INT)
    return Sql(f"tsql.patindex_of({_argument(write_value(writer, pattern), 's')}, {text})", INT)


_HASHES = {"md5": "md5", "sha2_256": "sha256", "sha2_512": "sha512"}


def _hashbytes(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 2, "hashbytes")
    algorithm = nodes[0].name.lower() if isinstance(nodes[0], exp.Literal | exp.National) else ""
    if algorithm not in _HASHES:
        raise refused(f"HASHBYTES with {algorithm or 'a variable'}", "Use 'SHA2_256', 'SHA2_512' or 'MD5'.")
    value = converted(write_value(writer, nodes[1]), VARBINARY).text
    if algorithm == "md5":
        return Sql(f"decode(md5({value}), 'hex')", VARBINARY)
    return Sql(f"{_HASHES[algorithm]}({value})", VARBINARY)


def _global(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    name = nodes[0].name
    if name not in SESSION:
        raise TsqlError(137, f'Must declare the scalar variable "{name}".', severity=15)
    return _session_value(writer, name)


def _json_modify(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 3, "json_modify")
    document, path, value = (write_value(writer, node) for node in nodes)
    is_json = isinstance(nodes[2], exp.Anonymous) and nodes[2].name.lower() == MARK + "json_query"
    if value.is_open and value.type is None:
        new = "NULL::jsonb"
    elif is_json:
        new = f"{value.text}::jsonb"
    elif value.type is not None and value.type.name == "bit":
        new = f"to_jsonb({value.text} <> 0)"
    else:
        new = f"to_jsonb({closed_text(value)})"
    return Sql(f"tsql.json_modify({_argument(document, 's')}, {_argument(path, 's')}, {new})", NVARCHAR)


def _ident_current(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    _count(nodes, 1, "ident_current")
    name = _argument(write_value(writer, nodes[0]), "s")
    return Sql(f"tsql.ident_current({string(writer.scope.database)}, {name})", DECIMAL_38)


def _not_here(name: str, instead: str) -> Callable[[Writer, list[exp.Expression]], Sql]:
    def refuse(writer: Writer, nodes: list[exp.Expression]) -> Sql:
        raise refused(name, instead)

    return refuse


SPECIAL: dict[str, Callable[[Writer, list[exp.Expression]], Sql]] = {
    "dateadd": _dateadd,
    "datediff": _datediff,
    "datediff_big": _datediff_big,
    "datepart": _datepart,
    "datename": _datename,
    "isnull": _isnull,
    "choose": _choose,
    "concat": _concat,
    "patindex": _patindex,
    "hashbytes": _hashbytes,
    "global": _global,
    "json_modify": _json_modify,
    "ident_current": _ident_current,
    "soundex": _not_here("SOUNDEX", "Compare the strings themselves."),
    "identity": _not_here("IDENTITY() in SELECT INTO", "Create the table with an IDENTITY column, then INSERT."),
    "string_split": _not_here("STRING_SPLIT as a value", "It is a table: write it in FROM."),
}


@value_of(exp.CurrentTimestamp)
def _current_timestamp(writer: Writer, node: exp.CurrentTimestamp) -> Sql:
    return Sql("tsql.now()::timestamp(3)", DATETIME)


@value_of(exp.Trim)
def _trim(writer: Writer, node: exp.Trim) -> Sql:
    value = _argument(write_value(writer, node.this), "s")
    signs = node.args.get("expression")
    if node.args.get("position") or node.args.get("collation"):
        raise unsupported(node, "Use LTRIM and RTRIM.")
    return Sql(
        f"btrim({value}, {_argument(write_value(writer, signs), 's') if signs is not None else chr(39) + ' ' + chr(39)})",
        NVARCHAR,
    )


@value_of(exp.AtTimeZone)
def _at_time_zone(writer: Writer, node: exp.AtTimeZone) -> Sql:
    raise unsupported(node, "All times are UTC; add the difference with DATEADD.")
