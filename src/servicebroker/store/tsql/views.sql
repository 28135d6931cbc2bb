-- Catalog views for T-SQL scripts that the schema sys lacks, or has with fewer columns. Like those of sys they show the
-- database of the setting servicebroker.database. Every migration drops and creates them, since only T-SQL reads them.

drop view if exists
    tsql.sysusers, tsql.sql_logins, tsql.database_principals, tsql.syslogins, tsql.server_principals, tsql.filegroups, tsql.master_files, tsql.routes, tsql.dm_db_file_space_usage, tsql.dm_os_waiting_tasks, tsql.every_schema, tsql.every_object, tsql.every_column, tsql.every_index, tsql.types, tsql.system_types, tsql.sql_modules cascade;

-- The first line of a relation's comment is its T-SQL name. For a view, the next lines are the text of its CREATE VIEW.
create or replace function tsql.noted_name(relation oid) returns text language sql stable strict parallel safe
return split_part(obj_description(relation, 'pg_class'), E'\n', 1);
create or replace function tsql.noted_text(relation oid) returns text language sql stable strict parallel safe
return substring(obj_description(relation, 'pg_class') from E'^[^\n]*\n(.*)$');
-- The definition of a module with CREATE in place of ALTER, as SQL Server shows it.
create or replace function tsql.as_created(definition text) returns text language sql immutable strict parallel safe
return regexp_replace(definition, '^(create\s+or\s+)?alter\M', 'CREATE', 'i');

-- The schemas of each broker database; dbo always exists.
create view tsql.every_schema with (security_invoker = true) as
select d.database_id, d.name as broker_database, 'dbo' as name, 1 as schema_id, lower(d.name || '_dbo') as postgres_schema
  from servicebroker.databases d
 union all
select d.database_id, d.name, coalesce(obj_description(n.oid, 'pg_namespace'), substr(n.nspname, length(d.name) + 2)),
       n.oid::bigint::integer, n.nspname
  from servicebroker.databases d
  join pg_namespace n on starts_with(n.nspname, lower(d.name) || '_') and n.nspname <> lower(d.name) || '_dbo';

create view tsql.every_object with (security_invoker = true) as
select s.database_id, s.broker_database, s.postgres_schema, s.name as schema_name, s.schema_id,
       coalesce(tsql.noted_name(c.oid), c.relname) as name, c.oid::bigint::integer as object_id,
       case c.relkind when 'v' then 'V' when 'S' then 'SO' else 'U' end as type,
       null::integer as principal_id, 0 as parent_object_id,
       null::timestamptz as create_date, null::timestamptz as modify_date, 0::smallint as is_ms_shipped
  from tsql.every_schema s
  join pg_namespace n on n.nspname = s.postgres_schema
  join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p', 'v', 'S')
 where not exists (select from servicebroker.queues q where q.postgres_schema = n.nspname and q.postgres_name = c.relname)
   and not exists (select from pg_depend i where i.objid = c.oid and i.deptype = 'i')
 union all
select s.database_id, s.broker_database, s.postgres_schema, s.name, s.schema_id, q.name, q.queue_id, 'SQ',
       nullif(q.owner_id, 1), 0, q.create_date, q.modify_date, (q.queue_id < 65536)::integer::smallint
  from servicebroker.queues q
  join tsql.every_schema s on s.database_id = q.database_id and s.postgres_schema = q.postgres_schema
 union all
select s.database_id, s.broker_database, s.postgres_schema, s.name, s.schema_id, m.name, m.module_id, m.kind,
       null, coalesce(to_regclass(m.parent_table)::oid::bigint::integer, 0), m.create_date, m.modify_date, 0::smallint
  from servicebroker.tsql_modules m
  join tsql.every_schema s on s.database_id = m.database_id and lower(s.name) = lower(m.schema_name)
 union all  -- keys and constraints of tables
select s.database_id, s.broker_database, s.postgres_schema, s.name, s.schema_id,
       coalesce(split_part(obj_description(k.oid, 'pg_constraint'), E'\n', 1), k.conname),
       k.oid::bigint::integer, case when k.contype = 'p' then 'PK' when k.contype = 'u' then 'UQ'
                                    when k.contype = 'f' or obj_description(k.oid, 'pg_constraint') ~ E'\nFOREIGN KEY' then 'F' else 'C' end,
       null, k.conrelid::bigint::integer, null, null, 0::smallint
  from tsql.every_schema s
  join pg_namespace n on n.nspname = s.postgres_schema
  join pg_constraint k on k.connamespace = n.oid and k.contype in ('p', 'u', 'f', 'c') and k.conrelid <> 0
 union all  -- a default has no name in PostgreSQL: its name is the second line of the column's comment
select s.database_id, s.broker_database, s.postgres_schema, s.name, s.schema_id,
       coalesce(nullif(substring(col_description(d.adrelid, d.adnum) from '^\w+(?:\([^)]*\))? [^\n]*\n([^\n]*)'), ''),
                'DF_' || coalesce(obj_description(c.oid, 'pg_class'), c.relname) || '_' || a.attname),
       d.oid::bigint::integer, 'D', null, c.oid::bigint::integer, null, null, 0::smallint
  from tsql.every_schema s
  join pg_namespace n on n.nspname = s.postgres_schema
  join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p')
  join pg_attrdef d on d.adrelid = c.oid
  join pg_attribute a on a.attrelid = c.oid and a.attnum = d.adnum and a.attgenerated = ''
 union all  -- the tables of the queues, whose numbers of rows sys.partitions shows
select q.database_id, d.name, 'sys', 'sys', 4, 'queue_messages_' || q.queue_id, c.oid::bigint::integer, 'IT',
       null, q.queue_id, q.create_date, q.modify_date, 1::smallint
  from servicebroker.queues q
  join servicebroker.databases d using (database_id)
  join pg_class c on c.relnamespace = 'servicebroker'::regnamespace and c.relname = 'queue_' || q.queue_id
 union all  -- the transmission queue, for its number of rows
select d.database_id, d.name, 'sys', 'sys', 4, 'sysxmitqueue', 68, 'S', null, 0, null, null, 1::smallint from servicebroker.databases d;

create view tsql.shown_objects with (security_invoker = true) as
select o.name, o.object_id, o.principal_id, o.schema_id, o.parent_object_id, o.type,
       case o.type when 'U' then 'USER_TABLE' when 'V' then 'VIEW' when 'SQ' then 'SERVICE_QUEUE' when 'P' then 'SQL_STORED_PROCEDURE'
                   when 'FN' then 'SQL_SCALAR_FUNCTION' when 'IF' then 'SQL_INLINE_TABLE_VALUED_FUNCTION'
                   when 'TF' then 'SQL_TABLE_VALUED_FUNCTION'
                   when 'TR' then 'SQL_TRIGGER' when 'SO' then 'SEQUENCE_OBJECT' when 'IT' then 'INTERNAL_TABLE'
                   when 'S' then 'SYSTEM_TABLE' when 'SN' then 'SYNONYM'
                   when 'PK' then 'PRIMARY_KEY_CONSTRAINT' when 'UQ' then 'UNIQUE_CONSTRAINT'
                   when 'F' then 'FOREIGN_KEY_CONSTRAINT' when 'C' then 'CHECK_CONSTRAINT'
                   when 'D' then 'DEFAULT_CONSTRAINT' end as type_desc,
       o.create_date, o.modify_date, o.is_ms_shipped, o.schema_name, o.broker_database
  from tsql.every_object o
  join servicebroker.shown_databases shown using (database_id);

create view tsql.objects with (security_invoker = true) as
select name, object_id, principal_id, schema_id, parent_object_id, type, type_desc, create_date, modify_date, is_ms_shipped,
       broker_database from tsql.shown_objects;
-- Some scripts only use the many rows of this view. System objects are the functions of PostgreSQL, with negative ids.
create view tsql.all_objects with (security_invoker = true) as
select * from tsql.shown_objects
 union all
select p.proname, -p.oid::bigint::integer, null, 4, 0, 'FN', 'SQL_SCALAR_FUNCTION', null, null, 1::smallint, 'sys', shown.name
  from servicebroker.shown_databases join servicebroker.databases shown using (database_id), pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace;
