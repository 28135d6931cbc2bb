"""System procedures that show the catalog, such as sp_help and sp_columns, and DBCC CHECKIDENT."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.names import bracketed
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.context import database_of
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import bind_arguments, system_procedure
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.evaluation import evaluate_operand
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.parser.token_reader import parse_name
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Definition, Execute, Name
from servicebroker.tsql.translation.text_writer import quote_string
from servicebroker.tsql.types import BIGINT, NVARCHAR

_FIND_OBJECT = (
    "select o.name, o.schema_name, coalesce(lower(replace(k.type_desc, '_', ' ')), ''), o.create_date, o.object_id, "
    "o.type from tsql.every_object o left join tsql.all_objects k on k.object_id = o.object_id "
    "where o.database_id = $1 and lower(o.schema_name) = lower($2) and lower(o.name) = lower($3) limit 1"
)
_LIST_COLUMNS = (
    "select c.name, c.type_name, case when c.is_computed then 'yes' else 'no' end, c.max_length::integer, "
    "tsql.columnproperty($1, c.name, 'precision'), tsql.columnproperty($1, c.name, 'scale'), "
    "case when c.is_nullable then 'yes' else 'no' end, c.is_identity, c.column_id "
    "from tsql.every_column c where c.object_id = $1 order by c.column_id"
)
_LIST_INDEXES = (
    "select i.name, concat_ws(', ', lower(i.type_desc), case i.is_unique when 1 then 'unique' end, "
    "case i.is_primary_key when 1 then 'primary key' end), string_agg(c.name, ', ' order by k.key_ordinal) "
    "from tsql.indexes i join tsql.index_columns k using (object_id, index_id) "
    "join tsql.every_column c using (object_id, column_id) where object_id = $1 and k.key_ordinal > 0 "
    "group by index_id, i.name, i.type_desc, i.is_unique, i.is_primary_key order by 1"
)
_MEASURE_OBJECT = (
    "select pg_total_relation_size($1::bigint::oid), pg_table_size($1::bigint::oid), pg_indexes_size($1::bigint::oid)"
)


def bind_texts(machine: Machine, statement: Execute, names: tuple[str, ...], required: int = 0) -> list[str | None]:
    """Return the arguments of a system procedure as texts in the order of `names`, None for a missing one or NULL."""
    arguments = bind_arguments(machine, statement, names, required)
    return [None if name not in arguments else convert(*arguments[name], NVARCHAR) for name in names]


class CatalogObject(NamedTuple):
    """An object of the current database: `type` as in sys.objects, `kind` in words."""

    name: str
    schema: str
    kind: str
    created: datetime | None
    object_id: int
    type: str


def find_object(machine: Machine, name: Name) -> CatalogObject | None:
    """Return an object of the current database by its name; None if no such object exists."""
    rows = fetch(
        machine.connection,
        "catalog_procedures.find_object",
        _FIND_OBJECT,
        (machine.database.database_id, name.schema or "dbo", name.object),
    )
    return CatalogObject(*rows[0]) if rows else None


def require_object(machine: Machine, text: str) -> CatalogObject:
    """Return an object of the current database by its name.

    Raises:
        TsqlError: 15009 there is no such object, 15250 the name begins with another database.
    """
    try:
        name = parse_name(text)
    except TsqlError:
        raise _object_missing(machine, text) from None
    check_current_database(machine, name.database)
    catalog_object = find_object(machine, name)
    if catalog_object is None:
        raise _object_missing(machine, text)
    return catalog_object


def _object_missing(machine: Machine, text: str) -> TsqlError:
    return TsqlError(
        15009,
        f"The object '{text}' does not exist in database '{machine.database.name}' or is invalid for this operation.",
    )


def parse_database(text: str) -> str:
    """Return the database part of a name; "" if it has none, or if the text is not a name."""
    try:
        return parse_name(text).database
    except TsqlError:
        return ""


def check_current_database(machine: Machine, database: str | None) -> None:
    """Refuse a name that begins with another database than the current one.

    Raises:
        TsqlError: 15250 another database.
    """
    if database and database.lower() != machine.database.name.lower():
        raise TsqlError(
            15250, "The database name component of the object qualifier must be the name of the current database."
        )


def _to_datetime(moment: datetime | None) -> datetime | None:
    """Return a moment as a datetime shows it: in UTC without a zone, to the millisecond."""
    if moment is None:
        return None
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


_FIND_IDENTITY = (
    "select c.name, tsql.identity_sequence($1, $2)::text, state.last_value, state.is_called from tsql.every_column c "
    "cross join lateral tsql.sequence_state(tsql.identity_sequence($1, $2)) state "
    "where c.object_id = $3 and c.is_identity"
)
_DBCC_COMPLETED = "DBCC execution completed. If DBCC printed error messages, contact your system administrator."


@defines("DBCC", "CHECKIDENT")
def _check_identity(machine: Machine, statement: Definition) -> None:
    """Run DBCC CHECKIDENT in the table's database: show the current value of an IDENTITY column, or set it.

    Raises:
        BrokerError: 911 no such database, 916 the session may not enter it.
        TsqlError: 2501 there is no such table, 7997 it has no IDENTITY column, 2560 the new value is NULL.
    """
    with machine.context.within(database_of(machine, statement.name)):
        _check_identity_in_current(machine, statement)


def _check_identity_in_current(machine: Machine, statement: Definition) -> None:
    machine.transactions.check_not_doomed()
    name = statement.name
    table = find_object(machine, name)
    if table is None or table.type != "U":
        raise TsqlError(2501, f'Cannot find a table or object with the name "{name}". Check the system catalog.')
    machine.authorize(Use("ALTER TABLE", table.schema, table.name))
    bracketed_name = bracketed(table.schema, table.name)
    rows = fetch(machine.connection, "catalog_procedures.check_identity_in_current", _FIND_IDENTITY, (
        machine.database.name, bracketed_name, table.object_id
    ))  # fmt: skip
    if not rows:
        raise TsqlError(7997, f"'{name}' does not contain an identity column.")
    column, sequence, last_value, is_called = rows[0]
    current = str(last_value) if is_called else "NULL"
    new_value, reseeds = statement.clauses["value"], statement.clauses["reseeds"]
    if new_value is not None:
        value = convert(*evaluate_operand(machine, new_value), BIGINT)
        if value is None:
            raise TsqlError(2560, "Parameter 3 is incorrect for this DBCC statement.")
        ((minimum,),) = fetch(
            machine.connection,
            "catalog_procedures.check_identity_in_current.find_least",
            "select seqmin from pg_sequence where seqrelid = $1::regclass",
            (sequence,),
        )
        lower_minimum = f"alter sequence {sequence} minvalue {value}; " if int(str(value)) < minimum else ""
        machine.queries.define(f"{lower_minimum}select setval({quote_string(sequence)}, {value}, {is_called})")
        message = f"Checking identity information: current identity value '{current}'."
    else:
        maximum = machine.queries.evaluate_scalar(f"(SELECT MAX({bracketed(column)}) FROM {bracketed_name})").value
        if reseeds and isinstance(maximum, int) and (not is_called or last_value < maximum):
            machine.queries.define(f"select setval({quote_string(sequence)}, {maximum})")
        highest = "NULL" if maximum is None else maximum
        message = (
            f"Checking identity information: current identity value '{current}', current column value '{highest}'."
        )
    if not statement.clauses["is_silent"]:
        machine.emit(Message(message))
        machine.emit(Message(_DBCC_COMPLETED))
    machine.record_success()


@system_procedure("sp_help")
def _sp_help(machine: Machine, statement: Execute) -> None:
    (name,) = bind_texts(machine, statement, ("@objname",))
    if name is None:
        machine.emit(machine.queries.fetch_result(
            "SELECT o.name AS Name, SCHEMA_NAME(o.schema_id) AS Owner, "
            "LOWER(REPLACE(o.type_desc, '_', ' ')) AS Object_type FROM sys.objects AS o ORDER BY o.name"
        ))  # fmt: skip
        return
    catalog_object = require_object(machine, name)
    headings = ("Name", "Owner", "Type", "Created_datetime")
    machine.emit(
        ResultSet(
            headings,
            [(catalog_object.name, catalog_object.schema, catalog_object.kind, _to_datetime(catalog_object.created))],
        )
    )
    columns = fetch(machine.connection, "catalog_procedures.sp_help", _LIST_COLUMNS, (catalog_object.object_id,))
    if not columns:
        return
    names = ("Column_name", "Type", "Computed", "Length", "Prec", "Scale", "Nullable")
    machine.emit(ResultSet(names, [tuple(row[:7]) for row in columns]))
    identities = [(column_name,) for column_name, *_, is_identity, _column_id in columns if is_identity]
    machine.emit(ResultSet(("Identity",), identities or [("No identity column defined.",)]))
    _emit_indexes(machine, catalog_object)


@system_procedure("sp_helpindex")
def _sp_helpindex(machine: Machine, statement: Execute) -> None:
    (name,) = bind_texts(machine, statement, ("@objname",), 1)
    _emit_indexes(machine, require_object(machine, name or ""))


def _emit_indexes(machine: Machine, catalog_object: CatalogObject) -> None:
    rows = fetch(machine.connection, "catalog_procedures.emit_indexes", _LIST_INDEXES, (catalog_object.object_id,))
    machine.emit(ResultSet(("index_name", "index_description", "index_keys"), [tuple(row) for row in rows]))


_TRIGGER_EVENTS = {"INSERT": 1, "UPDATE": 2, "DELETE": 3}  # types in sys.trigger_events
_FIRES_FOR = "(SELECT COUNT(*) FROM sys.trigger_events AS e WHERE e.object_id = t.object_id AND e.type = {})"


@system_procedure("sp_helptrigger")
def _sp_helptrigger(machine: Machine, statement: Execute) -> None:
    """Show the triggers of a table, or those for one kind of change.

    Raises:
        TsqlError: 15009 there is no such table, 15305 an unknown kind of change.
    """
    name, event = bind_texts(machine, statement, ("@tabname", "@triggertype"), 1)
    table = require_object(machine, name or "")
    if event is not None and event.upper() not in _TRIGGER_EVENTS:
        raise TsqlError(15305, "The @TriggerType parameter value must be 'insert', 'update', or 'delete'.")
    fires_for = {word: _FIRES_FOR.format(number) for word, number in _TRIGGER_EVENTS.items()}
    wanted = "" if event is None else f" AND {fires_for[event.upper()]} = 1"
    machine.emit(machine.queries.fetch_result(
        f"SELECT t.name AS trigger_name, 'dbo' AS trigger_owner, {fires_for['UPDATE']} AS isupdate, "
        f"{fires_for['DELETE']} AS isdelete, {fires_for['INSERT']} AS isinsert, "
        "CAST(1 - t.is_instead_of_trigger AS int) AS isafter, CAST(t.is_instead_of_trigger AS int) AS isinsteadof, "
        "OBJECT_SCHEMA_NAME(t.object_id) AS trigger_schema "
        f"FROM sys.triggers AS t WHERE t.parent_id = {table.object_id}{wanted} ORDER BY t.name"
    ))  # fmt: skip


@system_procedure("sp_columns")
def _sp_columns(machine: Machine, statement: Execute) -> None:
    """Show the columns of tables, without ODBC's numbers of types."""
    parameters = ("@table_name", "@table_owner", "@table_qualifier", "@column_name")
    table, owner, qualifier, column = bind_texts(machine, statement, parameters, 1)
    check_current_database(machine, qualifier)
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
    machine.emit(ResultSet(names, [tuple(row) for row in rows]))


