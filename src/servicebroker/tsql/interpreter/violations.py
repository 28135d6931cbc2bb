"""Errors of constraints, with the names that tables, columns and constraints were created with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from servicebroker.model.zero_character import from_postgres
from servicebroker.store.running import fetch
from servicebroker.tsql.definition_errors import follow
from servicebroker.tsql.postgres_errors import find_spelling
from servicebroker.tsql.statement_errors import TsqlError

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

# $1 schema, $2 table, $3 constraint or index. Comments of the objects hold the names as they were written.
_FIND_CONSTRAINT = """
select coalesce(s.broker_database, ''), coalesce(s.name, 'dbo'),
       coalesce(tsql.noted_name(t.oid), t.relname),
       coalesce(tsql.noted_constraint(c.oid, 1), obj_description(i.oid, 'pg_class')), c.contype::text,
       coalesce(f.name, ''), coalesce(obj_description(c.confrelid, 'pg_class'), ''),
       tsql.written_column(t.oid, c.conkey), tsql.written_column(c.confrelid, c.confkey)
  from pg_class t
  join pg_namespace n on n.oid = t.relnamespace
  left join tsql.every_schema s on s.postgres_schema = n.nspname
  left join pg_constraint c on c.conrelid = t.oid and c.conname = $3
  left join pg_class i on i.relnamespace = n.oid and i.relname = $3 and i.relkind = 'i'
  left join pg_class r on r.oid = c.confrelid
  left join tsql.every_schema f on f.postgres_schema = r.relnamespace::regnamespace::text
 where n.nspname = $1 and t.relname = $2
"""
_FIND_COLUMN = """
select tsql.written_column(a.attrelid, array[a.attnum]) from pg_attribute a
 where a.attrelid = to_regclass(format('%I.%I', $1::text, $2::text)) and a.attname = $3
"""
_FIND_IDENTITY_TYPE = """
select b.type from pg_class c
  join pg_sequence s on s.seqrelid = c.oid
  join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'
  join tsql.bounds() b on b.high = s.seqmax
 where c.relname = $1