create view tsql.tables with (security_invoker = true) as select * from tsql.objects where type = 'U';
create view tsql.views with (security_invoker = true) as select * from tsql.objects where type = 'V';
-- The views of sys that T-SQL reads here. Drivers ask which of them exist.
create or replace view tsql.system_views with (security_invoker = true) as
select c.relname as name, min(-c.oid::bigint)::integer as object_id, null::integer as principal_id, 4 as schema_id, 0 as parent_object_id,
       'V'::text as type, 'VIEW'::text as type_desc, null::timestamp as create_date, null::timestamp as modify_date, 1::smallint as is_ms_shipped
  from pg_class c
 where c.relkind = 'v' and c.relnamespace in ('sys'::regnamespace, 'tsql'::regnamespace)
   and c.relname !~ '^(every|shown|own|information_schema)_' group by c.relname;
create view tsql.procedures with (security_invoker = true) as select * from tsql.objects where type = 'P';
create view tsql.internal_tables with (security_invoker = true) as
select o.*, 201::smallint as internal_type, 'QUEUE_MESSAGES'::text as internal_type_desc from tsql.objects o where o.type = 'IT';
-- The number of rows: exact up to 10,000, because scripts query it right after SEND; beyond that from PostgreSQL's
-- statistics.
create or replace function tsql.rows_of(relation oid) returns bigint language plpgsql stable parallel safe as $$
declare
    found bigint;
begin
    -- a condition on the count may be asked before the one that leaves tables alone
    if not exists (select from pg_class c where c.oid = relation and c.relkind in ('r', 'p', 'f')) then return null; end if;
    if has_table_privilege(relation, 'select') is distinct from true then return pg_stat_get_live_tuples(relation); end if;
    execute format('select count(*) from (select from %s limit 10001) few', relation::regclass) into found;
    return case when found > 10000 then greatest(found, pg_stat_get_live_tuples(relation)) else found end;
end $$;
-- A table has one row, that of its primary key or, without one, of the heap.
create view tsql.partitions with (security_invoker = true) as
select o.object_id as partition_id, o.object_id,
       (o.type <> 'U' or exists (select from pg_index i where i.indrelid = o.object_id::bigint::oid and i.indisprimary))::integer as index_id,
       1 as partition_number,
       case o.type when 'S' then (select count(*) from sys.transmission_queue) else tsql.rows_of(o.object_id::bigint::oid) end as rows,
       o.object_id::bigint as hobt_id, 0::smallint as filestream_filegroup_id, 0::smallint as data_compression, 'NONE'::text as data_compression_desc,
       o.broker_database from tsql.objects o where o.type in ('U', 'IT', 'S');
create view tsql.dm_db_partition_stats with (security_invoker = true) as
select p.partition_id, p.object_id, p.index_id, p.partition_number, p.rows as row_count,
       pages.used as in_row_data_page_count, pages.used as in_row_used_page_count, pages.used as used_page_count, pages.used as reserved_page_count,
       pages.used as in_row_reserved_page_count, 0::bigint as lob_used_page_count, 0::bigint as lob_reserved_page_count,
       0::bigint as row_overflow_used_page_count, 0::bigint as row_overflow_reserved_page_count, p.broker_database
  from tsql.partitions p, lateral (select coalesce(pg_total_relation_size(p.object_id::bigint::oid::regclass), 0) / 8192 as used) pages;
create view tsql.allocation_units with (security_invoker = true) as
select p.partition_id::bigint as allocation_unit_id, 1::smallint as type, 'IN_ROW_DATA'::text as type_desc, p.partition_id::bigint as container_id,
       1 as data_space_id, p.reserved_page_count as total_pages, p.used_page_count as used_pages, p.in_row_data_page_count as data_pages,
       p.broker_database
  from tsql.dm_db_partition_stats p;
create view tsql.sql_modules with (security_invoker = true) as
select o.object_id, tsql.as_created(coalesce(m.definition, tsql.noted_text(o.object_id::bigint::oid))) as definition, 1::smallint as uses_ansi_nulls,
       1::smallint as uses_quoted_identifier, 0::smallint as is_schema_bound, 0::smallint as uses_database_collation, 0::smallint as is_recompiled,
       0::smallint as null_on_null_input,
       case m.execute_as when 'CALLER' then null when 'OWNER' then -2 else (select p.principal_id from sys.database_principals p
             where p.broker_database = o.broker_database and p.name = case m.execute_as when 'SELF' then m.creator else m.execute_as end)
       end as execute_as_principal_id, o.broker_database
  from tsql.objects o left join servicebroker.tsql_modules m on m.module_id = o.object_id and o.type <> 'V'
 where o.type in ('P', 'TR', 'FN', 'IF', 'TF', 'V');
create view tsql.synonyms with (security_invoker = true) as
select o.name, o.object_id, o.principal_id, o.schema_id, o.parent_object_id, o.type, o.type_desc, o.create_date, o.modify_date,
       o.is_ms_shipped, 0::smallint as is_published, 0::smallint as is_schema_published, m.definition as base_object_name, o.broker_database
  from tsql.objects o join servicebroker.tsql_modules m on m.module_id = o.object_id where o.type = 'SN';
create view tsql.triggers with (security_invoker = true) as
select o.name, o.object_id, 1::smallint as parent_class, 'OBJECT_OR_COLUMN' as parent_class_desc, o.parent_object_id as parent_id,
       o.type, o.type_desc, o.create_date, o.modify_date, o.is_ms_shipped, m.is_disabled::integer::smallint as is_disabled,
       0::smallint as is_not_for_replication, (m.definition ~* '^\s*(create\s+or\s+alter|create|alter)\s+trigger\s[^''-]*?\minstead\s+of\M')::integer::smallint as is_instead_of_trigger,
       o.broker_database
  from tsql.objects o join servicebroker.tsql_modules m on m.module_id = o.object_id where o.type = 'TR';
create view tsql.schemas with (security_invoker = true) as
select s.name, s.schema_id, 1 as principal_id, s.broker_database
  from tsql.every_schema s join servicebroker.shown_databases shown using (database_id);
-- schema_id is that of sys.schemas: 1 for dbo.
create or replace view tsql.service_queues with (security_invoker = true) as
select q.name, q.object_id, q.principal_id,
       case when n.nspname is null or n.nspname = lower(q.broker_database || '_dbo') then 1 else q.schema_id end as schema_id,
       q.parent_object_id, q.type, q.type_desc, q.create_date, q.modify_date, q.is_ms_shipped, q.is_published, q.is_schema_published,
       q.max_readers, q.activation_procedure, q.execute_as_principal_id, q.is_activation_enabled, q.is_receive_enabled,
       q.is_enqueue_enabled, q.is_retention_enabled, q.is_poison_message_handling_enabled, q.broker_database
  from sys.service_queues q left join pg_namespace n on n.oid = q.schema_id::bigint::oid;
create view tsql.sysobjects with (security_invoker = true) as
select o.name, o.object_id as id, o.type as xtype, o.schema_id as uid, o.type, o.create_date as crdate, o.parent_object_id as parent_obj,
       o.create_date as refdate, 0 as status, o.is_ms_shipped::integer * 2 as category, 0 as info, 0 as version, o.broker_database
  from tsql.objects o;

create view tsql.system_types with (security_invoker = true) as
select name, number as system_type_id, number as user_type_id, 4 as schema_id, size::smallint as max_length
  from (values ('image', 34, 16), ('text', 35, 16), ('uniqueidentifier', 36, 16), ('date', 40, 3), ('time', 41, 5), ('datetime2', 42, 8),
               ('datetimeoffset', 43, 10), ('tinyint', 48, 1), ('smallint', 52, 2), ('int', 56, 4), ('smalldatetime', 58, 4),
               ('real', 59, 4), ('money', 60, 8), ('datetime', 61, 8), ('float', 62, 8), ('ntext', 99, 16), ('bit', 104, 1),
               ('decimal', 106, 17), ('numeric', 108, 17), ('smallmoney', 122, 4), ('bigint', 127, 8), ('varbinary', 165, 8000),
               ('varchar', 167, 8000), ('binary', 173, 8000), ('char', 175, 8000), ('nvarchar', 231, 8000), ('nchar', 239, 8000), ('sql_variant', 98, 8016),
               ('xml', 241, -1), ('sysname', 256, 256)) t(name, number, size);
