-- Catalog views that T-SQL scripts ask and sys has not, or has narrower. What belongs to one database shows those of
-- the setting servicebroker.database, as the views of sys do. Dropped and made again: nothing but T-SQL reads them.

drop view if exists
    tsql.every_schema, tsql.every_object, tsql.every_column, tsql.types, tsql.system_types, tsql.sql_modules cascade;

-- The schemas where something of a broker database stands; dbo is always there.
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
       coalesce(obj_description(c.oid, 'pg_class'), c.relname) as name, c.oid::bigint::integer as object_id,
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
select s.database_id, s.broker_database, s.postgres_schema, s.name, s.schema_id, coalesce(obj_description(k.oid, 'pg_constraint'), k.conname),
       k.oid::bigint::integer, case k.contype when 'p' then 'PK' when 'u' then 'UQ' when 'f' then 'F' else 'C' end,
       null, k.conrelid::bigint::integer, null, null, 0::smallint
  from tsql.every_schema s
  join pg_namespace n on n.nspname = s.postgres_schema
  join pg_constraint k on k.connamespace = n.oid and k.contype in ('p', 'u', 'f', 'c') and k.conrelid <> 0
 union all  -- the tables under the queues: sys.partitions knows how many rows they have
select q.database_id, d.name, 'sys', 'sys', 4, 'queue_messages_' || q.queue_id, c.oid::bigint::integer, 'IT',
       null, q.queue_id, q.create_date, q.modify_date, 1::smallint
  from servicebroker.queues q
  join servicebroker.databases d using (database_id)
  join pg_class c on c.relnamespace = 'servicebroker'::regnamespace and c.relname = 'queue_' || q.queue_id
 union all  -- and how many wait in the transmission queue
select d.database_id, d.name, 'sys', 'sys', 4, 'sysxmitqueue', 68, 'S', null, 0, null, null, 1::smallint from servicebroker.databases d;

create view tsql.all_objects with (security_invoker = true) as
select o.name, o.object_id, o.principal_id, o.schema_id, o.parent_object_id, o.type,
       case o.type when 'U' then 'USER_TABLE' when 'V' then 'VIEW' when 'SQ' then 'SERVICE_QUEUE' when 'P' then 'SQL_STORED_PROCEDURE'
                   when 'FN' then 'SQL_SCALAR_FUNCTION' when 'IF' then 'SQL_INLINE_TABLE_VALUED_FUNCTION'
                   when 'TF' then 'SQL_TABLE_VALUED_FUNCTION'
                   when 'TR' then 'SQL_TRIGGER' when 'SO' then 'SEQUENCE_OBJECT' when 'IT' then 'INTERNAL_TABLE'
                   when 'S' then 'SYSTEM_TABLE' when 'SN' then 'SYNONYM'
                   when 'PK' then 'PRIMARY_KEY_CONSTRAINT' when 'UQ' then 'UNIQUE_CONSTRAINT'
                   when 'F' then 'FOREIGN_KEY_CONSTRAINT' when 'C' then 'CHECK_CONSTRAINT' end as type_desc,
       o.create_date, o.modify_date, o.is_ms_shipped, o.schema_name, o.broker_database
  from tsql.every_object o
  join servicebroker.shown_databases shown using (database_id);

create view tsql.objects with (security_invoker = true) as
select name, object_id, principal_id, schema_id, parent_object_id, type, type_desc, create_date, modify_date, is_ms_shipped,
       broker_database from tsql.all_objects;
create view tsql.tables with (security_invoker = true) as select * from tsql.objects where type = 'U';
create view tsql.views with (security_invoker = true) as select * from tsql.objects where type = 'V';
create view tsql.procedures with (security_invoker = true) as select * from tsql.objects where type = 'P';
create view tsql.internal_tables with (security_invoker = true) as
select o.*, 201::smallint as internal_type, 'QUEUE_MESSAGES'::text as internal_type_desc from tsql.objects o where o.type = 'IT';
-- Exactly while they are few, since scripts look right after SEND; of many what PostgreSQL has counted.
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
create view tsql.partitions with (security_invoker = true) as
select o.object_id as partition_id, o.object_id, 1 as index_id, 1 as partition_number,
       case o.type when 'S' then (select count(*) from sys.transmission_queue) else tsql.rows_of(o.object_id::bigint::oid) end as rows,
       o.broker_database from tsql.objects o where o.type in ('U', 'IT', 'S');
