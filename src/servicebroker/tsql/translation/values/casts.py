"""CAST, CONVERT and their TRY forms.

Each target type has a function in the schema tsql, overloaded by the source type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from datetime import datetime

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.translation.text_writer import NEXT_VALUE_CALL, Sql, not_supported, type_family
from servicebroker.tsql.types import (
    APPROXIMATE,
    BINARIES,
    DATES,
    EXACT,
    INTEGERS,
    MONEY,
    MOST_CHARACTERS,
    NO_ROOM,
    NUMBERS,
    NVARCHAR,
    PADDED,
    STRINGS,
    VARIANT,
    SqlType,
    make_type,
    most_characters,
    no_room,
    postgres_type,
)

_SQLGLOT_NAMES = {
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
_UNICODE_STRINGS = ("nvarchar", "nchar", "ntext", "sysname")
_CODE_PAGE_STRINGS = ("varchar", "char", "text")
_SCALED = ("datetime2", "time", "datetimeoffset")
_NEW_DATES = ("date", *_SCALED)  # unlike datetime and smalldatetime, these do not convert to numbers
_FIRST_YEAR_OF_DATETIME = 1753
_CONSTANT_MOMENT = re.compile(r"'([1-9]\d{3})(-?)(\d\d)\2(\d\d)(?:([ T])(\d\d):(\d\d)(?::(\d\d))?)?'")
_SIZE = re.compile(r"\d{1,9}")


def read_type(node: exp.Expression) -> SqlType:
    """Return the T-SQL type that CAST or CONVERT names. Strings without a length get 30 characters.

    Raises:
        TsqlError: 243 unknown type, 102 a malformed length, or one number too many.
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
    wrong = [
        argument for argument in arguments if argument.lower() != "max" and not _SIZE.fullmatch(argument)
    ] or arguments[2:]
    if wrong:
        raise syntax_error(wrong[0], 0)
    first, second = [*arguments, None, None][:2]
    return make_type(_SQLGLOT_NAMES.get(written, written), first, second, default_length=30)


def pad_char(value: Sql) -> str:
    """Write a char with its trailing blanks, which PostgreSQL drops when it converts to text.

    Used for arguments, `+` and bytes. A char stored as a varchar is not padded, since its blanks would count in
    comparisons.
    """
    sql_type = value.type
    if value.is_untyped or sql_type is None or sql_type.name not in PADDED or (sql_type.length or 0) < 1:
        return value.text
    return f"rpad({value.text}::text, {sql_type.length})"


def cast_value(value: Sql, to: SqlType, *, style: str | None = None, attempt: bool = False) -> Sql:
    """Write a value converted to another type. `attempt` writes the TRY form."""
    if value.is_untyped and value.type is None:
        return Sql(f"NULL::{postgres_type(to)}", to)
    if not _reads_style(value, to):
        style = None
    if value.type == to and style is None:
        return Sql(f"{value.text}::text", to) if value.is_untyped else value
    if to == VARIANT:
        return _to_variant(value)
    if value.type == VARIANT:
        return _from_variant(value, to, style, attempt)
    moment = constant_moment(value, to) if style is None else None
    if moment is not None:
        return _fit_size(Sql(moment, to), to)
    if to.name == "datetimeoffset":
        return _to_datetimeoffset(value, to, style, attempt)
    if value.type is not None and value.type.name == "datetimeoffset":
        if to.name in _UNICODE_STRINGS + _CODE_PAGE_STRINGS:
            return _fit_size(_offset_text(value, to, style), to)
        if to.name in DATES:
            value = own_clock(value)
    fills = to == NVARCHAR or to.name in BINARIES
    source = f"{value.text}::text" if value.is_untyped else pad_char(value) if fills else value.text
    if to.name in BINARIES and value.type is not None and value.kind not in ("string", "binary"):
        return _fit_bytes_right(_bytes_of(source, value.type), to)
    if value.kind == "binary" and to.name in _FROM_BYTES and not attempt:
        return _fit_size(Sql(f"tsql.{to.name}_of_bytes({source})", to), to)
    if value.kind == "binary" and to.name in APPROXIMATE:
        raise TsqlError(529, f"Explicit conversion from data type varbinary to {to.name} is not allowed.")
    if value.type is not None and value.type.name in _NEW_DATES and to.name in NUMBERS:
        raise TsqlError(529, f"Explicit conversion from data type {value.type.name} to {to.name} is not allowed.")
    if value.type is not None and value.type.name in _SCALED and to.name in _UNICODE_STRINGS + _CODE_PAGE_STRINGS:
        return _fit_size(Sql(scaled_text(source, value.type, style), to), to)
    arguments = f"({source}, {style})" if style is not None else f"({source})"
    if attempt and not (value.kind in ("number", "date", "uniqueidentifier") and to.name in STRINGS and style is None):
        tried = f"tsql.try_{_conversion_function(value, to)}{arguments}"
        if to.name == "decimal":  # its size is a refusal of PostgreSQL's
            scale, limit = to.scale or 0, 10 ** ((to.precision or 18) - (to.scale or 0))
            return Sql(f"tsql.within({tried}, {scale}, {limit})::{postgres_type(to)}", to)
        return _fit_text(Sql(tried, to), value, to, attempt=True)
    if value.type is not None and value.type.name in MONEY and to.name in _UNICODE_STRINGS + _CODE_PAGE_STRINGS:
        return _fit_text(Sql(f"tsql.money_text({source}, {style or 0})", to), value, to, attempt=attempt)
    if value.kind == "string" and to.name in _UNICODE_STRINGS + _CODE_PAGE_STRINGS and style is None:
        if to.name in _CODE_PAGE_STRINGS and value.type is not None and value.type.name in _UNICODE_STRINGS:
            source = f"tsql.single({source})"  # characters that the code page has not become question marks
        return _fit_size(Sql(source, to), to, value.type)
    single = "_single" if style is None and _names_code_page(value, to) else ""
    return _fit_text(Sql(f"tsql.{_conversion_function(value, to)}{single}{arguments}", to), value, to, attempt=attempt)