@system_procedure("sp_tables")
def _sp_tables(machine: Machine, statement: Execute) -> None:
    parameters = ("@table_name", "@table_owner", "@table_qualifier", "@table_type")
    table, owner, qualifier, kinds = bind_texts(machine, statement, parameters)
    check_current_database(machine, qualifier)
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
    machine.emit(ResultSet(names, [tuple(row) for row in rows]))


@system_procedure("sp_databases")
def _sp_databases(machine: Machine, statement: Execute) -> None:
    bind_texts(machine, statement, ())
    machine.emit(machine.queries.fetch_result(
        "SELECT name AS DATABASE_NAME, CAST(NULL AS INT) AS DATABASE_SIZE, CAST(NULL AS VARCHAR(254)) AS REMARKS "
        "FROM sys.databases ORDER BY name"
    ))  # fmt: skip


@system_procedure("sp_spaceused")
def _sp_spaceused(machine: Machine, statement: Execute) -> None:
    """Show the size of a table or queue, or of the whole database.

    Raises:
        TsqlError: 15009 there is no such object, 15234 the object has no rows of its own.
    """
    name, _, _, _ = bind_texts(machine, statement, ("@objname", "@updateusage", "@mode", "@oneresultset"))
    if name is None:
        _emit_database_size(machine)
        return
    catalog_object = require_object(machine, name or "")
    if catalog_object.type not in ("U", "SQ"):
        raise TsqlError(15234, "Objects of this type have no space allocated.")
    ((count,),) = machine.queries.fetch_result(f"SELECT COUNT(*) FROM {_quoted_name(catalog_object)}").rows
    object_id = catalog_object.object_id
    if catalog_object.type == "SQ":
        ((object_id,),) = fetch(
            machine.connection,
            "catalog_procedures.sp_spaceused.find_queue",
            "select to_regclass('servicebroker.queue_' || $1::integer)::oid::bigint::integer",
            (object_id,),
        )
    ((total, data, indexes),) = fetch(
        machine.connection, "catalog_procedures.sp_spaceused.measure", _MEASURE_OBJECT, (object_id,)
    )
    machine.emit(
        ResultSet(
            ("name", "rows", *_SIZE_COLUMNS), [(catalog_object.name, str(count), *_format_sizes(total, data, indexes))]
        )
    )