create view tsql.dm_db_partition_stats with (security_invoker = true) as
select p.partition_id, p.object_id, p.index_id, p.partition_number, p.rows as row_count,
       pages.used as in_row_data_page_count, pages.used as in_row_used_page_count, pages.used as used_page_count, pages.used as reserved_page_count,
       p.broker_database
  from tsql.partitions p, lateral (select coalesce(pg_total_relation_size(to_regclass(p.object_id::bigint::oid::regclass::text)), 0) / 8192 as used) pages;
create view tsql.sql_modules with (security_invoker = true) as
select m.module_id as object_id, m.definition, 1::smallint as uses_ansi_nulls, 1::smallint as uses_quoted_identifier, shown.broker_database
  from servicebroker.tsql_modules m join servicebroker.shown_databases shown using (database_id) where m.kind <> 'SN';
create view tsql.synonyms with (security_invoker = true) as
select o.name, o.object_id, o.principal_id, o.schema_id, o.parent_object_id, o.type, o.type_desc, o.create_date, o.modify_date,
       o.is_ms_shipped, 0::smallint as is_published, 0::smallint as is_schema_published, m.definition as base_object_name, o.broker_database
  from tsql.objects o join servicebroker.tsql_modules m on m.module_id = o.object_id where o.type = 'SN';
create view tsql.triggers with (security_invoker = true) as
select o.name, o.object_id, 1::smallint as parent_class, 'OBJECT_OR_COLUMN' as parent_class_desc, o.parent_object_id as parent_id,
       o.type, o.type_desc, o.create_date, o.modify_date, o.is_ms_shipped, m.is_disabled::integer::smallint as is_disabled, o.broker_database
  from tsql.objects o join servicebroker.tsql_modules m on m.module_id = o.object_id where o.type = 'TR';
create view tsql.schemas with (security_invoker = true) as
select s.name, s.schema_id, 1 as principal_id, s.broker_database
  from tsql.every_schema s join servicebroker.shown_databases shown using (database_id);
-- Under the number that sys.schemas has for it: 1 for dbo.
create or replace view tsql.service_queues with (security_invoker = true) as
select q.name, q.object_id, q.principal_id,
       case when n.nspname is null or n.nspname = lower(q.broker_database || '_dbo') then 1 else q.schema_id end as schema_id,
       q.parent_object_id, q.type, q.type_desc, q.create_date, q.modify_date, q.is_ms_shipped, q.is_published, q.is_schema_published,
       q.max_readers, q.activation_procedure, q.execute_as_principal_id, q.is_activation_enabled, q.is_receive_enabled,
       q.is_enqueue_enabled, q.is_retention_enabled, q.is_poison_message_handling_enabled, q.broker_database
  from sys.service_queues q left join pg_namespace n on n.oid = q.schema_id::bigint::oid;
create view tsql.sysobjects with (security_invoker = true) as
select o.name, o.object_id as id, o.type as xtype, o.schema_id as uid, o.type, o.create_date as crdate, o.parent_object_id as parent_obj,
       o.broker_database from tsql.objects o;