-- Values are sql_variant. A smallint sequence with the bounds of tinyint is shown as tinyint. No sequence is cached.
create view tsql.sequences with (security_invoker = true) as
select o.name, o.object_id, o.principal_id, o.schema_id, o.parent_object_id, o.type, o.type_desc, o.create_date, o.modify_date,
       o.is_ms_shipped, 0::smallint as is_published, 0::smallint as is_schema_published,
       of.name || ':' || s.seqstart as start_value, of.name || ':' || s.seqincrement as increment,
       of.name || ':' || s.seqmin as minimum_value, of.name || ':' || s.seqmax as maximum_value,
       s.seqcycle::integer::smallint as is_cycling, 0::smallint as is_cached, null::integer as cache_size,
       t.system_type_id, t.user_type_id, of.digits::smallint as precision, 0::smallint as scale,
       of.name || ':' || now.last_value as current_value,
       (now.is_called and not s.seqcycle and now.last_value::numeric + s.seqincrement not between s.seqmin and s.seqmax)::integer::smallint
           as is_exhausted,
       case when now.is_called then of.name || ':' || now.last_value end as last_used_value, o.broker_database
  from tsql.objects o
  join pg_sequence s on s.seqrelid = o.object_id::bigint::oid
 cross join lateral tsql.sequence_state(s.seqrelid) now
  join lateral (values (case when s.seqmin = 0 and s.seqmax = 255 then 'tinyint' else 'smallint' end, 'int2', 5), ('int', 'int4', 10),
                       ('bigint', 'int8', 19)) of(name, own, digits) on of.own::regtype = s.seqtypid
  left join tsql.system_types t on t.name = of.name
 where o.type = 'SO';
create view tsql.types with (security_invoker = true) as
select name, system_type_id, user_type_id, schema_id, max_length, 1::smallint as is_nullable, 0::smallint as is_user_defined,
       0::smallint as is_table_type from tsql.system_types
 union all
select t.name, case when t.is_table then 243 else named.system_type_id end, t.type_id, s.schema_id,
       case when t.is_table then -1::smallint else tsql.column_bytes(base.parts[1], coalesce(base.parts[2], '')) end,
       t.is_nullable::integer::smallint, 1::smallint, t.is_table::integer::smallint
  from servicebroker.tsql_types t
  join servicebroker.shown_databases shown using (database_id)
  join tsql.every_schema s on s.database_id = t.database_id and lower(s.name) = lower(t.schema_name)
 cross join lateral (select regexp_match(t.definition, '^(\w+)(?:\(([^)]*)\))?$') as parts) base
  left join tsql.system_types named on named.name = base.parts[1];

create view tsql.parameters with (security_invoker = true) as
select o.object_id, said.one ->> 0 as name, case when said.one ->> 0 = '' then 0 else place - (o.type = 'FN')::integer end::integer as parameter_id,
       t.system_type_id, t.user_type_id,
       case when t.is_user_defined = 1 then t.max_length else tsql.column_bytes(said.of[1], coalesce(said.of[2], '')) end as max_length,
       case when said.of[1] = 'decimal' then split_part(said.of[2], ',', 1)::smallint else 0::smallint end as precision,
       case when said.of[1] = 'decimal' then split_part(said.of[2], ',', 2)::smallint else 0::smallint end as scale,
       (said.one ->> 2)::boolean::integer::smallint as is_output, 0::smallint as is_cursor_ref, (said.one ->> 3)::boolean::integer::smallint as has_default_value,
       null::text as default_value, t.is_table_type as is_readonly, o.broker_database
  from tsql.objects o
  join servicebroker.tsql_modules m on m.module_id = o.object_id
 cross join lateral (select one, regexp_match(one ->> 1, '^(\w+)(?:\(([^)]*)\))?$') as of, place
                       from jsonb_array_elements(m.parameters) with ordinality e(one, place)) said
  left join tsql.types t on lower(t.name) = lower(coalesce(said.of[1], said.one ->> 1));
create view tsql.information_schema_parameters with (security_invoker = true) as
select o.broker_database as specific_catalog, o.schema_name as specific_schema, o.name as specific_name, p.parameter_id as ordinal_position,
       case when p.parameter_id = 0 then 'OUT' when p.is_output = 1 then 'INOUT' else 'IN' end as parameter_mode,
       case when p.parameter_id = 0 then 'YES' else 'NO' end as is_result, p.name as parameter_name, t.name as data_type,
       case when t.name in ('nvarchar', 'nchar') and p.max_length > 0 then p.max_length / 2
            when t.name in ('nvarchar', 'nchar', 'varchar', 'char', 'varbinary', 'binary') then p.max_length end as character_maximum_length
  from tsql.shown_objects o join tsql.parameters p using (object_id)
  join tsql.system_types t on t.system_type_id = p.system_type_id and t.name <> 'sysname';
-- The comment of a column has its T-SQL type and spelling (translation/table_columns.py). Columns of queues have the
-- types of RECEIVE.
create view tsql.every_column with (security_invoker = true) as
select o.database_id, o.broker_database, o.schema_name, o.name as table_name, o.object_id, coalesce(said.name, a.attname) as name, a.attnum::integer as column_id,
       coalesce(said.type, received.type, case t.typname when 'uuid' then 'uniqueidentifier' when 'bytea' then 'varbinary' when 'int4' then 'int'
                when 'int2' then 'smallint' when 'int8' then 'bigint' when 'timestamptz' then 'datetime' when 'timestamp' then 'datetime2'
                when 'numeric' then 'decimal' when 'float8' then 'float' when 'float4' then 'real' when 'date' then 'date' when 'time' then 'time'
                else 'nvarchar' end) as type_name,
       coalesce(said.size, received.size, '') as size, not a.attnotnull as is_nullable, a.attidentity <> '' as is_identity, a.attgenerated <> '' as is_computed,
       tsql.column_bytes(coalesce(said.type, received.type, t.typname), coalesce(said.size, received.size, '')) as max_length,
       case when coalesce(said.type, received.type, t.typname) in ('char', 'varchar', 'nchar', 'nvarchar', 'text', 'ntext', 'sysname', 'bpchar')
            then coalesce(said.collation_name, (select d.collation_name from servicebroker.databases d where d.database_id = o.database_id)) end
           as collation_name
  from tsql.every_object o
  left join servicebroker.queues q on o.type = 'SQ' and q.queue_id = o.object_id
  join pg_attribute a
    on a.attrelid = case when q.queue_id is null then o.object_id::bigint::oid
                         else to_regclass(quote_ident(q.postgres_schema) || '.' || quote_ident(q.postgres_name)) end
   and a.attnum > 0 and not a.attisdropped
  left join (values ('status', 'tinyint', ''), ('priority', 'tinyint', ''), ('service_name', 'nvarchar', '512'),
                    ('service_contract_name', 'nvarchar', '256'), ('message_type_name', 'nvarchar', '256'),
                    ('validation', 'nchar', '2'), ('message_body', 'varbinary', 'max')) received(name, type, size)
    on o.type = 'SQ' and received.name = a.attname
  join pg_type t on t.oid = a.atttypid
  left join lateral (
       select m[1] as type, m[2] as size, m[3] as name, nullif(m[4], '') as collation_name
         from regexp_match(col_description(a.attrelid, a.attnum), '^(\w+)(?:\(([^)]*)\))? ([^\n]*)(?:\n[^\n]*)?(?:\n(\w*))?') m) said on true
 where o.type in ('U', 'V', 'SQ');

