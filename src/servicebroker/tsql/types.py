"""The types of T-SQL and their PostgreSQL types."""

from __future__ import annotations

import re
from typing import NamedTuple

from servicebroker.model.number_bounds import WHOLE
from servicebroker.overriding import override
from servicebroker.tsql.statement_errors import TsqlError


class SqlType(NamedTuple):
    """A type of T-SQL.

    `length` is in characters or bytes, -1 for MAX. `precision` and `scale` belong to decimal, `scale` also to times.
    """

    name: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    @override
    def __str__(self) -> str:
        if self.length is not None and self.name != "sysname":
            return f"{self.name}({'max' if self.length < 0 else self.length})"
        if self.precision is not None:
            return f"{self.name}({self.precision},{self.scale or 0})"
        return f"{self.name}({self.scale})" if self.scale is not None else self.name


STRINGS = frozenset({"char", "varchar", "text", "nchar", "nvarchar", "ntext", "sysname"})
PADDED = frozenset({"char", "nchar"})  # padded with blanks to their length
NATIONAL = frozenset({"nchar", "nvarchar", "ntext", "sysname"})
BINARIES = frozenset({"binary", "varbinary", "image"})
INTEGERS = frozenset({"bit", "tinyint", "smallint", "int", "bigint"})
MONEY = frozenset({"money", "smallmoney"})
EXACT = MONEY | {"decimal"}
APPROXIMATE = frozenset({"float", "real"})
NUMBERS = INTEGERS | EXACT | APPROXIMATE
DATES = frozenset({"date", "time", "datetime", "smalldatetime", "datetime2", "datetimeoffset"})

NVARCHAR = SqlType("nvarchar", -1)
VARCHAR = SqlType("varchar", -1)
VARBINARY = SqlType("varbinary", -1)
INT = SqlType("int")
BIGINT = SqlType("bigint")
BIT = SqlType("bit")
DECIMAL = SqlType("decimal", None, 38, 0)
FLOAT = SqlType("float")
DATETIME = SqlType("datetime")
DATETIME2 = SqlType("datetime2", None, None, 7)
UNIQUEIDENTIFIER = SqlType("uniqueidentifier")
XML = SqlType("xml")
SYSNAME = SqlType("sysname", 128)
VARIANT = SqlType("sql_variant")

NO_ROOM = "*"  # the text of a small whole number in a char or varchar that is too short for it
_MARKED = frozenset({"bit", "tinyint", "smallint", "int"})
_MOST_CHARACTERS = {"bit": 1, "tinyint": 3, "smallint": 6, "int": 11, "bigint": 20, "uniqueidentifier": 36}
MOST_CHARACTERS = 42  # the most characters of any other number: 38 digits, a sign, a point, a zero before it


class Refusal(NamedTuple):
    """An error of a conversion. The text may contain the placeholder `{value}`."""

    number: int
    text: str


def most_characters(source: SqlType) -> int:
    """Return the maximum length, in characters, of a number or identifier of the type as text."""
    return _MOST_CHARACTERS.get(source.name, MOST_CHARACTERS)


def no_room(source: SqlType, target: SqlType) -> Refusal | None:
    """Return the error of a number or identifier for which a string type is too short. None: it becomes `NO_ROOM`."""
    if source.name == "uniqueidentifier":
        return Refusal(8170, "Insufficient result space to convert uniqueidentifier value to char.")
    if source.name in MONEY:
        text = f"There is insufficient result space to convert a {source.name} value to {target.name}."
        return Refusal(234 if source.name == "money" else 292, text)
    if source.name in APPROXIMATE:
        return Refusal(232, f"Arithmetic overflow error for type {target.name}, value = {{value}}.")
    if source.name in _MARKED and target.name not in NATIONAL:
        return None
    kind = "numeric" if source.name == "decimal" else "expression"
    return Refusal(8115, f"Arithmetic overflow error converting {kind} to data type {target.name}.")