def _reads_style(value: Sql, to: SqlType) -> bool:
    """Check whether a conversion depends on the style of CONVERT. SQL Server ignores it in any other conversion."""
    if value.type is None or VARIANT in (value.type, to):
        return True
    kinds = {value.kind, type_family(to)}
    if kinds == {"string", "number"}:
        return to.name in STRINGS and value.type.name in APPROXIMATE | MONEY
    return "xml" in kinds or ("string" in kinds and bool(kinds & {"date", "binary"}))


def scaled_text(text: str, sql_type: SqlType, style: str | None) -> str:
    """Write a datetime2 or time as text, with the digits of its scale."""
    scale = 7 if sql_type.scale is None else sql_type.scale
    return f"tsql.scaled_text({text}, {scale})" if style is None else f"tsql.scaled_style({text}, {scale}, {style})"


def document_moment(text: str, sql_type: SqlType, offset: str = "0") -> str:
    """Write a datetimeoffset as text in FOR XML and FOR JSON."""
    return f"tsql.document_moment({text}, {7 if sql_type.scale is None else sql_type.scale}, {offset})"


def constant_moment(value: Sql, to: SqlType) -> str | None:
    """Write a date in a quoted text as a constant, which computed columns and filtered indexes may contain.

    Return None for a text that depends on SET DATEFORMAT, has a fraction, or is not a date of the type.
    """
    if not value.is_untyped or to.name not in ("date", "datetime", "datetime2"):
        return None
    match = _CONSTANT_MOMENT.fullmatch(value.text)
    if match is None or (to.name == "datetime" and match[2] and match[5] != "T"):
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.group(1, 3, 4, 6, 7, 8))
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    if to.name == "datetime" and year < _FIRST_YEAR_OF_DATETIME:
        return None
    return f"date '{moment:%Y-%m-%d}'" if to.name == "date" else f"timestamp '{moment:%Y-%m-%d %H:%M:%S}'"


def _names_code_page(value: Sql, to: SqlType) -> bool:
    """Check whether the error of the conversion names the source type, which is varchar or char."""
    return (
        value.type is not None
        and value.type.name in _CODE_PAGE_STRINGS
        and (to.name in INTEGERS | APPROXIMATE or to.name in ("bit", "decimal"))
    )


def _fit_text(text: Sql, value: Sql, to: SqlType, *, attempt: bool = False, is_variant: bool = False) -> Sql:
    """Fit a converted value to the length of its type. Other values are cut, but a number or identifier never is."""
    source = value.type
    if source is None or to.name not in STRINGS or source.name not in NUMBERS | {"uniqueidentifier"}:
        return _fit_size(text, to)
    if to.length is None or to.length < 0 or to.length >= most_characters(source):
        return _fit_size(text, to)
    if (
        NEXT_VALUE_CALL in value.text
    ):  # written once, since each occurrence draws a number; PostgreSQL refuses a number with more digits
        narrow = f"({value.text})::numeric({to.length}, 0)::{postgres_type(source)}"
        return _fit_size(text._replace(text=text.text.replace(value.text, narrow)), to)
    refusal = no_room(source, to)
    number, otherwise = 0, f"'{NO_ROOM}'"
    if refusal is not None and attempt:
        otherwise = "NULL"
    elif refusal is not None:
        raw = f"tsql.variant_raw({value.text})" if is_variant else f"({value.text})"
        number = refusal.number
        otherwise = "'" + refusal.text.replace("{value}", f"' || round({raw}::numeric, 6) || '") + "'"
    # a function call, so that the value is computed once: RAND() and NEWID() return another value each time
    fitted = f"tsql.fitted({text.text}, {to.length}, {number}, {otherwise})"
    return Sql(f"rpad({fitted}, {to.length})" if to.name in PADDED else fitted, to)