create view tsql.columns with (security_invoker = true) as
select c.object_id, c.name, c.column_id, t.system_type_id, t.user_type_id, c.max_length,
       tsql.column_precision(c.type_name, c.size) as precision, tsql.column_scale(c.type_name, c.size) as scale,
       c.is_nullable::integer::smallint as is_nullable, c.is_identity::integer::smallint as is_identity,
       c.is_computed::integer::smallint as is_computed,
       coalesce((select d.oid::bigint::integer from pg_attrdef d where d.adrelid = c.object_id::bigint::oid and d.adnum = c.column_id and not c.is_computed), 0)
           as default_object_id,
       0::smallint as is_sparse, c.collation_name, c.broker_database
  from tsql.every_column c
  join servicebroker.shown_databases shown using (database_id)
  left join tsql.system_types t on t.name = c.type_name;
create view tsql.all_columns with (security_invoker = true) as
select * from tsql.columns
 union all  -- system columns, as in all_objects
select -a.attrelid::bigint::integer, a.attname, a.attnum::integer, null, null, null, 0, 0, 0::smallint, 0::smallint, 0::smallint, 0, 0::smallint, null,
       shown.name
  from servicebroker.shown_databases join servicebroker.databases shown using (database_id), pg_attribute a
  join pg_class c on c.oid = a.attrelid and c.relnamespace = 'pg_catalog'::regnamespace
 where a.attnum > 0 and not a.attisdropped;
create view tsql.identity_columns with (security_invoker = true) as select * from tsql.columns where is_identity = 1;
-- The number of an index within its table: 1 is the primary key, 0 a heap.
create or replace function tsql.index_number(id oid) returns integer language sql stable strict parallel safe
return (select case when i.indisprimary then 1
               else 1 + (select count(*) from pg_index other where other.indrelid = i.indrelid and not other.indisprimary
                            and other.indexrelid <= i.indexrelid)::integer end
          from pg_index i where i.indexrelid = id);
create view tsql.every_index with (security_invoker = true) as
select i.indrelid::bigint::integer as object_id, coalesce(obj_description(c.oid, 'pg_class'), (select obj_description(k.oid, 'pg_constraint') from pg_constraint k
                 where k.conindid = c.oid and k.contype in ('p', 'u') limit 1), c.relname::text) as name, tsql.index_number(i.indexrelid) as index_id,
       i.indisunique::integer::smallint as is_unique, i.indisprimary::integer::smallint as is_primary_key, o.broker_database,
       (case when i.indisprimary then 1 else 2 end)::smallint as type, case when i.indisprimary then 'CLUSTERED' else 'NONCLUSTERED' end as type_desc,
       1 as data_space_id, exists (select from pg_constraint u where u.conindid = i.indexrelid and u.contype = 'u')::integer::smallint as is_unique_constraint,
       0::smallint as fill_factor, 0::smallint as is_disabled, (i.indpred is not null)::integer::smallint as has_filter,
       pg_get_expr(i.indpred, i.indrelid) as filter_definition, i.indexrelid as postgres_index
  from tsql.objects o join pg_index i on i.indrelid = o.object_id::bigint::oid join pg_class c on c.oid = i.indexrelid
 where obj_description(c.oid, 'pg_class') is distinct from 'folded';  -- of a key that ignores case (tsql.fold_keys)
create view tsql.indexes with (security_invoker = true) as
select i.object_id, i.name, i.index_id, i.is_unique, i.is_primary_key, i.broker_database, i.type, i.type_desc, i.data_space_id, i.is_unique_constraint,
       i.fill_factor, i.is_disabled, i.has_filter, i.filter_definition, 0::smallint as ignore_dup_key, 0::smallint as is_padded,
       0::smallint as is_hypothetical, 1::smallint as allow_row_locks, 1::smallint as allow_page_locks, 0::smallint as auto_created
  from tsql.every_index i
 union all  -- a table without a primary key is a heap; that of a queue has a clustered index in SQL Server
select o.object_id, case q.is_queue when 1 then 'queue_clustered_index' end, q.is_queue, 0::smallint, 0::smallint, o.broker_database,
       q.is_queue::smallint, case q.is_queue when 1 then 'CLUSTERED' else 'HEAP' end, 1, 0::smallint, 0::smallint, 0::smallint, 0::smallint,
       null, 0::smallint, 0::smallint, 0::smallint, 1::smallint, 1::smallint, 0::smallint
  from tsql.objects o, lateral (select (o.type = 'IT')::integer as is_queue) q
 where o.type in ('U', 'IT') and not exists (select from pg_index i where i.indrelid = o.object_id::bigint::oid and i.indisprimary);

create view tsql.information_schema_tables with (security_invoker = true) as
select o.broker_database as table_catalog, o.schema_name as table_schema, o.name as table_name,
       case o.type when 'V' then 'VIEW' else 'BASE TABLE' end as table_type
  from tsql.shown_objects o where o.type in ('U', 'V');
create view tsql.information_schema_views with (security_invoker = true) as
select o.broker_database as table_catalog, o.schema_name as table_schema, o.name as table_name,
       tsql.as_created(tsql.noted_text(o.object_id::bigint::oid)) as view_definition, 'NONE' as check_option, 'NO' as is_updatable
  from tsql.shown_objects o where o.type = 'V';
create view tsql.information_schema_columns with (security_invoker = true) as
select c.broker_database as table_catalog, c.schema_name as table_schema, c.table_name, c.name as column_name, c.column_id as ordinal_position,
       case when c.is_nullable then 'YES' else 'NO' end as is_nullable, c.type_name as data_type,
       case when c.size = 'max' then -1 when c.type_name in ('char', 'varchar', 'nchar', 'nvarchar', 'binary', 'varbinary') then nullif(c.size, '')::integer end
           as character_maximum_length,
       (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d
         where d.adrelid = c.object_id::bigint::oid and d.adnum = c.column_id and not c.is_computed) as column_default,
       case when c.type_name in ('char', 'varchar', 'nchar', 'nvarchar', 'binary', 'varbinary') then c.max_length::integer end as character_octet_length,
       case when c.type_name = 'decimal' then split_part(c.size, ',', 1)::integer
            when c.type_name in ('tinyint', 'smallint', 'int', 'bigint', 'money', 'smallmoney', 'float', 'real') then tsql.type_precision(c.type_name) end
           as numeric_precision,
       case when c.type_name = 'decimal' then split_part(c.size, ',', 2)::integer
            when c.type_name in ('tinyint', 'smallint', 'int', 'bigint', 'money', 'smallmoney') then tsql.type_scale(c.type_name) end as numeric_scale,
       case when c.type_name in ('date', 'smalldatetime') then 0 when c.type_name = 'datetime' then 3
            when c.type_name in ('datetime2', 'time', 'datetimeoffset') then coalesce(nullif(c.size, '')::integer, 7) end as datetime_precision,
       c.collation_name
  from tsql.every_column c join servicebroker.shown_databases shown using (database_id)
 where not exists (select from servicebroker.queues q where q.queue_id = c.object_id);
create view tsql.information_schema_routines with (security_invoker = true) as
select o.broker_database as routine_catalog, o.schema_name as routine_schema, o.name as routine_name,
       case o.type when 'P' then 'PROCEDURE' else 'FUNCTION' end as routine_type, tsql.as_created(m.definition) as routine_definition,
       o.create_date as created, o.modify_date as last_altered
  from tsql.all_objects o join servicebroker.tsql_modules m on m.module_id = o.object_id where o.type in ('P', 'FN', 'IF', 'TF');
create view tsql.information_schema_schemata with (security_invoker = true) as
select s.broker_database as catalog_name, s.name as schema_name from tsql.schemas s;

-- --- the instance ---

-- Null for a role that may not read master keys. It may still read the view of databases.
create or replace function tsql.has_open_master_key(id integer) returns boolean language plpgsql stable parallel safe as $$
begin
    if not has_table_privilege('servicebroker.master_keys', 'select') then return null; end if;
    return exists (select from servicebroker.master_keys k where k.database_id = id and k.by_service_master_key is not null);
end $$;