_SYNONYMS = {
    "integer": "int",
    "numeric": "decimal",
    "dec": "decimal",
    "double precision": "float",
    "character": "char",
    "character varying": "varchar",
    "char varying": "varchar",
    "national character": "nchar",
    "national char": "nchar",
    "national character varying": "nvarchar",
    "national char varying": "nvarchar",
    "national text": "ntext",
    "binary varying": "varbinary",
}
_MAX_LENGTHS = {"char": 8000, "varchar": 8000, "binary": 8000, "varbinary": 8000, "nchar": 4000, "nvarchar": 4000}
_TYPES_WITHOUT_ARGUMENTS = frozenset(
    {"bit", "tinyint", "smallint", "int", "bigint", "money", "smallmoney", "real", "date", "datetime", "smalldatetime"}
    | {"uniqueidentifier", "xml", "text", "ntext", "image", "sysname", "sql_variant"}
)
_UNSUPPORTED_TYPES = {
    "hierarchyid": "Use a column with the key of the parent row.",
    "geography": "Use columns of float.",
    "geometry": "Use columns of float.",
    "cursor": "Use WHILE over a table variable.",
    "table": "Write DECLARE @name TABLE (...).",
}
ROWVERSIONS = ("rowversion", "timestamp")  # stored as binary(8); every change of the row writes the column
_TYPE = re.compile(
    r"(?:\[?sys\]?\s*\.\s*)?(?:\[(?P<quoted>[^\]]+)\]|\"(?P<other>[^\"]+)\"|(?P<plain>[a-z_][\w ]*?))\s*"
    r"(?:\(\s*(?P<first>max|\d{1,9})\s*(?:,\s*(?P<second>\d{1,9})\s*)?\))?",
    re.IGNORECASE,
)
_TYPED_XML = re.compile(r"\[?xml\]?\s*\(\s*(?:(?:content|document)\s+)?[^()]+\)", re.IGNORECASE)


def parse_type(text: str, default_length: int = 1) -> SqlType:
    """Parse the name of a type: 'nvarchar(MAX)', '[decimal](10, 2)'.

    `default_length` applies if the text has no length: 1 in declarations, 30 in CAST and CONVERT.

    Raises:
        TsqlError: 2715 unknown type, 131 and 2750 the size is too large, 1001 the size is 0.
    """
    match = _TYPE.fullmatch(text.strip())
    if match is None and _TYPED_XML.fullmatch(text.strip()):  # xml(collection): the collection is not checked
        return XML
    if match is None:
        raise TsqlError(2715, f"Column, parameter, or variable: Cannot find data type {text.strip()[:60]}.")
    written = re.sub(r"\s+", " ", (match["quoted"] or match["other"] or match["plain"]).strip().lower())
    return make_type(written, match["first"], match["second"], default_length)


_TYPE_NAME = re.compile(
    r"\s*(?:(?:\[(?P<s1>[^\]]+)\]|\"(?P<s2>[^\"]+)\"|(?P<s3>[\w$#@]+))\s*\.\s*)?"
    r"(?:\[(?P<n1>[^\]]+)\]|\"(?P<n2>[^\"]+)\"|(?P<n3>[\w$#@]+))\s*"
)


def type_key(text: str) -> str | None:
    """Return the key of a user-defined type, 'dbo.name' in lower case, or None if the text is not a type name."""
    match = _TYPE_NAME.fullmatch(text)
    if match is None:
        return None
    schema = match["s1"] or match["s2"] or match["s3"] or "dbo"
    return f"{schema}.{match['n1'] or match['n2'] or match['n3']}".lower()


def make_type(written: str, first: str | None = None, second: str | None = None, default_length: int = 1) -> SqlType:
    """Build a type from its name and the sizes in parentheses. Raises the errors of `parse_type`."""
    name = _SYNONYMS.get(written, written)
    if name in _UNSUPPORTED_TYPES:
        raise TsqlError(40515, f"The type {name} is not supported here. {_UNSUPPORTED_TYPES[name]}")
    if name in ROWVERSIONS and first is None:
        return SqlType("binary", 8)
    if name in _TYPES_WITHOUT_ARGUMENTS:
        if first is not None:
            raise TsqlError(2716, f"Column, parameter, or variable: Cannot specify a column width on data type {name}.")
        return SYSNAME if name == "sysname" else SqlType(name)
    if "max" in [size.lower() for size in (first, second) if size] and (second or name not in _MAX_LENGTHS):
        raise TsqlError(102, "Incorrect syntax near 'max'.", severity=15)
    if name in _MAX_LENGTHS:
        return SqlType(name, _length(name, first, second, default_length))
    if name == "decimal":
        return _decimal(first, second)
    if name == "float":
        return SqlType("real" if first is not None and int(first) <= 24 else "float")
    if name in ("datetime2", "time", "datetimeoffset"):
        scale = 7 if first is None else int(first)
        if scale > 7:
            raise TsqlError(1002, f"Line 1: Specified scale {scale} is invalid.")
        return SqlType(name, None, None, scale)
    raise TsqlError(2715, f"Column, parameter, or variable: Cannot find data type {written[:60]}.")