def own_clock(value: Sql) -> Sql:
    """Write the local date and time of a datetimeoffset. Any other value is returned unchanged."""
    if value.offset is None or value.type is None or value.type.name != "datetimeoffset":
        return value
    return Sql(f"tsql.own_clock({value.text}, {value.offset()})", value.type._replace(name="datetime2"))


def chosen_offset(
    kind: SqlType | None, values: Sequence[Sql], choose: Callable[[Sequence[str]], str]
) -> Callable[[], str] | None:
    """Return a writer of the offset of one of several values; `choose` writes the choice between texts of each."""
    if kind is None or kind.name != "datetimeoffset" or not any(value.offset for value in values):
        return None
    return lambda: choose([value.offset() if value.offset else "0" for value in values])


def first_offset(kind: SqlType | None, values: Sequence[Sql]) -> Callable[[], str] | None:
    """Return a writer of the offset of the first value that is not NULL."""

    def choose(offsets: Sequence[str]) -> str:
        pairs = zip(values, offsets, strict=True)
        return f"(CASE {' '.join(f'WHEN {value.text} IS NOT NULL THEN {offset}' for value, offset in pairs)} END)"

    return chosen_offset(kind, values, choose)


def _offset_text(value: Sql, to: SqlType, style: str | None) -> Sql:
    """Write a datetimeoffset as a string, with its offset."""
    assert value.type is not None
    arguments = (
        f"{value.text}, {7 if value.type.scale is None else value.type.scale}, {value.offset() if value.offset else 0}"
    )
    return Sql(f"tsql.scaled_text({arguments})" if style is None else f"tsql.offset_styled({arguments}, {style})", to)


def _to_datetimeoffset(value: Sql, to: SqlType, style: str | None, attempt: bool) -> Sql:
    """Write a value as a datetimeoffset, which keeps the offset of another one and that of a text."""
    source = f"{value.text}::text" if value.is_untyped else value.text
    arguments = f"({source}, {style})" if style is not None and value.kind == "string" else f"({source})"
    offset = value.offset
    if value.kind == "string":
        offset = functools.partial("tsql.offset_said({})".format, source)
    text = f"tsql.{'try_' if attempt else ''}to_datetimeoffset{arguments}"
    return Sql(f"{text}::{postgres_type(to)}", to, offset=offset)


_NO_VARIANT = frozenset({"text", "ntext", "image", "xml"})


def _to_variant(value: Sql) -> Sql:
    """Write a value as a sql_variant, which stores its type. The type has no length MAX."""
    sql_type = value.type
    text = f"{value.text}::text" if value.is_untyped else value.text
    if sql_type is None:
        return Sql(f"tsql.variant({text})", VARIANT)
    if sql_type.name in _NO_VARIANT:
        raise TsqlError(206, f"Operand type clash: {sql_type.name} is incompatible with sql_variant", state=2)
    if sql_type.length == -1:
        sql_type = sql_type._replace(length=4000 if sql_type.name in _UNICODE_STRINGS else 8000)
    if sql_type.name == "real":
        text += "::float8"
    return Sql(f"tsql.variant({text}, '{'nvarchar(128)' if sql_type.name == 'sysname' else sql_type}')", VARIANT)


def _from_variant(value: Sql, to: SqlType, style: str | None, attempt: bool) -> Sql:
    """Write a sql_variant converted to another type.

    Stored numbers convert as numbers, other values as text.
    """
    if to.name in BINARIES:
        return _fit_size(Sql(f"tsql.variant_bytes({value.text})", to), to)
    if to.name in STRINGS and style is not None:
        moment = cast_value(
            Sql(f"tsql.to_datetime(tsql.variant_raw({value.text}))", SqlType("datetime")), to, style=style
        )
        plain = _from_variant(value, to, None, attempt)
        return Sql(f"(CASE WHEN tsql.variant_rank({value.text}) = 5 THEN {moment.text} ELSE {plain.text} END)", to)
    if to.name not in NUMBERS:
        form = "variant_text" if to.name in STRINGS else "variant_raw"
        text = Sql(f"tsql.{form}({value.text})", _ANY_TEXT)
        plain = cast_value(text, to, style=style, attempt=attempt)
        if to.name not in STRINGS or to.length is None or not 0 <= to.length < MOST_CHARACTERS:
            return plain
        whens = [
            f"WHEN {base!r} THEN {_fit_text(text, Sql(value.text, SqlType(base)), to, attempt=attempt, is_variant=True).text}"
            for base in (*sorted(NUMBERS), "uniqueidentifier")
        ]
        return Sql(f"(CASE tsql.variant_base({value.text}) {' '.join(whens)} ELSE {plain.text} END)", to)
    number = Sql(f"tsql.variant_number({value.text})", SqlType("decimal", None, 38, 10))
    text = Sql(f"tsql.variant_raw({value.text})", _ANY_TEXT)
    from_number, from_text = (cast_value(source_value, to, attempt=attempt).text for source_value in (number, text))
    return Sql(f"(CASE WHEN tsql.variant_rank({value.text}) IN (3, 4) THEN {from_number} ELSE {from_text} END)", to)


