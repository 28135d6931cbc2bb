"""CAST, CONVERT and their TRY forms: one function of the schema tsql for each target, overloaded by the source."""

from __future__ import annotations

import re

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.text_writer import Sql, refused
from servicebroker.tsql.types import SqlType, make_type, postgres_type

_NAMES = {
    "uuid": "uniqueidentifier",
    "utinyint": "tinyint",
    "timestamptz": "datetimeoffset",
    "timestamp": "datetime",
    "boolean": "bit",
    "variant": "sql_variant",
    "double": "float",
    "rowversion": "rowversion",
    "smallmoney": "smallmoney",
}
_NATIONAL = ("nvarchar", "nchar", "ntext", "sysname")
_SINGLE = ("varchar", "char", "text")
_SIZE = re.compile(r"\d{1,9}")


def type_of_node(node: exp.Expression) -> SqlType:
    """The T-SQL type that CAST or CONVERT names; strings without a length have 30 characters.

    Raises:
        TsqlError: 243 for a name that is no type.
    """
    if isinstance(node, exp.Identifier | exp.Column | exp.Var):
        return make_type(node.name.lower(), default_length=30)
    if not isinstance(node, exp.DataType):
        raise TsqlError(243, f"Type {node.name or '?'} is not a defined system type.")
    kind = node.this
    if kind == exp.DataType.Type.USERDEFINED:
        written = str(node.args.get("kind") or "").lower().strip("[]")
    else:
        written = kind.value.lower()
    arguments = [parameter.name for parameter in node.expressions]
    wrong = [each for each in arguments if each.lower() != "max" and not _SIZE.fullmatch(each)] or arguments[2:]
    if wrong:
        raise syntax_error(wrong[0], 0)
    first, second = [*arguments, None, None][:2]
    return make_type(_NAMES.get(written, written), first, second, default_length=30)


def converted(value: Sql, to: SqlType, *, style: str | None = None, attempt: bool = False) -> Sql:
    """A value as another type."""
    if value.is_open and value.type is None:
        return Sql(f"NULL::{postgres_type(to)}", to)
    if value.type == to and style is None:
        return Sql(f"{value.text}::text", to) if value.is_open else value
    source = f"{value.text}::text" if value.is_open else value.text
    arguments = f"({source}, {style})" if style is not None else f"({source})"
    if attempt:
        function = f"tsql.try_{_function(value, to)}"
        return _sized(Sql(f"{function}{arguments}", to), to)
    if value.kind == "string" and to.name in _NATIONAL + _SINGLE and style is None:
        return _sized(Sql(source, to), to, value.type)
    return _sized(Sql(f"tsql.{_function(value, to)}{arguments}", to), to)


def _function(value: Sql, to: SqlType) -> str:
    if to.name in _NATIONAL:
        return "to_nvarchar"
    if to.name in _SINGLE:
        return "to_varchar"
    if to.name in ("varbinary", "binary", "image"):
        return "to_varbinary_single" if value.type is not None and value.type.name in _SINGLE else "to_varbinary"
    if to.name in ("money", "smallmoney", "decimal"):
        return "to_decimal" if to.name == "decimal" else "to_money"
    if to.name in ("datetime", "smalldatetime", "datetime2"):
        return "to_datetime"
    if to.name in ("float", "real"):
        return "to_float"
    if to.name == "xml" and value.type is not None and value.type.name == "xml":
        return "to_xml"
    if to.name in ("bit", "tinyint", "smallint", "int", "bigint", "uniqueidentifier", "xml", "date", "time"):
        return f"to_{to.name}"
    if to.name == "datetimeoffset":
        return "to_datetimeoffset"
    raise refused(f"A conversion to {to}")


def _sized(value: Sql, to: SqlType, source: SqlType | None = None) -> Sql:
    """Cut to the length, rounded to the scale of the type."""
    if to.name in ("varchar", "nvarchar", "sysname"):
        if to.length is None or to.length < 0:
            return value
        if source is not None and source.length is not None and 0 <= source.length <= to.length:
            return value
        return Sql(f"left({value.text}, {to.length})", to)
    if to.name in ("char", "nchar"):
        return Sql(f"rpad({value.text}, {to.length})", to)
    if to.name == "binary":
        return Sql(f"tsql.padded({value.text}, {to.length})", to)
    if to.name == "varbinary" and to.length is not None and to.length >= 0:
        return Sql(f"substring({value.text}, 1, {to.length})", to)
    if to.name in ("decimal", "money", "smallmoney", "datetime", "smalldatetime", "datetime2", "time", "real"):
        return Sql(f"{value.text}::{postgres_type(to)}", to)
    return value
