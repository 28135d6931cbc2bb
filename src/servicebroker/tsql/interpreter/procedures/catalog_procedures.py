"""The system procedures that show what the catalog knows: sp_help and its kin."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.context import database_of
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import named_arguments, system
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.evaluation import operand_value
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.parser.token_reader import name_in
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Definition, Execute, Name
from servicebroker.tsql.translation.text_writer import string
from servicebroker.tsql.types import BIGINT, NVARCHAR

_OBJECT = (
    "select o.name, o.schema_name, coalesce(lower(replace(k.type_desc, '_', ' ')), ''), o.create_date, o.object_id, "
    "o.type from tsql.every_object o left join tsql.all_objects k on k.object_id = o.object_id "
    "where o.database_id = $1 and lower(o.schema_name) = lower($2) and lower(o.name) = lower($3) limit 1"
)
_COLUMNS = (
    "select c.name, c.type_name, case when c.is_computed then 'yes' else 'no' end, c.max_length::integer, "
    "tsql.columnproperty($1, c.name, 'precision'), tsql.columnproperty($1, c.name, 'scale'), "
    "case when c.is_nullable then 'yes' else 'no' end, c.is_identity, c.column_id "
    "from tsql.every_column c where c.object_id = $1 order by c.column_id"
)
_INDEXES = (
    "select i.name, concat_ws(', ', lower(i.type_desc), case i.is_unique when 1 then 'unique' end, "
    "case i.is_primary_key when 1 then 'primary key' end), string_agg(c.name, ', ' order by k.key_ordinal) "
    "from tsql.indexes i join tsql.index_columns k using (object_id, index_id) "
    "join tsql.every_column c using (object_id, column_id) where object_id = $1 and k.key_ordinal > 0 "
    "group by index_id, i.name, i.type_desc, i.is_unique, i.is_primary_key order by 1"
)
_SIZES = (
    "select pg_total_relation_size($1::bigint::oid), pg_table_size($1::bigint::oid), pg_indexes_size($1::bigint::oid)"
)


def text_arguments(machine: Machine, statement: Execute, names: tuple[str, ...], required: int = 0) -> list[str | None]:
    """The texts that a procedure is given, in the order of its parameters; None for one that is missing or NULL."""
    given = named_arguments(machine, statement, names, required)
    return [None if name not in given else convert(*given[name], NVARCHAR) for name in names]


class Shown(NamedTuple):
    """An object of the current database, as the catalog has it; `type` as in sys.objects, `kind` in words."""

    name: str
    schema: str
    kind: str
    created: datetime | None
    number: int
    type: str


def find_object(machine: Machine, name: Name) -> Shown | None:
    """The object of that name in the current database, None when there is none."""
    rows = fetch(
        machine.connection,
        "catalog_procedures.find_object",
        _OBJECT,
        (machine.database.database_id, name.schema or "dbo", name.own),
    )
    return Shown(*rows[0]) if rows else None


def found_object(machine: Machine, said: str) -> Shown:
    """The object of that name.

    Raises:
        TsqlError: 15009 there is none, 15250 it is said to be in another database.
    """
    try:
        name = name_in(said)
    except TsqlError:
        raise _missing(machine, said) from None
    check_here(machine, name.database)
    shown = find_object(machine, name)
    if shown is None:
        raise _missing(machine, said)
    return shown


def _missing(machine: Machine, said: str) -> TsqlError:
    return TsqlError(
        15009,
        f"The object '{said}' does not exist in database '{machine.database.name}' or is invalid for this operation.",
    )


def database_in(said: str) -> str:
    """The database that a name begins with, "" where it has none or is no name."""
    try:
        return name_in(said).database
    except TsqlError:
        return ""


def check_here(machine: Machine, database: str | None) -> None:
    """Raises: TsqlError: 15250 a name begins with another database than the current one."""
    if database and database.lower() != machine.database.name.lower():
        raise TsqlError(
            15250, "The database name component of the object qualifier must be the name of the current database."
        )


def _as_datetime(moment: datetime | None) -> datetime | None:
    """As a datetime shows it: to the millisecond, without a zone."""
    if moment is None:
        return None
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


_IDENTITY = (
    "select c.name, tsql.identity_sequence($1, $2)::text, state.last_value, state.is_called from tsql.every_column c "
    "cross join lateral tsql.sequence_state(tsql.identity_sequence($1, $2)) state "
    "where c.object_id = $3 and c.is_identity"
)
_DONE = "DBCC execution completed. If DBCC printed error messages, contact your system administrator."


@defines("DBCC", "CHECKIDENT")
def _check_identity(machine: Machine, statement: Definition) -> None:
    """Tell where the values of an IDENTITY column go on, and have it go on elsewhere, in the table's database.

    Raises:
        BrokerError: 911 no such database, 916 not for who works.
        TsqlError: 2501 there is no such table, 7997 it has no IDENTITY column, 2560 it shall go on at NULL.
    """
    with machine.context.within(database_of(machine, statement.name)):
        _check_identity_here(machine, statement)


def _check_identity_here(machine: Machine, statement: Definition) -> None:
    machine.transactions.check()
    name = statement.name
    shown = find_object(machine, name)
    if shown is None or shown.type != "U":
        raise TsqlError(2501, f'Cannot find a table or object with the name "{name}". Check the system catalog.')
    machine.allow(Use("ALTER TABLE", shown.schema, shown.name))
    own = f"[{shown.schema.replace(']', ']]')}].[{shown.name.replace(']', ']]')}]"
    rows = fetch(machine.connection, "catalog_procedures.check_identity_here", _IDENTITY, (
        machine.database.name, own, shown.number
    ))  # fmt: skip
    if not rows:
        raise TsqlError(7997, f"'{name}' does not contain an identity column.")
    column, sequence, last, is_called = rows[0]
    current = str(last) if is_called else "NULL"
    given, reseeds = statement.clauses["value"], statement.clauses["reseeds"]
    if given is not None:
        value = convert(*operand_value(machine, given), BIGINT)
        if value is None:
            raise TsqlError(2560, "Parameter 3 is incorrect for this DBCC statement.")
        ((least,),) = fetch(
            machine.connection,
            "catalog_procedures.check_identity_here.find_least",
            "select seqmin from pg_sequence where seqrelid = $1::regclass",
            (sequence,),
        )
        lower = f"alter sequence {sequence} minvalue {value}; " if int(str(value)) < least else ""
        machine.queries.define(f"{lower}select setval({string(sequence)}, {value}, {is_called})")
        said = f"Checking identity information: current identity value '{current}'."
    else:
        found = machine.queries.scalar(f"(SELECT MAX([{column.replace(']', ']]')}]) FROM {own})").value
        if reseeds and isinstance(found, int) and (not is_called or last < found):
            machine.queries.define(f"select setval({string(sequence)}, {found})")
        most = "NULL" if found is None else found
        said = f"Checking identity information: current identity value '{current}', current column value '{most}'."
    if not statement.clauses["is_silent"]:
        machine.say(Message(said))
        machine.say(Message(_DONE))
    machine.done()


@system("sp_help")
def _sp_help(machine: Machine, statement: Execute) -> None:
    (said,) = text_arguments(machine, statement, ("@objname",))
    if said is None:
        machine.say(machine.queries.collect(
            "SELECT o.name AS Name, SCHEMA_NAME(o.schema_id) AS Owner, "
            "LOWER(REPLACE(o.type_desc, '_', ' ')) AS Object_type FROM sys.objects AS o ORDER BY o.name"
        ))  # fmt: skip
        return
    shown = found_object(machine, said)
    about = ("Name", "Owner", "Type", "Created_datetime")
    machine.say(ResultSet(about, [(shown.name, shown.schema, shown.kind, _as_datetime(shown.created))]))
    columns = fetch(machine.connection, "catalog_procedures.sp_help", _COLUMNS, (shown.number,))
    if not columns:
        return
    names = ("Column_name", "Type", "Computed", "Length", "Prec", "Scale", "Nullable")
    machine.say(ResultSet(names, [tuple(row[:7]) for row in columns]))
    identities = [(row[0],) for row in columns if row[7]]
    machine.say(ResultSet(("Identity",), identities or [("No identity column defined.",)]))
    _say_indexes(machine, shown)


@system("sp_helpindex")
def _sp_helpindex(machine: Machine, statement: Execute) -> None:
    (said,) = text_arguments(machine, statement, ("@objname",), 1)
    _say_indexes(machine, found_object(machine, said or ""))


def _say_indexes(machine: Machine, shown: Shown) -> None:
    rows = fetch(machine.connection, "catalog_procedures.say_indexes", _INDEXES, (shown.number,))
    machine.say(ResultSet(("index_name", "index_description", "index_keys"), [tuple(row) for row in rows]))


@system("sp_columns")
def _sp_columns(machine: Machine, statement: Execute) -> None:
    """Without the numbers that ODBC has for types."""
    parameters = ("@table_name", "@table_owner", "@table_qualifier", "@column_name")
    table, owner, qualifier, column = text_arguments(machine, statement, parameters, 1)
    check_here(machine, qualifier)
    rows = fetch(
        machine.connection,
        "catalog_procedures.sp_columns",
        "select c.broker_database, c.schema_name, c.table_name, c.name, c.type_name, "
        "tsql.columnproperty(c.object_id, c.name, 'precision'), c.max_length::integer, "
        "tsql.columnproperty(c.object_id, c.name, 'scale'), c.is_nullable::integer::smallint, c.column_id, "
        "case when c.is_nullable then 'YES' else 'NO' end from tsql.every_column c where c.database_id = $1 "
        "and lower(c.table_name) like lower($2) and lower(c.schema_name) like lower($3) "
        "and lower(c.name) like lower($4) "
        "order by 2, 3, c.column_id",
        (machine.database.database_id, table or "", owner or "%", column or "%"),
    )
    names = ("TABLE_QUALIFIER", "TABLE_OWNER", "TABLE_NAME", "COLUMN_NAME", "TYPE_NAME", "PRECISION", "LENGTH", "SCALE",
             "NULLABLE", "ORDINAL_POSITION", "IS_NULLABLE")  # fmt: skip
    machine.say(ResultSet(names, [tuple(row) for row in rows]))


@system("sp_tables")
def _sp_tables(machine: Machine, statement: Execute) -> None:
    parameters = ("@table_name", "@table_owner", "@table_qualifier", "@table_type")
    table, owner, qualifier, kinds = text_arguments(machine, statement, parameters)
    check_here(machine, qualifier)
    rows = fetch(
        machine.connection,
        "catalog_procedures.sp_tables",
        "select o.broker_database, o.schema_name, o.name, case o.type when 'V' then 'VIEW' else 'TABLE' end, null "
        "from tsql.every_object o where o.database_id = $1 and o.type in ('U', 'V') "
        "and lower(o.name) like lower($2) and lower(o.schema_name) like lower($3) "
        "and ($4 = '' or position(case o.type when 'V' then '''VIEW''' else '''TABLE''' end in upper($4)) > 0) "
        "order by 4, 2, 3",
        (machine.database.database_id, table or "%", owner or "%", kinds or ""),
    )
    names = ("TABLE_QUALIFIER", "TABLE_OWNER", "TABLE_NAME", "TABLE_TYPE", "REMARKS")
    machine.say(ResultSet(names, [tuple(row) for row in rows]))


@system("sp_databases")
def _sp_databases(machine: Machine, statement: Execute) -> None:
    text_arguments(machine, statement, ())
    machine.say(machine.queries.collect(
        "SELECT name AS DATABASE_NAME, CAST(NULL AS INT) AS DATABASE_SIZE, CAST(NULL AS VARCHAR(254)) AS REMARKS "
        "FROM sys.databases ORDER BY name"
    ))  # fmt: skip


@system("sp_spaceused")
def _sp_spaceused(machine: Machine, statement: Execute) -> None:
    """Of something with rows, or of all that the database has.

    Raises:
        TsqlError: 15009 there is no such object, 15234 it has no rows of its own.
    """
    said, _, _, _ = text_arguments(machine, statement, ("@objname", "@updateusage", "@mode", "@oneresultset"))
    if said is None:
        _say_size(machine)
        return
    shown = found_object(machine, said or "")
    if shown.type not in ("U", "SQ"):
        raise TsqlError(15234, "Objects of this type have no space allocated.")
    ((count,),) = machine.queries.collect(f"SELECT COUNT(*) FROM {_written(shown)}").rows
    number = shown.number
    if shown.type == "SQ":
        ((number,),) = fetch(
            machine.connection,
            "catalog_procedures.sp_spaceused.find_queue",
            "select to_regclass('servicebroker.queue_' || $1::integer)::oid::bigint::integer",
            (number,),
        )
    ((total, data, indexes),) = fetch(machine.connection, "catalog_procedures.sp_spaceused.measure", _SIZES, (number,))
    machine.say(ResultSet(("name", "rows", *_PARTS), [(shown.name, str(count), *_parts(total, data, indexes))]))


_PARTS = ("reserved", "data", "index_size", "unused")
_WHOLE = """
select coalesce(sum(pg_total_relation_size(own)), 0)::bigint, coalesce(sum(pg_table_size(own)), 0)::bigint,
       coalesce(sum(pg_indexes_size(own)), 0)::bigint
  from tsql.every_object o
 cross join lateral (select case o.type when 'SQ' then to_regclass('servicebroker.queue_' || o.object_id)
                                        else o.object_id::bigint::oid::regclass end as own) it
 where o.database_id = $1 and o.type in ('U', 'SQ')
"""


def _say_size(machine: Machine) -> None:
    rows = fetch(machine.connection, "catalog_procedures.say_size", _WHOLE, (machine.database.database_id,))
    ((total, data, indexes),) = rows
    size = f"{total / 2**20:.2f} MB"
    about = ("database_name", "database_size", "unallocated space")
    machine.say(ResultSet(about, [(machine.database.name, size, "0.00 MB")]))
    machine.say(ResultSet(_PARTS, [_parts(total, data, indexes)]))


def _parts(total: int, data: int, indexes: int) -> tuple[str, ...]:
    return tuple(f"{each // 1024} KB" for each in (total, data, indexes, total - data - indexes))


def _written(shown: Shown) -> str:
    return ".".join(quoted(str(part)) for part in (shown.schema, shown.name))