_ANY_TEXT = SqlType("nvarchar", -1)
_FROM_BYTES = frozenset({"decimal", "money", "smallmoney", "date", "datetime", "smalldatetime", "time", "datetime2"})
_SAME_BYTES = frozenset({"date", "float", "real", "smalldatetime"})


def _bytes_of(text: str, sql_type: SqlType) -> str:
    """Write the bytes of a value that is neither text nor bytes."""
    if sql_type.name in _SAME_BYTES:
        return f"tsql.bytes_of_{sql_type.name}({text})"
    if sql_type.name == "decimal":
        return f"tsql.bytes_of_decimal({text}, {sql_type.precision}, {sql_type.scale})"
    if sql_type.name in _SCALED:
        return f"tsql.bytes_of_{sql_type.name}({text}, {7 if sql_type.scale is None else sql_type.scale})"
    if sql_type.name in ("money", "smallmoney"):
        return f"tsql.low_bytes(tsql.bytes_of_money({text}), {8 if sql_type.name == 'money' else 4})"
    if sql_type.name in ("tinyint", "bit"):
        return f"tsql.low_bytes(tsql.to_varbinary({text}), 1)"
    return f"tsql.to_varbinary{'_xml' if sql_type.name == 'xml' else ''}({text})"


def _fit_bytes_right(value: str, to: SqlType) -> Sql:
    """Cut or pad bytes on the left."""
    if to.length is None or to.length < 0:
        return Sql(value, to)
    size = to.length if to.name == "binary" else f"least({to.length}, octet_length({value}))"
    return Sql(f"tsql.low_bytes({value}, {size})", to)


def _conversion_function(value: Sql, to: SqlType) -> str:
    if to.name in _UNICODE_STRINGS:
        return "to_nvarchar"
    if to.name in _CODE_PAGE_STRINGS:
        return "to_varchar"
    if to.name in ("varbinary", "binary", "image"):
        return (
            "to_varbinary_single"
            if value.type is not None and value.type.name in _CODE_PAGE_STRINGS
            else "to_varbinary"
        )
    if to.name in ("datetime", "smalldatetime"):
        return "to_datetime"
    if to.name in ("float", "real"):
        return "to_float"
    if to.name == "xml":
        return "to_xml_single" if value.type is not None and value.type.name in _CODE_PAGE_STRINGS else "to_xml"
    if to.name in INTEGERS | EXACT or to.name in ("uniqueidentifier", "date", *_SCALED):
        return f"to_{to.name}"
    raise not_supported(f"A conversion to {to}")


def _fit_size(value: Sql, to: SqlType, source: SqlType | None = None) -> Sql:
    """Cut a value to the length of its type, or round it to the scale."""
    if to.name in ("varchar", "nvarchar", "sysname"):
        if to.length is None or to.length < 0:
            return value
        if source is not None and source.length is not None and 0 <= source.length <= to.length:
            return value
        return Sql(f"left({value.text}, {to.length})", to)
    if to.name in PADDED:
        return Sql(f"rpad({value.text}, {to.length})", to)
    if to.name == "binary":
        return Sql(f"tsql.padded({value.text}, {to.length})", to)
    if to.name == "varbinary" and to.length is not None and to.length >= 0:
        return Sql(f"substring({value.text}, 1, {to.length})", to)
    if to.name == "smalldatetime":
        return Sql(f"tsql.to_minute({value.text})", to)
    if to.name in ("datetime2", "time") and to.scale is not None and to.scale < 6:
        return Sql(f"tsql.no_later({value.text}::{postgres_type(to)}, {to.scale})", to)
    if to.name in ("decimal", "money", "smallmoney", "datetime", "datetime2", "time", "real"):
        return Sql(f"{value.text}::{postgres_type(to)}", to)
    return value