create or replace view tsql.databases with (security_invoker = true) as
select d.*, 0::smallint as containment, 'NONE'::text as containment_desc, null::uuid as replica_id, null::uuid as group_database_id,
       null::integer as resource_pool_id, 2::smallint as page_verify_option, 'CHECKSUM'::text as page_verify_option_desc,
       0::smallint as delayed_durability, 'DISABLED'::text as delayed_durability_desc, 60 as target_recovery_time_in_seconds,
       1033::smallint as default_language_lcid, 'us_english'::text as default_language_name,
       1::smallint as is_ansi_nulls_on, 1::smallint as is_ansi_padding_on, 1::smallint as is_ansi_warnings_on, 1::smallint as is_arithabort_on,
       1::smallint as is_concat_null_yields_null_on, 1::smallint as is_quoted_identifier_on, 1::smallint as is_ansi_null_default_on,
       1::smallint as is_auto_create_stats_on, 1::smallint as is_auto_update_stats_on, 0::smallint as is_auto_update_stats_async_on,
       0::smallint as is_auto_create_stats_incremental_on, 0::smallint as is_cleanly_shutdown, 0::smallint as is_cursor_close_on_commit_on,
       0::smallint as is_date_correlation_on, 0::smallint as is_distributor, 0::smallint as is_fulltext_enabled, 0::smallint as is_in_standby,
       0::smallint as is_local_cursor_default, 0::smallint as is_memory_optimized_elevate_to_snapshot_on, 0::smallint as is_merge_published,
       0::smallint as is_mixed_page_allocation_on, 1::smallint as is_nested_triggers_on, 0::smallint as is_numeric_roundabort_on,
       0::smallint as is_parameterization_forced, 0::smallint as is_published, 0::smallint as is_query_store_on,
       0::smallint as is_recursive_triggers_on, 0::smallint as is_subscribed, 0::smallint as is_supplemental_logging_enabled,
       0::smallint as is_sync_with_backup, 0::smallint as is_temporal_history_retention_enabled, 0::smallint as is_transform_noise_words_on,
       0::smallint as is_accelerated_database_recovery_on
  from (
select d.name, sys.shown_database_id(d.database_id, d.name) as database_id, null::integer as source_database_id, 160::smallint as compatibility_level,
       d.collation_name, 0::smallint as user_access, 'MULTI_USER'::text as user_access_desc,
       d.is_read_only::integer::smallint as is_read_only, 0::smallint as state, 'ONLINE'::text as state_desc, 1::smallint as recovery_model, 'FULL'::text as recovery_model_desc,
       d.service_broker_guid,
       (d.is_broker_enabled or d.is_read_only and d.broker_when_writable)::integer::smallint as is_broker_enabled,
       d.is_honor_broker_priority_on::integer::smallint as is_honor_broker_priority_on, d.create_date,
       d.is_trustworthy_on::integer::smallint as is_trustworthy_on,
       tsql.has_open_master_key(d.database_id)::integer::smallint as is_master_key_encrypted_by_server, '\x01'::bytea as owner_sid,
       1::smallint as is_read_committed_snapshot_on, 1::smallint as snapshot_isolation_state, 'ON'::text as snapshot_isolation_state_desc,
       0::smallint as log_reuse_wait, 'NOTHING'::text as log_reuse_wait_desc, 0::smallint as is_auto_close_on, 0::smallint as is_auto_shrink_on,
       0::smallint as is_cdc_enabled, 0::smallint as is_encrypted, 0::smallint as is_db_chaining_on
  from servicebroker.databases d
 union all
select system.name, system.id, null, 160::smallint, 'Latin1_General_BIN2', 0::smallint, 'MULTI_USER', 0::smallint, 0::smallint, 'ONLINE',
       1::smallint, 'FULL', null, 0::smallint, 0::smallint, null, 1::smallint, 0::smallint, '\x01', 1::smallint, 1::smallint, 'ON', 0::smallint,
       'NOTHING', 0::smallint, 0::smallint, 0::smallint, 0::smallint, 0::smallint
  from (values ('master', 1), ('tempdb', 2), ('model', 3)) system(name, id)
 where not exists (select from servicebroker.databases d where lower(d.name) = system.name)) d;
create or replace view tsql.routes with (security_invoker = true) as
select r.name, r.route_id, r.principal_id, r.remote_service_name, upper(r.broker_instance) as broker_instance, r.lifetime, r.address, r.mirror_address,
       r.broker_database from sys.routes r;
create or replace view tsql.sysdatabases with (security_invoker = true) as
select d.name, d.database_id as dbid, d.owner_sid as sid, 0::smallint as mode, (d.is_read_only * 1024 + 16)::integer as status, 0 as status2, d.create_date as crdate,
       0 as category, d.compatibility_level as cmptlevel
  from tsql.databases d;
-- @@SPID of each session that has used it: the session holds an advisory lock of that number (store/locks.py,
-- TSQL_SESSION).
create or replace view tsql.session_numbers with (security_invoker = true) as
select l.pid, l.objid::bigint::integer as spid
  from pg_locks l
 where l.locktype = 'advisory' and l.classid = 1396834337 and l.objsubid = 2 and l.granted
   and l.database = (select d.oid from pg_database d where d.datname = current_database());
-- @@SPID of this session. At first use it takes the first free number; NULL if none is free.
create or replace function tsql.spid() returns smallint language plpgsql as $$
declare
    known text := nullif(current_setting('servicebroker.tsql_spid', true), '');
begin
    if known is null then
        known := coalesce((select spid from tsql.session_numbers where pid = pg_backend_pid() limit 1),
                          (select n from generate_series(51, 32767) n where pg_try_advisory_lock(1396834337, n) limit 1));
        perform set_config('servicebroker.tsql_spid', known, false);
    end if;
    return known;
end $$;
-- The settings that this session has sent to its connection (tsql/scope.py).
create or replace view tsql.own_session with (security_invoker = true) as
select pg_backend_pid() as pid, nullif(current_setting('servicebroker.tsql_login', true), '') as login,
       nullif(current_setting('servicebroker.tsql_original_login', true), '') as original_login,
       (select sys.shown_database_id(d.database_id, d.name) from servicebroker.databases d
         where lower(d.name) = lower(current_setting('servicebroker.database', true))) as database_id,
       coalesce(nullif(current_setting('servicebroker.tsql_isolation', true), ''), '2')::smallint as isolation,
       (select coalesce(nullif(g.setting::integer, 0), -1) from pg_settings g where g.name = 'lock_timeout') as lock_timeout_ms,
       nullif(current_setting('servicebroker.date_order', true), '') as date_order,
       nullif(current_setting('servicebroker.date_first', true), '')::smallint as date_first,
       decode(nullif(current_setting('servicebroker.tsql_context_info', true), ''), 'hex') as context_info;
-- Values that only a session itself knows are those of this session, and the usual ones of others. The database of
-- another session is unknown, unless it runs an activated task.
create or replace view tsql.dm_exec_sessions with (security_invoker = true) as
select coalesce(n.spid, a.pid) as session_id, coalesce(client.connect_time, a.backend_start) as login_time,
       coalesce(client.host, a.client_hostname::text) as host_name, coalesce(client.program, a.application_name::text) as program_name,
       coalesce(own.login, client.login, a.usename::text) as login_name, case a.state when 'active' then 'running' else 'sleeping' end as status,
       (task.database_id is null)::integer::smallint as is_user_process, coalesce(own.original_login, own.login, client.login, a.usename::text) as original_login_name,
       a.query_start as last_request_start_time, a.state_change as last_request_end_time,
       (a.xact_start is not null)::integer as open_transaction_count, a.pid as host_process_id,
       coalesce(own.database_id, task.database_id)::smallint as database_id, coalesce(own.database_id, task.database_id)::smallint as authenticating_database_id,
       coalesce(own.isolation, 0)::smallint as transaction_isolation_level, coalesce(own.lock_timeout_ms, -1) as lock_timeout,
       coalesce(own.date_order, 'mdy') as date_format, coalesce(own.date_first, 7)::smallint as date_first, own.context_info,
       0 as cpu_time, 0 as memory_usage, 0 as total_scheduled_time,
       coalesce(extract(epoch from greatest(a.state_change, a.query_start) - a.query_start) * 1000, 0)::integer as total_elapsed_time,
       0::bigint as reads, 0::bigint as writes, 0::bigint as logical_reads, 2147483647 as text_size, 1::smallint as quoted_identifier, 1::smallint as arithabort,
       1::smallint as ansi_null_dflt_on, 1::smallint as ansi_defaults, 1::smallint as ansi_warnings, 1::smallint as ansi_padding, 1::smallint as ansi_nulls,
       1::smallint as concat_null_yields_null, 0 as deadlock_priority, 0::bigint as row_count, 0 as prev_error, null::text as nt_domain,
       null::text as nt_user_name, coalesce(client.library, 'PostgreSQL') as client_interface_name, 7 as client_version, 4 as endpoint_id, 1 as group_id
  from pg_stat_activity a
  left join tsql.session_numbers n using (pid)
  left join tsql.own_session own using (pid)
  left join (select t.spid as pid, sys.shown_database_id(d.database_id, d.name) as database_id
               from servicebroker.rows_here(null::servicebroker.activated_tasks) t
               join servicebroker.queues q using (queue_id) join servicebroker.databases d using (database_id)) task using (pid)
  left join servicebroker.rows_here(null::servicebroker.tds_clients) client on client.backend = a.pid
 where a.datname = current_database() and a.backend_type = 'client backend';
