"""Columns of tables and views, read from PostgreSQL's catalog for `Scope.columns`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import BIT, SqlType, parse_type

# $1: quoted names of tables. T-SQL notes the type and spelling of a column in its comment, in a second line the name of
# its DEFAULT constraint, and in a third one its collation.
COLUMNS_SQL = """
select wanted.name, a.attname::text, t.typname::text, a.atttypmod, a.attnotnull, a.attidentity <> '',
       a.attgenerated <> '', col_description(a.attrelid, a.attnum), a.attnum::integer,
       case when a.atthasdef and a.attgenerated = '' then
           (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d
             where d.adrelid = a.attrelid and d.adnum = a.attnum) end
  from unnest($1::text[]) wanted(name)
  join pg_attribute a on a.attrelid = to_regclass(wanted.name) and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
 order by wanted.name, a.attnum
"""
_COLUMN_COMMENT = re.compile(r"(\w+(?:\([^)]*\))?) ([^\n]*)(?:\n([^\n]*))?(?:\n(\w*))?")
_TYPES = {
    "uuid": "uniqueidentifier",
    "bytea": "varbinary(max)",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "real",
    "float8": "float",
    "date": "date",
    "time": "time",
    "timestamp": "datetime2",
    "timestamptz": "datetime",
    "bool": "bit",
}


def columns_of(
    rows: Iterable[tuple[str, str, str, int, bool, bool, bool, str | None, int, str | None]],
) -> dict[str, tuple[Column, ...]]:
    """Build the columns of each table from the rows of `COLUMNS_SQL`."""
    columns: dict[str, tuple[Column, ...]] = {}
    for table, name, kind, modifier, required, identity, computed, note, number, written in rows:
        spelled, sql_type, default, collation = _read_comment(note, name, kind, modifier)
        has_time_zone = kind == "timestamptz" and sql_type.name != "datetimeoffset"
        column = Column(
            spelled, sql_type, identity, not required, computed, has_time_zone, default, written or "", number,
            collation=collation,
        )  # fmt: skip
        columns[table] = (*columns.get(table, ()), column)
    return columns


def column_comment(column: Column) -> str:
    """Return the PostgreSQL comment that stores a column's T-SQL type, spelling, DEFAULT constraint and collation."""
    return "\n".join((f"{column.type} {column.name}", column.default, column.collation)).rstrip("\n")


def _read_comment(note: str | None, name: str, kind: str, modifier: int) -> tuple[str, SqlType, str, str]:
    """Return a column's spelling, type, name of the DEFAULT constraint, and collation.

    A column without a comment of T-SQL has the type that fits PostgreSQL's.
    """
    match = _COLUMN_COMMENT.fullmatch(note or "")
    if match is not None and match[2].lower().rstrip("_") == name.rstrip("_"):
        try:
            return match[2], parse_type(match[1]), match[3] or "", match[4] or ""
        except TsqlError:
            pass  # a comment that T-SQL did not write
    if kind == "int2" and name.startswith("is_"):  # a flag of a catalog view
        return name, BIT, "", ""
    return name, _parse_postgres_type(kind, modifier), "", ""


def _parse_postgres_type(kind: str, modifier: int) -> SqlType:
    if kind == "numeric":
        if modifier < 4:
            return SqlType("decimal", None, 38, 10)
        return SqlType("decimal", None, ((modifier - 4) >> 16) & 0xFFFF, (modifier - 4) & 0x7FF)
    if kind in ("varchar", "bpchar") and modifier > 4:
        return SqlType("nvarchar" if kind == "varchar" else "nchar", modifier - 4)
    return parse_type(_TYPES.get(kind, "nvarchar(max)"))