def _length(name: str, first: str | None, second: str | None, default: int) -> int:
    if second is not None:
        raise TsqlError(102, "Incorrect syntax near ','.", severity=15)
    if first is None:
        return default
    if first.lower() == "max":
        if name in ("varchar", "nvarchar", "varbinary"):
            return -1
        raise TsqlError(102, "Incorrect syntax near 'max'.", severity=15)
    length = int(first)
    if length == 0:
        raise TsqlError(1001, "Line 1: Length or precision specification 0 is invalid.", severity=15)
    if length > _MAX_LENGTHS[name]:
        raise TsqlError(
            131,
            f"The size ({length}) given to the type '{name}' exceeds the maximum allowed for any data type "
            f"({_MAX_LENGTHS[name]}).",
            severity=15,
        )
    return length


def _decimal(first: str | None, second: str | None) -> SqlType:
    precision, scale = int(first or 18), int(second or 0)
    if not 1 <= precision <= 38:
        raise TsqlError(2750, f"Column or parameter: Specified column precision {precision} is invalid.")
    if scale > precision:
        raise TsqlError(183, f"The scale ({scale}) must be less than or equal to the precision ({precision}).")
    return SqlType("decimal", None, precision, scale)


_POSTGRES_TYPES = {
    "bit": "smallint",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "money": "numeric(19,4)",
    "smallmoney": "numeric(10,4)",
    "float": "double precision",
    "real": "real",
    "date": "date",
    "datetime": "timestamp(3)",
    "smalldatetime": "timestamp(0)",
    "uniqueidentifier": "uuid",
    "text": "text",
    "ntext": "text",
    "sysname": "text",
    "image": "bytea",
    "binary": "bytea",
    "varbinary": "bytea",
    "xml": "text",
    "sql_variant": "text",
    "varchar": "text",
    "nvarchar": "text",
    "char": "text",
    "nchar": "text",
}


def postgres_type(sql_type: SqlType) -> str:
    """Return the PostgreSQL type of a variable. For columns, which have lengths, see `column_type`."""
    if sql_type.name == "decimal":
        return f"numeric({sql_type.precision},{sql_type.scale})"
    if sql_type.name in ("datetime2", "time", "datetimeoffset"):
        kind = {"datetime2": "timestamp", "time": "time", "datetimeoffset": "timestamptz"}[sql_type.name]
        return f"{kind}({min(6, 7 if sql_type.scale is None else sql_type.scale)})"
    return _POSTGRES_TYPES[sql_type.name]


def column_type(sql_type: SqlType) -> str:
    """Return the PostgreSQL type of a column, which refuses strings that are too long."""
    if sql_type.name in ("varchar", "nvarchar", "sysname") and sql_type.length and sql_type.length > 0:
        return f"varchar({sql_type.length})"
    if sql_type.name in PADDED:
        return f"char({sql_type.length or 1})"
    return postgres_type(sql_type)


def identity_clause(sql_type: SqlType, start: int = 1, step: int = 1) -> str:
    """Return PostgreSQL's clause for an IDENTITY column, with the bounds of the T-SQL type."""
    lowest, highest = WHOLE.get(sql_type.name, WHOLE["bigint"])
    bounds = f"MINVALUE {lowest} MAXVALUE {highest}"
    return f"GENERATED BY DEFAULT AS IDENTITY (START WITH {start} INCREMENT BY {step} {bounds})"