_SIZE_COLUMNS = ("reserved", "data", "index_size", "unused")
_MEASURE_DATABASE = """
select coalesce(sum(pg_total_relation_size(own)), 0)::bigint, coalesce(sum(pg_table_size(own)), 0)::bigint,
       coalesce(sum(pg_indexes_size(own)), 0)::bigint
  from tsql.every_object o
 cross join lateral (select case o.type when 'SQ' then to_regclass('servicebroker.queue_' || o.object_id)
                                        else o.object_id::bigint::oid::regclass end as own) it
 where o.database_id = $1 and o.type in ('U', 'SQ')
"""


def _emit_database_size(machine: Machine) -> None:
    rows = fetch(
        machine.connection, "catalog_procedures.emit_database_size", _MEASURE_DATABASE, (machine.database.database_id,)
    )
    ((total, data, indexes),) = rows
    size = f"{total / 2**20:.2f} MB"
    headings = ("database_name", "database_size", "unallocated space")
    machine.emit(ResultSet(headings, [(machine.database.name, size, "0.00 MB")]))
    machine.emit(ResultSet(_SIZE_COLUMNS, [_format_sizes(total, data, indexes)]))


def _format_sizes(total: int, data: int, indexes: int) -> tuple[str, ...]:
    return tuple(f"{size // 1024} KB" for size in (total, data, indexes, total - data - indexes))


def _quoted_name(catalog_object: CatalogObject) -> str:
    return ".".join(quoted(str(part)) for part in (catalog_object.schema, catalog_object.name))
