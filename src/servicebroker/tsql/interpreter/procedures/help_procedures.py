"""sp_helpdb and sp_helpconstraint."""

from __future__ import annotations

from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.calls import system_procedure
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import bind_texts, require_object
from servicebroker.tsql.interpreter.statement_runner import decode_rows
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Execute
from servicebroker.tsql.translation.text_writer import quote_string

_LIST_DATABASES = (
    "SELECT name, CAST(NULL AS nvarchar(13)) AS db_size, SUSER_SNAME(owner_sid) AS owner, database_id AS dbid, "
    "CONVERT(nvarchar(11), create_date, 106) AS created, CONCAT('Status=', state_desc, ', Updateability=', "
    "CASE is_read_only WHEN 1 THEN 'READ_ONLY' ELSE 'READ_WRITE' END, ', UserAccess=MULTI_USER') AS status, "
    "compatibility_level FROM sys.databases"
)


@system_procedure("sp_helpdb")
def _sp_helpdb(machine: Machine, statement: Execute) -> None:
    """Show databases, without sizes, because the databases of an instance share PostgreSQL's files.

    Raises:
        TsqlError: 15010 there is no such database.
    """
    (name,) = bind_texts(machine, statement, ("@dbname",))
    if name is None:
        machine.emit(machine.queries.fetch_result(f"{_LIST_DATABASES} ORDER BY name"))
        return
    result = machine.queries.fetch_result(f"{_LIST_DATABASES} WHERE LOWER(name) = LOWER(N{quote_string(name)})")
    if not result.rows:
        raise TsqlError(
            15010, f"The database '{name}' does not exist. Supply a valid database name. To see available databases, "
            "use sys.databases."
        )  # fmt: skip
    machine.emit(result)


_LIST_CONSTRAINTS = """
with told as (
    select o.type, o.name, o.object_id, k.unique_index_id, f.referenced_object_id,
           coalesce(initcap(replace(f.delete_referential_action_desc, '_', ' ')), '(n/a)') as deleted,
           coalesce(initcap(replace(f.update_referential_action_desc, '_', ' ')), '(n/a)') as updated,
           case coalesce(f.is_disabled, c.is_disabled) when 1 then 'Disabled' when 0 then 'Enabled' else '(n/a)' end
           as enabled, coalesce(c.definition, d.definition) as definition,
           coalesce(c.parent_column_id, d.parent_column_id) as column_id
      from tsql.objects o
      left join tsql.key_constraints k using (object_id)
      left join tsql.foreign_keys f using (object_id)
      left join tsql.check_constraints c using (object_id)
      left join tsql.default_constraints d using (object_id)
     where o.parent_object_id = $1 and o.type in ('PK', 'UQ', 'F', 'C', 'D')
)
select case t.type when 'PK' then 'PRIMARY KEY (clustered)' when 'UQ' then 'UNIQUE (non-clustered)'
                   when 'F' then 'FOREIGN KEY' when 'D' then 'DEFAULT on column ' || own.name
                   else 'CHECK ' || coalesce('on column ' || own.name, 'Table Level') end,
       t.name, t.deleted, t.updated, t.enabled,
       case when t.enabled = '(n/a)' then '(n/a)' else 'Is_For_Replication' end, case t.type
       when 'F' then (select string_agg(c.name, ', ' order by p.constraint_column_id) from tsql.foreign_key_columns p
                        join tsql.every_column c on c.object_id = $1 and c.column_id = p.parent_column_id
                       where p.constraint_object_id = t.object_id)
       when 'C' then t.definition when 'D' then t.definition
       else (select string_agg(c.name, ', ' order by p.key_ordinal) from tsql.index_columns p
               join tsql.every_column c on c.object_id = $1 and c.column_id = p.column_id
              where p.object_id = $1 and p.index_id = t.unique_index_id and p.key_ordinal > 0) end,
       (select format('REFERENCES %s.%s.%s (%s)', r.broker_database, r.schema_name, r.name,
                      string_agg(c.name, ', ' order by p.constraint_column_id))
          from tsql.every_object r join tsql.foreign_key_columns p on p.constraint_object_id = t.object_id
          join tsql.every_column c on c.object_id = r.object_id and c.column_id = p.referenced_column_id
         where r.object_id = t.referenced_object_id group by r.broker_database, r.schema_name, r.name)
  from told t left join tsql.every_column own on own.object_id = $1 and own.column_id = t.column_id
 order by 1, 2
"""
_LIST_REFERRING_KEYS = (
    "select format('%s.%s.%s: %s', o.broker_database, o.schema_name, o.name, f.name) from tsql.foreign_keys f "
    "join tsql.every_object o on o.object_id = f.parent_object_id where f.referenced_object_id = $1 order by 1"
)


@system_procedure("sp_helpconstraint")
def _sp_helpconstraint(machine: Machine, statement: Execute) -> None:
    """Show the constraints of a table, and the foreign keys that reference it.

    Raises:
        TsqlError: 15009 there is no such table.
    """
    name, no_message = bind_texts(machine, statement, ("@objname", "@nomsg"), 1)
    table = require_object(machine, name or "")
    has_messages = (no_message or "").lower() != "nomsg"
    if has_messages:
        machine.emit(ResultSet(("Object Name",), [(name,)]))
    rows = []
    constraints = fetch(
        machine.connection, "help_procedures.sp_helpconstraint.find", _LIST_CONSTRAINTS, (table.object_id,)
    )
    for row in decode_rows(constraints):
        *columns, references = row
        rows.append(tuple(columns))
        if references is not None:
            rows.append((" ", " ", " ", " ", " ", " ", references))
    names = ("constraint_type", "constraint_name", "delete_action", "update_action", "status_enabled",
             "status_for_replication", "constraint_keys")  # fmt: skip
    if rows:
        machine.emit(ResultSet(names, rows))
    elif has_messages:
        machine.emit(Message(f"No constraints are defined on object '{name}', or you do not have permissions.", 15469))
    referring = fetch(
        machine.connection, "help_procedures.sp_helpconstraint.find_referring", _LIST_REFERRING_KEYS, (table.object_id,)
    )
    if referring:
        machine.emit(ResultSet(("Table is referenced by foreign key",), [tuple(row) for row in referring]))
    elif has_messages:
        message = f"No foreign keys reference table '{name}', or you do not have permissions on referencing tables."
        machine.emit(Message(message, 15470))