create view tsql.system_types with (security_invoker = true) as
select name, number as system_type_id, number as user_type_id, 4 as schema_id, size::smallint as max_length
  from (values ('image', 34, 16), ('text', 35, 16), ('uniqueidentifier', 36, 16), ('date', 40, 3), ('time', 41, 5), ('datetime2', 42, 8),
               ('datetimeoffset', 43, 10), ('tinyint', 48, 1), ('smallint', 52, 2), ('int', 56, 4), ('smalldatetime', 58, 4),
               ('real', 59, 4), ('money', 60, 8), ('datetime', 61, 8), ('float', 62, 8), ('ntext', 99, 16), ('bit', 104, 1),
               ('decimal', 106, 17), ('numeric', 108, 17), ('smallmoney', 122, 4), ('bigint', 127, 8), ('varbinary', 165, 8000),
               ('varchar', 167, 8000), ('binary', 173, 8000), ('char', 175, 8000), ('nvarchar', 231, 8000), ('nchar', 239, 8000), ('sql_variant', 98, 8016),
               ('xml', 241, -1), ('sysname', 256, 256)) t(name, number, size);
-- The values are sql_variant; a smallint of PostgreSQL with the bounds of tinyint is one. Nothing is cached.
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

-- The T-SQL type and the spelling of a column stand in its comment (translation/table_columns.py); queues have those of RECEIVE.
create view tsql.every_column with (security_invoker = true) as
select o.database_id, o.broker_database, o.schema_name, o.name as table_name, o.object_id, coalesce(said.name, a.attname) as name, a.attnum::integer as column_id,
       coalesce(said.type, received.type, case t.typname when 'uuid' then 'uniqueidentifier' when 'bytea' then 'varbinary' when 'int4' then 'int'
                when 'int2' then 'smallint' when 'int8' then 'bigint' when 'timestamptz' then 'datetime' when 'timestamp' then 'datetime2'
                when 'numeric' then 'decimal' when 'float8' then 'float' when 'float4' then 'real' when 'date' then 'date' when 'time' then 'time'
                else 'nvarchar' end) as type_name,
       coalesce(said.size, received.size, '') as size, not a.attnotnull as is_nullable, a.attidentity <> '' as is_identity, a.attgenerated <> '' as is_computed,
       tsql.column_bytes(coalesce(said.type, received.type, t.typname), coalesce(said.size, received.size, '')) as max_length
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
       select m[1] as type, m[2] as size, m[3] as name
         from regexp_match(col_description(a.attrelid, a.attnum), '^(\w+)(?:\(([^)]*)\))? (.*)$') m) said on true
 where o.type in ('U', 'V', 'SQ');

create view tsql.columns with (security_invoker = true) as
select c.object_id, c.name, c.column_id, t.system_type_id, t.user_type_id, c.max_length,
       case when c.type_name = 'decimal' then split_part(c.size, ',', 1)::smallint else 0 end as precision,
       case when c.type_name = 'decimal' then split_part(c.size, ',', 2)::smallint else 0 end as scale,
       c.is_nullable::integer::smallint as is_nullable, c.is_identity::integer::smallint as is_identity,
       c.is_computed::integer::smallint as is_computed, c.broker_database
  from tsql.every_column c
  join servicebroker.shown_databases shown using (database_id)
  left join tsql.system_types t on t.name = c.type_name;
create view tsql.all_columns with (security_invoker = true) as select * from tsql.columns;
create view tsql.identity_columns with (security_invoker = true) as select * from tsql.columns where is_identity = 1;
create view tsql.indexes with (security_invoker = true) as
select i.indrelid::bigint::integer as object_id, coalesce(obj_description(c.oid, 'pg_class'), c.relname::text) as name, i.indexrelid::bigint::integer as index_id,
       i.indisunique::integer::smallint as is_unique, i.indisprimary::integer::smallint as is_primary_key, o.broker_database,
       (case when i.indisprimary then 1 else 2 end)::smallint as type, case when i.indisprimary then 'CLUSTERED' else 'NONCLUSTERED' end as type_desc,
       1 as data_space_id, exists (select from pg_constraint u where u.conindid = i.indexrelid and u.contype = 'u')::integer::smallint as is_unique_constraint,
       0::smallint as fill_factor, 0::smallint as is_disabled, (i.indpred is not null)::integer::smallint as has_filter,
       pg_get_expr(i.indpred, i.indrelid) as filter_definition
  from tsql.objects o join pg_index i on i.indrelid = o.object_id::bigint::oid join pg_class c on c.oid = i.indexrelid;