-- A handle for the present or last statement of a session, by its process id. The text is PostgreSQL's SQL, not T-SQL.
create or replace function tsql.sql_handle(pid integer) returns bytea language sql immutable strict parallel safe
return '\x02'::bytea || decode(lpad(to_hex(pid), 8, '0'), 'hex');
create or replace function tsql.dm_exec_sql_text(handle bytea)
returns table (dbid smallint, objectid integer, number smallint, encrypted smallint, text text) language sql stable
begin atomic
    select null::smallint, null::integer, null::smallint, 0::smallint, a.query
      from pg_stat_activity a where tsql.sql_handle(a.pid) = handle and a.datname = current_database();
end;
-- Always empty: PostgreSQL keeps no plans that could be queried.
create or replace function tsql.dm_exec_query_plan(handle bytea)
returns table (dbid smallint, objectid integer, number smallint, encrypted smallint, query_plan text) language sql immutable
begin atomic
    select null::smallint, null::integer, null::smallint, 0::smallint, null::text where false;
end;
create or replace function tsql.dm_exec_text_query_plan(handle bytea, first integer, last integer)
returns table (dbid smallint, objectid integer, number smallint, encrypted smallint, query_plan text) language sql immutable
begin atomic
    select null::smallint, null::integer, null::smallint, 0::smallint, null::text where false;
end;
create or replace function tsql.dm_exec_input_buffer(session integer, request integer)
returns table (event_type text, parameters smallint, event_info text) language sql stable
begin atomic
    select 'Language Event', 0::smallint, a.query
      from pg_stat_activity a left join tsql.session_numbers n using (pid)
     where coalesce(n.spid, a.pid) = session and a.datname = current_database();
end;
create or replace view tsql.dm_exec_connections with (security_invoker = true) as
select coalesce(n.spid, a.pid) as session_id, a.backend_start as connect_time,
       case when a.client_addr is null then 'Shared memory' else 'TCP' end as net_transport, 'TSQL'::text as protocol_type,
       coalesce((select case when s.ssl then 'TRUE' else 'FALSE' end from pg_stat_ssl s where s.pid = a.pid), 'FALSE') as encrypt_option,
       'SQL'::text as auth_scheme, coalesce(host(a.client_addr), '<local machine>') as client_net_address, a.client_port as client_tcp_port,
       a.state_change as last_read, a.state_change as last_write, tsql.sql_handle(a.pid) as most_recent_sql_handle,
       coalesce(n.spid, a.pid) as most_recent_session_id, 1946157060 as protocol_version, 4 as endpoint_id, 0::smallint as node_affinity, 0 as num_reads,
       0 as num_writes, 4096 as net_packet_size, host(inet_server_addr()) as local_net_address, inet_server_port() as local_tcp_port,
       md5('connection ' || a.pid || ' ' || a.backend_start)::uuid as connection_id, null::uuid as parent_connection_id
  from pg_stat_activity a left join tsql.session_numbers n using (pid)
 where a.datname = current_database() and a.backend_type = 'client backend'
union all  -- clients that are idle without a session of PostgreSQL
select null, c.connect_time, 'TCP', 'TSQL', case when c.is_encrypted then 'TRUE' else 'FALSE' end, 'SQL', c.address, null, null, null, null, null,
       1946157060, 4, 0::smallint, 0, 0, 4096, null, null, md5('client ' || c.pid || ' ' || c.number)::uuid, null
  from servicebroker.rows_here(null::servicebroker.tds_clients) c
 where c.backend is null and c.pid in (select pid from pg_stat_activity);
create or replace view tsql.dm_tran_session_transactions with (security_invoker = true) as
select coalesce(n.spid, a.pid) as session_id, coalesce(a.backend_xid, a.backend_xmin)::text::bigint as transaction_id,
       1::smallint as is_user_transaction, 1::smallint as is_local, 1 as open_transaction_count
  from pg_stat_activity a left join tsql.session_numbers n using (pid)
 where a.datname = current_database() and a.xact_start is not null and coalesce(a.backend_xid, a.backend_xmin) is not null;
create or replace view tsql.dm_tran_active_transactions with (security_invoker = true) as
select coalesce(a.backend_xid, a.backend_xmin)::text::bigint as transaction_id, 'user_transaction'::text as name, a.xact_start as transaction_begin_time,
       case when a.backend_xid is null then 2 else 1 end as transaction_type, 2 as transaction_state
  from pg_stat_activity a
 where a.datname = current_database() and a.xact_start is not null and coalesce(a.backend_xid, a.backend_xmin) is not null;
-- Always empty: PostgreSQL has no such statistics of waits, plans, buffers or files. The columns of empty views are null:
-- with other constants, PostgreSQL would compute a division by them, and fail, while it plans the statement.
create or replace view tsql.dm_os_wait_stats with (security_invoker = true) as
select null::text as wait_type, null::bigint as waiting_tasks_count, null::bigint as wait_time_ms, null::bigint as max_wait_time_ms,
       null::bigint as signal_wait_time_ms where false;
create or replace view tsql.dm_exec_query_stats with (security_invoker = true) as
select null::bytea as sql_handle, null::bytea as plan_handle, null::integer as statement_start_offset, null::integer as statement_end_offset, null::timestamptz as creation_time,
       null::timestamptz as last_execution_time, null::bigint as execution_count, null::bigint as total_worker_time, null::bigint as total_elapsed_time,
       null::bigint as total_logical_reads, null::bigint as total_logical_writes, null::bigint as total_physical_reads,
       null::bytea as query_hash, null::bytea as query_plan_hash, null::bigint as plan_generation_num, null::bigint as total_rows, null::bigint as last_rows,
       null::bigint as last_worker_time, null::bigint as min_worker_time, null::bigint as max_worker_time, null::bigint as last_physical_reads, null::bigint as min_physical_reads,
       null::bigint as max_physical_reads, null::bigint as last_logical_writes, null::bigint as min_logical_writes, null::bigint as max_logical_writes, null::bigint as last_logical_reads,
       null::bigint as min_logical_reads, null::bigint as max_logical_reads, null::bigint as last_elapsed_time, null::bigint as min_elapsed_time, null::bigint as max_elapsed_time where false;
create or replace view tsql.dm_db_index_usage_stats with (security_invoker = true) as
select shown.database_id::smallint as database_id, o.object_id, tsql.index_number(i.indexrelid) as index_id, i.idx_scan as user_seeks, 0::bigint as user_scans,
       0::bigint as user_lookups, 0::bigint as user_updates, null::timestamptz as last_user_seek, null::timestamptz as last_user_scan,
       null::timestamptz as last_user_lookup, null::timestamptz as last_user_update
  from pg_stat_user_indexes i join tsql.every_object o on o.object_id::bigint::oid = i.relid
  join servicebroker.shown_databases shown using (database_id);