"""


class _Constraint(NamedTuple):
    """A row of `_FIND_CONSTRAINT`.

    `kind` is the type in pg_constraint, None for an index. The columns are None for a constraint of several columns.
    """

    database: str
    schema: str
    table: str
    name: str | None
    kind: str | None
    referenced_schema: str
    referenced_table: str
    column: str | None
    referenced_column: str | None


_FOLDED_SUFFIX = "_folded"  # a key's name with this suffix is the index that makes it ignore case (tsql.fold_keys)
_VERB = re.compile(r"\b(?:insert|update|delete|merge|alter\s+table)\b", re.IGNORECASE)


def translate_violation(machine: Machine, error: psycopg.Error, statement: str) -> TsqlError | None:
    """Return SQL Server's error for a violated constraint or an exhausted IDENTITY.

    None for any other error, and in a lost transaction, where the catalog cannot be read.
    """
    diagnostics = error.diag
    if isinstance(error, psycopg.errors.SequenceGeneratorLimitExceeded) and not machine.transactions.is_lost:
        return _identity_overflow(machine, (diagnostics.message_primary or "").split('"')[1])
    if not isinstance(error, psycopg.IntegrityError) or not diagnostics.table_name or machine.transactions.is_lost:
        return None
    table = diagnostics.schema_name, diagnostics.table_name
    key = (diagnostics.constraint_name or "").removesuffix(_FOLDED_SUFFIX)
    rows = fetch(
        machine.connection,
        "violations.translate_violation",
        _FIND_CONSTRAINT,
        (*table, key),
    )
    if not rows:
        return None
    constraint = _Constraint(*rows[0])
    table_own_name = constraint.table
    if table_own_name.startswith("@"):
        table_own_name = table_own_name.rsplit("_", 1)[0]
    constraint_name = constraint.name or find_spelling(key, statement)
    match = _VERB.search(statement)
    keyword = " ".join(match[0].upper().split()) if match else "INSERT"
    table_name = f"{constraint.schema}.{table_own_name}"
    if error.sqlstate == "23502" and _ADDS_COLUMN.match(statement):
        return None  # error 4901, in `definition_errors.py`
    if error.sqlstate == "23502":
        columns = fetch(
            machine.connection,
            "violations.translate_violation.find_column",
            _FIND_COLUMN,
            (*table, diagnostics.column_name),
        )
        column_name = columns[0][0] if columns else diagnostics.column_name
        return TsqlError(
            515, f"Cannot insert the value NULL into column '{column_name}', table "
            f"'{constraint.database}.{table_name}'; column does not allow nulls. {keyword} fails.", state=2,
        )  # fmt: skip
    if error.sqlstate == "23505" and (diagnostics.message_primary or "").startswith("could not create unique index"):
        return _duplicate_in_new_index(table_name, statement, from_postgres(diagnostics.message_detail or ""))
    if error.sqlstate == "23505":
        return _duplicate_key(
            constraint.kind, constraint_name, table_name, from_postgres(diagnostics.message_detail or "")
        )
    if error.sqlstate not in ("23503", "23514"):
        return None
    kind_word, conflict_table, conflict_column = "CHECK", table_name, constraint.column
    if error.sqlstate == "23503":
        is_missing = "is not present in table" in (diagnostics.message_detail or "")
        kind_word = "FOREIGN KEY" if is_missing else "REFERENCE"
        if is_missing:
            conflict_table = f"{constraint.referenced_schema}.{constraint.referenced_table}"
            conflict_column = constraint.referenced_column
    column_clause = f", column '{conflict_column}'" if conflict_column else ""
    return TsqlError(
        547, f'The {keyword} statement conflicted with the {kind_word} constraint "{constraint_name}". The conflict '
        f'occurred in database "{constraint.database}", table "{conflict_table}"{column_clause}.', state=0,
    )  # fmt: skip


def _identity_overflow(machine: Machine, sequence: str) -> TsqlError | None:
    """Return error 8115 if the sequence belongs to an IDENTITY column, else None."""
    rows = fetch(machine.connection, "violations.identity_overflow", _FIND_IDENTITY_TYPE, (sequence,))
    for (type_name,) in rows:
        return TsqlError(8115, f"Arithmetic overflow error converting IDENTITY to data type {type_name}.")
    return None


_ADDS_COLUMN = re.compile(r"\s*ALTER\s+TABLE\s+\S+\s+(?:WITH\s+\w+\s+)?ADD\b", re.IGNORECASE)
_NEW_INDEX = re.compile(r"\b(?:CONSTRAINT|INDEX)\s+(\[[^\]]+\]|[\w$#@]+)", re.IGNORECASE)


def _duplicate_in_new_index(table: str, statement: str, detail: str) -> TsqlError:
    """Return error 1505: rows of the table have the same key. Error 1750 follows for a constraint."""
    name = _NEW_INDEX.search(statement)
    error = TsqlError(
        1505, "The CREATE UNIQUE INDEX statement terminated because a duplicate key was found for the object name "
        f"'{table}' and the index name '{name[1].strip('[]') if name else ''}'. The duplicate key value is "
        f"{_key_value(detail)}.",
    )  # fmt: skip
    return follow(error) if statement.lstrip()[:5].upper() == "ALTER" else error


def _key_value(detail: str) -> str:
    """Return the key in PostgreSQL's detail as SQL Server shows it."""
    value = detail.split(")=", 1)[-1].removesuffix(" already exists.").removesuffix(" is duplicated.")
    value = re.sub(r"(?<=[(, ])\\x(?=[0-9a-f]*[,)])", "0x", value)
    return re.sub(r"\bnull(?=[,)])", "<NULL>", value)


def _duplicate_key(kind: str | None, constraint: str, table: str, detail: str) -> TsqlError:
    """Return error 2601 for a unique index, 2627 for a PRIMARY KEY or UNIQUE constraint."""
    key = _key_value(detail)
    if kind is None:
        return TsqlError(
            2601, f"Cannot insert duplicate key row in object '{table}' with unique index '{constraint}'. The "
            f"duplicate key value is {key}.", severity=14,
        )  # fmt: skip
    word = "PRIMARY KEY" if kind == "p" else "UNIQUE KEY"
    return TsqlError(
        2627, f"Violation of {word} constraint '{constraint}'. Cannot insert duplicate key in object '{table}'. The "
        f"duplicate key value is {key}.", severity=14,
    )  # fmt: skip
