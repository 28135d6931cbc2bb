"""T-SQL's functions with plain arguments: which function of PostgreSQL or of the schema tsql does the work of each."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.tsql.types import (
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
WITH_ARGUMENT = {
    "db_id": _f("s", "tsql.db_id({0})", SMALLINT),
    "db_name": _f("i", "tsql.db_name({0})", SYSNAME),
    "user_name": _f("i", "tsql.user_name({database}, {0})", SYSNAME),
}
# the result has the type of the first argument
LIKE_FIRST = frozenset(
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