-- Running requests. wait_type is PostgreSQL's name of the wait event.
create or replace view tsql.dm_exec_requests with (security_invoker = true) as
select coalesce(n.spid, a.pid) as session_id, 0 as request_id, a.query_start as start_time,
       case when a.wait_event_type is null then 'running' else 'suspended' end as status,
       upper(coalesce(substring(a.query from '^\s*(\w+)'), '')) as command, tsql.sql_handle(a.pid) as sql_handle,
       coalesce((select coalesce(b.spid, blocker) from unnest(pg_blocking_pids(a.pid)) blocker left join tsql.session_numbers b on b.pid = blocker limit 1), 0)
           as blocking_session_id,
       upper(a.wait_event_type || '_' || a.wait_event) as wait_type,
       case when a.wait_event_type is null then 0 else (extract(epoch from clock_timestamp() - a.query_start) * 1000)::integer end as wait_time,
       (a.xact_start is not null)::integer as open_transaction_count,
       0 as cpu_time, (extract(epoch from clock_timestamp() - a.query_start) * 1000)::integer as total_elapsed_time,
       null::bytea as plan_handle, 0 as statement_start_offset, -1 as statement_end_offset, upper(a.wait_event_type || '_' || a.wait_event) as last_wait_type,
       0::bigint as reads, 0::bigint as writes, 0::bigint as logical_reads, 0::real as percent_complete, ''::text as wait_resource,
       s.database_id, 1 as user_id, md5('connection ' || a.pid || ' ' || a.backend_start)::uuid as connection_id, 1 as open_resultset_count,
       coalesce(coalesce(a.backend_xid, a.backend_xmin)::text::bigint, 0) as transaction_id, s.context_info, 0::bigint as estimated_completion_time,
       0 as scheduler_id, null::bytea as task_address, s.text_size, s.date_format, s.date_first, s.transaction_isolation_level, s.lock_timeout,
       s.deadlock_priority, 0::bigint as row_count, 0 as prev_error, 0 as nest_level, 0 as granted_query_memory, 1 as group_id,
       null::bytea as query_hash, null::bytea as query_plan_hash, 1 as dop
  from pg_stat_activity a left join tsql.session_numbers n using (pid)
  join tsql.dm_exec_sessions s on s.host_process_id = a.pid
 where a.datname = current_database() and a.backend_type = 'client backend' and a.state = 'active';
-- Columns about the machine are null: PostgreSQL does not know them.
create or replace view tsql.dm_os_sys_info with (security_invoker = true) as
select null::integer as cpu_count, null::bigint as physical_memory_kb, pg_postmaster_start_time() as sqlserver_start_time,
       (extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1000)::bigint as ms_ticks;
create or replace view tsql.dm_broker_activated_tasks with (security_invoker = true) as
select coalesce(n.spid, t.spid) as spid, t.database_id, t.queue_id, t.procedure_name, t.execute_as, t.broker_database
  from sys.dm_broker_activated_tasks t left join tsql.session_numbers n on n.pid = t.spid;

-- --- views that are always empty, for scripts that look before they drop ---

create or replace view tsql.assemblies with (security_invoker = true) as
select null::text as name, null::integer as assembly_id, null::integer as principal_id, null::text as permission_set_desc where false;
create or replace view tsql.assembly_files with (security_invoker = true) as select null::integer as assembly_id, null::text as name, null::integer as file_id, null::bytea as content where false;
create or replace view tsql.asymmetric_keys with (security_invoker = true) as select null::text as name, null::integer as asymmetric_key_id, null::integer as principal_id where false;
create or replace view tsql.extended_properties with (security_invoker = true) as
select null::smallint as class, null::text as class_desc, null::integer as major_id, null::integer as minor_id, null::text as name, null::text as value where false;
create or replace view tsql.configurations with (security_invoker = true) as
select null::integer as configuration_id, null::text as name, null::integer as value, null::integer as value_in_use where false;
create or replace view tsql.database_mirroring_endpoints with (security_invoker = true) as
select null::text as name, null::integer as endpoint_id, null::text as state_desc, null::text as role_desc where false;

-- --- files and filegroups of databases ---

-- The folder in the paths of database files, which scripts take from master's path. No file exists at these paths.
create or replace function tsql.data_path() returns text language sql immutable parallel safe return '/var/opt/mssql/data/';
create or replace view tsql.master_files with (security_invoker = true) as
select d.database_id, kind.file_id, kind.type, kind.type_desc, coalesce(system.names[kind.file_id], d.name || kind.suffix) as name,
       tsql.data_path() || coalesce(system.files[kind.file_id], d.name || kind.suffix) || kind.extension as physical_name,
       'ONLINE'::text as state_desc, 0::smallint as state, 2 - kind.file_id as data_space_id,
       case kind.type when 0 then (select pg_database_size(current_database()) / 8192)::integer else 1024 end as size,
       case kind.type when 0 then -1 else 268435456 end as max_size, 8192 as growth, 0::smallint as is_media_read_only,
       0::smallint as is_read_only, 0::smallint as is_sparse, 0::smallint as is_percent_growth, 0::smallint as is_name_reserved,
       null::uuid as file_guid
  from tsql.databases d
 cross join (values (1, 0::smallint, 'ROWS'::text, ''::text, '.mdf'::text), (2, 1::smallint, 'LOG', '_log', '.ldf'))
       kind(file_id, type, type_desc, suffix, extension)
  left join (values ('master', array['master', 'mastlog'], array['master', 'mastlog']), ('tempdb', array['tempdev', 'templog'], array['tempdb', 'templog']),
                    ('model', array['modeldev', 'modellog'], array['model', 'modellog']), ('msdb', array['MSDBData', 'MSDBLog'], array['MSDBData', 'MSDBLog']))
       system(name, names, files) on system.name = lower(d.name);
create or replace view tsql.dm_os_waiting_tasks with (security_invoker = true) as
select r.session_id::smallint as session_id, r.wait_time::bigint as wait_duration_ms, r.wait_type, nullif(r.blocking_session_id, 0)::smallint as blocking_session_id,
       null::text as resource_description, null::bytea as waiting_task_address, 0 as exec_context_id, null::bytea as resource_address,
       null::bytea as blocking_task_address, null::integer as blocking_exec_context_id
  from tsql.dm_exec_requests r where r.wait_type is not null;
create or replace view tsql.dm_db_file_space_usage with (security_invoker = true) as
select f.file_id::smallint as file_id, size.pages as total_page_count, size.pages as allocated_extent_page_count, 0::bigint as unallocated_extent_page_count,
       0::bigint as version_store_reserved_page_count, 0::bigint as user_object_reserved_page_count, 0::bigint as internal_object_reserved_page_count
  from tsql.master_files f
  join servicebroker.shown_databases shown on f.database_id = sys.shown_database_id(shown.database_id, shown.broker_database),
       lateral (select pg_database_size(current_database()) / 8192 as pages) size
 where f.type = 0;
-- One filegroup has all objects, and no table is partitioned.
create or replace view tsql.filegroups with (security_invoker = true) as
select 'PRIMARY'::text as name, 1 as data_space_id, 'FG'::text as type, 'ROWS_FILEGROUP'::text as type_desc, 1::smallint as is_default,
       0::smallint as is_system, 0::smallint as is_read_only, shown.broker_database from servicebroker.shown_databases shown;
create or replace view tsql.data_spaces with (security_invoker = true) as
select name, data_space_id, type, type_desc, is_default, is_system, broker_database from tsql.filegroups;
create or replace view tsql.partition_functions with (security_invoker = true) as
select null::text as name, null::integer as function_id, null::text as type, null::text as type_desc, null::integer as fanout, null::smallint as boundary_value_on_right where false;
create or replace view tsql.partition_schemes with (security_invoker = true) as
select null::text as name, null::integer as data_space_id, null::text as type, null::text as type_desc, null::integer as function_id where false;
create or replace view tsql.partition_range_values with (security_invoker = true) as
select null::integer as function_id, null::integer as boundary_id, null::integer as parameter_id, null::text as value where false;
-- A table of numbers, as many scripts use it.
create or replace view tsql.spt_values with (security_invoker = true) as
select null::text as name, n as number, 'P'::text as type, n / 8 + 1 as low, 1 << (n % 8) as high, 0 as status from generate_series(0, 2047) n;
create or replace function tsql.fn_listextendedproperty(property text, level0type text, level0name text, level1type text, level1name text,
                                                        level2type text, level2name text)