create view tsql.information_schema_tables with (security_invoker = true) as
select o.broker_database as table_catalog, o.schema_name as table_schema, o.name as table_name,
       case o.type when 'V' then 'VIEW' else 'BASE TABLE' end as table_type
  from tsql.all_objects o where o.type in ('U', 'V');
create view tsql.information_schema_views with (security_invoker = true) as
select table_catalog, table_schema, table_name from tsql.information_schema_tables where table_type = 'VIEW';
create view tsql.information_schema_columns with (security_invoker = true) as
select c.broker_database as table_catalog, c.schema_name as table_schema, c.table_name, c.name as column_name, c.column_id as ordinal_position,
       case when c.is_nullable then 'YES' else 'NO' end as is_nullable, c.type_name as data_type,
       case when c.size = 'max' then -1 when c.type_name in ('char', 'varchar', 'nchar', 'nvarchar', 'binary', 'varbinary') then nullif(c.size, '')::integer end
           as character_maximum_length
  from tsql.every_column c join servicebroker.shown_databases shown using (database_id)
 where not exists (select from servicebroker.queues q where q.queue_id = c.object_id);
create view tsql.information_schema_routines with (security_invoker = true) as
select o.broker_database as routine_catalog, o.schema_name as routine_schema, o.name as routine_name, 'PROCEDURE' as routine_type
  from tsql.all_objects o where o.type = 'P';
create view tsql.information_schema_schemata with (security_invoker = true) as
select s.broker_database as catalog_name, s.name as schema_name from tsql.schemas s;

-- --- of the instance ---

-- Null for a role that may not see master keys; it may see databases.
create or replace function tsql.has_open_master_key(id integer) returns boolean language plpgsql stable parallel safe as $$
begin
    if not has_table_privilege('servicebroker.master_keys', 'select') then return null; end if;
    return exists (select from servicebroker.master_keys k where k.database_id = id and k.by_service_master_key is not null);
end $$;

create or replace view tsql.databases with (security_invoker = true) as
select d.name, sys.shown_database_id(d.database_id, d.name) as database_id, null::integer as source_database_id, 160::smallint as compatibility_level,
       'Latin1_General_BIN2'::text as collation_name, 0::smallint as user_access, 'MULTI_USER'::text as user_access_desc,
       d.is_read_only::integer::smallint as is_read_only, 0::smallint as state, 'ONLINE'::text as state_desc, 1::smallint as recovery_model, 'FULL'::text as recovery_model_desc,
       d.service_broker_guid,
       (d.is_broker_enabled or d.is_read_only and d.broker_when_writable)::integer::smallint as is_broker_enabled,
       d.is_honor_broker_priority_on::integer::smallint as is_honor_broker_priority_on, d.create_date,
       d.is_trustworthy_on::integer::smallint as is_trustworthy_on,
       tsql.has_open_master_key(d.database_id)::integer::smallint as is_master_key_encrypted_by_server
  from servicebroker.databases d
 union all
select system.name, system.id, null, 160::smallint, 'Latin1_General_BIN2', 0::smallint, 'MULTI_USER', 0::smallint, 0::smallint, 'ONLINE',
       1::smallint, 'FULL', null, 0::smallint, 0::smallint, null, 1::smallint, 0::smallint
  from (values ('master', 1), ('tempdb', 2), ('model', 3)) system(name, id)
 where not exists (select from servicebroker.databases d where lower(d.name) = system.name);
create or replace view tsql.sysdatabases with (security_invoker = true) as select name, database_id as dbid from tsql.databases;
-- @@SPID of the sessions that have asked for it: the number that they hold as a lock (store/locks.py, TSQL_SESSION).
create or replace view tsql.session_numbers with (security_invoker = true) as
select l.pid, l.objid::bigint::integer as spid
  from pg_locks l
 where l.locktype = 'advisory' and l.classid = 1396834337 and l.objsubid = 2 and l.granted
   and l.database = (select d.oid from pg_database d where d.datname = current_database());
