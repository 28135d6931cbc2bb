"""The errors of constraints, in the names that their tables were made with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg

from servicebroker.model.zero_character import from_postgres
from servicebroker.store.running import fetch
from servicebroker.tsql.postgres_errors import as_written
from servicebroker.tsql.statement_errors import TsqlError

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

# $1 schema, $2 table, $3 constraint, or index; names as they were written stand in comments
_FIND = """
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
_COLUMN = """
select tsql.written_column(a.attrelid, array[a.attnum]) from pg_attribute a
 where a.attrelid = to_regclass(format('%I.%I', $1::text, $2::text)) and a.attname = $3
"""
_COUNTED = """
select b.type from pg_class c
  join pg_sequence s on s.seqrelid = c.oid
  join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'
  join tsql.bounds() b on b.high = s.seqmax
 where c.relname = $1
"""
_VERB = re.compile(r"\b(?:insert|update|delete|merge|alter\s+table)\b", re.IGNORECASE)


def violation(machine: Machine, problem: psycopg.Error, statement: str) -> TsqlError | None:
    """The error of a constraint, or of IDENTITY; None for others, and where the transaction can answer no question."""
    said = problem.diag
    if isinstance(problem, psycopg.errors.SequenceGeneratorLimitExceeded) and not machine.transactions.is_lost:
        return _counted_out(machine, (said.message_primary or "").split('"')[1])
    if not isinstance(problem, psycopg.IntegrityError) or not said.table_name or machine.transactions.is_lost:
        return None
    table = said.schema_name, said.table_name
    rows = fetch(machine.connection, "violations.violation", _FIND, (*table, said.constraint_name or ""))
    if not rows:
        return None
    database, schema, name, constraint, kind, far_schema, far_table, column, far_column = rows[0]
    if name.startswith("@"):
        name = name.rsplit("_", 1)[0]
    constraint = constraint or as_written(said.constraint_name or "", statement)
    found = _VERB.search(statement)
    verb = " ".join(found[0].upper().split()) if found else "INSERT"
    shown = f"{schema}.{name}"
    if problem.sqlstate == "23502":
        columns = fetch(machine.connection, "violations.violation.find_column", _COLUMN, (*table, said.column_name))
        own = columns[0][0] if columns else said.column_name
        return TsqlError(
            515, f"Cannot insert the value NULL into column '{own}', table '{database}.{shown}'; column does not allow "
            f"nulls. {verb} fails.", state=2,
        )  # fmt: skip
    if problem.sqlstate == "23505":
        return _duplicate(kind, constraint, shown, from_postgres(said.message_detail or ""))
    if problem.sqlstate not in ("23503", "23514"):
        return None
    word, place, of = "CHECK", shown, column
    if problem.sqlstate == "23503":
        is_missing = "is not present in table" in (said.message_detail or "")
        word = "FOREIGN KEY" if is_missing else "REFERENCE"
        place, of = (f"{far_schema}.{far_table}", far_column) if is_missing else (shown, column)
    where = f", column '{of}'" if of else ""
    return TsqlError(
        547, f'The {verb} statement conflicted with the {word} constraint "{constraint}". The conflict occurred in '
        f'database "{database}", table "{place}"{where}.', state=0,
    )  # fmt: skip


def _counted_out(machine: Machine, sequence: str) -> TsqlError | None:
    """8115 where the sequence is that of an IDENTITY."""
    rows = fetch(machine.connection, "violations.counted_out", _COUNTED, (sequence,))
    for (of,) in rows:
        return TsqlError(8115, f"Arithmetic overflow error converting IDENTITY to data type {of}.")
    return None


def _duplicate(kind: str | None, constraint: str, table: str, detail: str) -> TsqlError:
    key = re.sub(r"\bnull(?=[,)])", "<NULL>", detail.split(")=", 1)[-1].removesuffix(" already exists."))
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