returns table (objtype text, objname text, name text, value text) language sql immutable
begin atomic
    select null, null, null, null where false;
end;
-- A login keeps its sid until it is dropped, and a user has the sid of its login, so that joins by sid work. Databases
-- belong to sa. A session that works as a PostgreSQL role, such as the owner's, finds a login with the role's name.
create or replace function tsql.login_sid(login_id integer, name text) returns bytea language sql immutable parallel safe
return case when lower(name) = 'sa' then '\x01'::bytea when login_id = 2 then '\x02'::bytea else decode(md5('login ' || login_id || ' ' || name), 'hex') end;
create view tsql.server_principals with (security_invoker = true) as
select p.name, p.principal_id, tsql.login_sid(p.principal_id, p.name) as sid, p.type, p.type_desc, p.is_disabled::integer::smallint as is_disabled, p.create_date,
       p.create_date as modify_date, 'master'::text as default_database_name, 'us_english'::text as default_language_name, null::integer as credential_id,
       case p.type when 'R' then 1 end as owning_principal_id, 0::smallint as is_fixed_role
  from (select name, principal_id, type, type_desc, create_date, is_disabled from sys.server_principals
        union all
        select own.name, own.principal_id, 'S', 'SQL_LOGIN', everybody.create_date, false from sys.server_principals everybody,
               (select 'sa'::text, 1 union all
                select r.rolname::text, (1000000000 + r.oid::bigint % 1000000000)::integer from pg_roles r
                 where r.rolname = session_user and lower(r.rolname) <> 'sa') own (name, principal_id)
         where everybody.principal_id = 2 and not exists (select from servicebroker.logins l where lower(l.name) = lower(own.name))) p;
create view tsql.database_principals with (security_invoker = true) as
select p.name, p.principal_id, p.type, p.type_desc, p.default_schema_name, p.create_date, p.modify_date, p.owning_principal_id,
       case when p.principal_id = 1 then '\x01'::bytea when p.principal_id = 2 then '\x00'::bytea when l.login_id is not null then tsql.login_sid(l.login_id, l.name)
            else case p.type when 'R' then '\x010500000000000904000000'::bytea else '\x010500000000000903000000'::bytea end
                 || decode(md5('user ' || u.database_id || ' ' || u.principal_id || ' ' || u.name), 'hex') end as sid,
       p.is_fixed_role, p.postgres_role, p.broker_database,
       case p.type when 'S' then 1 else 0 end as authentication_type, case p.type when 'S' then 'INSTANCE' else 'NONE' end as authentication_type_desc
  from sys.database_principals p
  join servicebroker.shown_databases shown on shown.broker_database = p.broker_database
  join servicebroker.principals u on u.database_id = shown.database_id and u.principal_id = p.principal_id
  left join servicebroker.logins l using (login_id);
-- The session's login and its server roles, which the session sets.
create view tsql.login_token with (security_invoker = true) as
select p.principal_id, p.sid, p.name, case p.type when 'R' then 'SERVER ROLE' when 'U' then 'WINDOWS LOGIN' else 'SQL LOGIN' end as type,
       'GRANT OR DENY'::text as usage
  from tsql.server_principals p,
       (select coalesce(nullif(current_setting('servicebroker.tsql_login', true), ''), session_user::text) as name) own
 where lower(p.name) = lower(own.name) or p.principal_id = 2
 union all
select 3, '\x03'::bytea, 'sysadmin', 'SERVER ROLE', 'GRANT OR DENY'
 where lower(coalesce(nullif(current_setting('servicebroker.tsql_login', true), ''), session_user::text)) in (
       select 'sa' union all select 'dbo' union all select lower(r.rolname) from pg_roles r
         join pg_namespace n on pg_has_role(r.oid, n.nspowner, 'usage') where n.nspname = 'servicebroker');
create view tsql.syslogins with (security_invoker = true) as
select p.sid, p.name, p.name as loginname, 'master'::text as dbname, p.create_date as createdate, 1 as hasaccess, (p.type in ('U', 'G'))::integer as isntname,
       (lower(p.name) = 'sa')::integer as sysadmin, 0 as denylogin from tsql.server_principals p where p.type <> 'R';
create view tsql.sysusers with (security_invoker = true) as
select p.principal_id as uid, p.name, p.sid, p.create_date as createdate, p.modify_date as updatedate, 1 as hasdbaccess,
       (p.type <> 'R')::integer as islogin, 0 as isntname, (p.type = 'S')::integer as issqluser, (p.type = 'R')::integer as issqlrole, p.broker_database
  from tsql.database_principals p;
create view tsql.sql_logins with (security_invoker = true) as
select p.name, p.principal_id, p.sid, p.type, p.type_desc, p.create_date, p.is_disabled from tsql.server_principals p where p.type = 'S';
create or replace view tsql.trigger_events with (security_invoker = true) as
select o.object_id, events.number as type, events.name as type_desc, 0::smallint as is_first, 0::smallint as is_last, o.broker_database
  from tsql.objects o join servicebroker.tsql_modules m on m.module_id = o.object_id,
       (values (1, 'INSERT'), (2, 'UPDATE'), (3, 'DELETE')) events (number, name)
 where o.type = 'TR' and events.name = any (regexp_split_to_array(upper(substring(m.definition from '(?i)\m(?:AFTER|FOR|INSTEAD\s+OF)\s+((?:INSERT|UPDATE|DELETE)(?:\s*,\s*(?:INSERT|UPDATE|DELETE))*)')), '\s*,\s*'));
create or replace view tsql.servers with (security_invoker = true) as
select 0 as server_id, 'servicebroker'::text as name, 'SQL Server'::text as product, 0::smallint as is_linked;
create or replace view tsql.stats with (security_invoker = true) as
select null::integer as object_id, null::text as name, null::integer as stats_id, null::smallint as auto_created where false;
-- Always empty: query notifications do not exist here.
create or replace view tsql.dm_qn_subscriptions with (security_invoker = true) as
select null::integer as id, null::integer as database_id, null::bytea as sid, null::integer as object_id, null::timestamp as created, null::integer as timeout, null::integer as status where false;
create or replace view tsql.credentials with (security_invoker = true) as
select null::integer as credential_id, null::text as name, null::text as credential_identity where false;
create or replace view tsql.sql_expression_dependencies with (security_invoker = true) as
select null::integer as referencing_id, null::integer as referenced_id, null::text as referenced_schema_name, null::text as referenced_entity_name where false;
create or replace view tsql.dm_exec_cached_plans with (security_invoker = true) as
select null::bytea as plan_handle, null::integer as usecounts, null::integer as size_in_bytes, null::text as cacheobjtype, null::text as objtype where false;
create or replace view tsql.sysprocesses with (security_invoker = true) as
select s.session_id as spid, coalesce(r.blocking_session_id, 0) as blocked, coalesce(r.wait_time, 0) as waittime, r.wait_type as lastwaittype,
       s.login_name as loginame, s.host_name as hostname, s.program_name, s.status, coalesce(r.command, 'AWAITING COMMAND') as cmd, s.login_time,
       coalesce(r.open_transaction_count, 0) as open_tran, s.database_id as dbid, 0::smallint as kpid, 0 as cpu, 0::bigint as physical_io, 0 as memusage,
       s.last_request_start_time as last_batch, 0::smallint as ecid, s.host_process_id::text as hostprocess, s.nt_domain, s.nt_user_name as nt_username,
       s.context_info, coalesce(r.sql_handle, tsql.sql_handle(s.host_process_id)) as sql_handle, coalesce(r.wait_resource, '') as waitresource
  from tsql.dm_exec_sessions s left join tsql.dm_exec_requests r using (session_id);