create or replace view tsql.dm_exec_sessions with (security_invoker = true) as
select coalesce(n.spid, a.pid) as session_id, a.backend_start as login_time, a.client_hostname::text as host_name, a.application_name::text as program_name,
       a.usename::text as login_name, case a.state when 'active' then 'running' else 'sleeping' end as status
  from pg_stat_activity a left join tsql.session_numbers n using (pid)
 where a.datname = current_database() and a.backend_type = 'client backend';
-- What runs now: what a session waits for is PostgreSQL's word for it.
create or replace view tsql.dm_exec_requests with (security_invoker = true) as
select coalesce(n.spid, a.pid) as session_id, 0 as request_id, a.query_start as start_time,
       case when a.wait_event_type is null then 'running' else 'suspended' end as status,
       upper(coalesce(substring(a.query from '^\s*(\w+)'), '')) as command, null::bytea as sql_handle,
       coalesce((select coalesce(b.spid, blocker) from unnest(pg_blocking_pids(a.pid)) blocker left join tsql.session_numbers b on b.pid = blocker limit 1), 0)
           as blocking_session_id,
       upper(a.wait_event_type || '_' || a.wait_event) as wait_type,
       case when a.wait_event_type is null then 0 else (extract(epoch from clock_timestamp() - a.query_start) * 1000)::integer end as wait_time,
       (a.xact_start is not null)::integer as open_transaction_count,
       0 as cpu_time, (extract(epoch from clock_timestamp() - a.query_start) * 1000)::integer as total_elapsed_time
  from pg_stat_activity a left join tsql.session_numbers n using (pid)
 where a.datname = current_database() and a.backend_type = 'client backend' and a.state = 'active';
-- Of the machine PostgreSQL tells nothing.
create or replace view tsql.dm_os_sys_info with (security_invoker = true) as
select null::integer as cpu_count, null::bigint as physical_memory_kb, pg_postmaster_start_time() as sqlserver_start_time,
       (extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1000)::bigint as ms_ticks;
create or replace view tsql.dm_broker_activated_tasks with (security_invoker = true) as
select coalesce(n.spid, t.spid) as spid, t.database_id, t.queue_id, t.procedure_name, t.execute_as, t.broker_database
  from sys.dm_broker_activated_tasks t left join tsql.session_numbers n on n.pid = t.spid;

-- --- what is always empty here, so that scripts that look before they drop find nothing ---

create or replace view tsql.assemblies with (security_invoker = true) as
select ''::text as name, 0 as assembly_id, 1 as principal_id, ''::text as permission_set_desc where false;
create or replace view tsql.assembly_files with (security_invoker = true) as select 0 as assembly_id, ''::text as name, 0 as file_id, ''::bytea as content where false;
create or replace view tsql.asymmetric_keys with (security_invoker = true) as select ''::text as name, 0 as asymmetric_key_id, 1 as principal_id where false;
create or replace view tsql.extended_properties with (security_invoker = true) as
select 0::smallint as class, ''::text as class_desc, 0 as major_id, 0 as minor_id, ''::text as name, ''::text as value where false;
create or replace view tsql.configurations with (security_invoker = true) as
select 0 as configuration_id, ''::text as name, 0 as value, 0 as value_in_use where false;
create or replace view tsql.database_mirroring_endpoints with (security_invoker = true) as
select ''::text as name, 0 as endpoint_id, ''::text as state_desc, ''::text as role_desc where false;

-- --- what databases are made of ---

create or replace view tsql.sql_logins with (security_invoker = true) as
select p.name, p.principal_id, p.type, p.type_desc, p.create_date from sys.server_principals p where p.type = 'S';
create or replace view tsql.master_files with (security_invoker = true) as
select d.database_id, 1 as file_id, 0::smallint as type, 'ROWS'::text as type_desc, d.name, 'PostgreSQL keeps its files itself'::text as physical_name,
       'ONLINE'::text as state_desc from tsql.databases d;
