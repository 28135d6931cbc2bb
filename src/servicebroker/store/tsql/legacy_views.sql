-- The compatibility views of SQL Server 2000, for old scripts: the columns that have a meaning here, and the flags that
-- such scripts usually test. They are views on the present catalog views.

drop view if exists
    tsql.syscolumns, tsql.sysindexes, tsql.sysindexkeys, tsql.syscomments, tsql.sysfiles, tsql.sysaltfiles, tsql.sysfilegroups, tsql.systypes,
    tsql.sysconstraints, tsql.sysreferences, tsql.sysforeignkeys, tsql.sysdepends, tsql.sysmembers, tsql.sysmessages, tsql.syslanguages,
    tsql.sysservers, tsql.sysconfigures, tsql.syscurconfigs cascade;

-- Columns of tables and views, and parameters of modules. The low byte of a system type is its number.
create view tsql.syscolumns with (security_invoker = true) as
select c.name, c.object_id as id, c.system_type_id as xtype, c.user_type_id as xusertype, c.max_length as length, c.precision as xprec, c.scale as xscale,
       c.column_id::smallint as colid, c.column_id::smallint as colorder, c.is_identity as colstat, c.default_object_id as cdefault, 0::smallint as number,
       (c.is_identity * 128 + c.is_nullable * 8)::smallint as status, c.system_type_id as type, c.user_type_id as usertype,
       case when c.precision > 0 then c.precision when tsql.type_precision(t.name) < 100 then tsql.type_precision(t.name) when t.name in ('nvarchar', 'nchar') and c.max_length > 0 then c.max_length / 2
            else c.max_length end::smallint as prec,
       c.scale::integer as scale, c.is_computed::integer as iscomputed, 0 as isoutparam, c.is_nullable::integer as isnullable,
       c.collation_name as collation, c.broker_database
  from tsql.columns c
  left join tsql.system_types t on t.user_type_id = c.user_type_id
 union all
select p.name, p.object_id, p.system_type_id, p.user_type_id, p.max_length, p.precision, p.scale, p.parameter_id::smallint, p.parameter_id::smallint,
       0::smallint, 0, 1::smallint, (p.is_output * 64 + 8)::smallint, p.system_type_id, p.user_type_id,
       case when p.precision > 0 then p.precision else p.max_length end::smallint, p.scale::integer, 0, p.is_output::integer, 1, null, p.broker_database
  from tsql.parameters p;

-- Each table has one row with its number of rows: indid 1 with the name of the primary key, or indid 0 without a name.
create view tsql.sysindexes with (security_invoker = true) as
select o.object_id as id, key.name, case when key.name is null then 0 else 1 end::integer as indid,
       case when key.name is null then 0 else 2050 end as status, p.rows, p.rows as rowcnt, p.used as dpages, p.used as used, p.used as reserved,
       0 as rowmodctr, 0::smallint as "OrigFillFactor", 1::smallint as groupid, key.keys as keycnt, o.broker_database
  from tsql.objects o
  left join lateral (select i.name, x.indnkeyatts as keys from tsql.every_index i join pg_index x on x.indexrelid = i.postgres_index
                      where i.object_id = o.object_id and i.is_primary_key = 1 limit 1) key on true
 cross join lateral (select s.rows, coalesce(pg_total_relation_size(o.object_id::bigint::oid::regclass), 0) / 8192 as used
                       from tsql.partitions s where s.object_id = o.object_id limit 1) p
 where o.type = 'U'
 union all
select i.object_id, i.name, i.index_id, i.is_unique * 2 + i.is_unique_constraint * 4096, 0, 0, 0, 0, 0, 0, 0::smallint, 1::smallint, x.indnkeyatts, i.broker_database
  from tsql.every_index i join pg_index x on x.indexrelid = i.postgres_index where i.is_primary_key = 0;

create view tsql.sysindexkeys with (security_invoker = true) as
select c.object_id as id, c.index_id as indid, c.column_id::smallint as colid, c.key_ordinal::smallint as keyno, c.broker_database
  from tsql.index_columns c where c.key_ordinal > 0;

-- The texts of modules, defaults and checks, in pieces of 4,000 characters.
create view tsql.syscomments with (security_invoker = true) as
select said.id, 0::smallint as number, piece.n::smallint as colid, 0::smallint as status, substr(said.text, (piece.n - 1) * 4000 + 1, 4000) as text,
       2::smallint as texttype, 0::smallint as language, 0::smallint as encrypted, 0::smallint as compressed, said.broker_database
  from (select m.object_id, m.definition, m.broker_database from tsql.sql_modules m
         union all select d.object_id, d.definition, d.broker_database from tsql.default_constraints d
         union all select c.object_id, c.definition, c.broker_database from tsql.check_constraints c) said (id, text, broker_database)
 cross join lateral generate_series(1, greatest(1, ceil(length(said.text) / 4000.0)::integer)) piece (n);

create view tsql.sysaltfiles with (security_invoker = true) as
select f.file_id::smallint as fileid, case when f.type = 0 then 1 else 0 end::smallint as groupid, 1 as size, -1 as maxsize, 0 as growth, 0 as status, 0 as perf,
       f.database_id::smallint as dbid, f.name, f.physical_name as filename
  from tsql.master_files f;
create view tsql.sysfiles with (security_invoker = true) as
select f.file_id::smallint as fileid, case when f.type = 0 then 1 else 0 end::smallint as groupid, 1 as size, -1 as maxsize, 0 as growth, 0 as status, 0 as perf,
       f.name, f.physical_name as filename, f.broker_database
  from tsql.database_files f;
create view tsql.sysfilegroups with (security_invoker = true) as
select g.data_space_id::smallint as groupid, 0::smallint as allocpolicy, (g.is_default * 16)::integer as status, g.name as groupname, g.broker_database
  from tsql.filegroups g;

create view tsql.systypes with (security_invoker = true) as
select t.name, t.system_type_id as xtype, 0::smallint as status, t.user_type_id as xusertype, t.max_length as length, 0 as tdefault, 0 as domain,
       t.schema_id as uid, t.user_type_id as usertype, (t.name in ('nvarchar', 'varchar', 'varbinary'))::integer::smallint as variable,
       t.is_nullable as allownulls, t.system_type_id as type, null::text as collation
  from tsql.types t where t.is_table_type = 0;

create view tsql.sysconstraints with (security_invoker = true) as
select o.object_id as constid, o.parent_object_id as id, 0::smallint as colid, 0::smallint as spare1,
       case o.type when 'PK' then 1 when 'UQ' then 2 when 'F' then 3 when 'C' then 4 else 5 end as status, 0 as actions, 0 as error, o.broker_database
  from tsql.objects o where o.type in ('PK', 'UQ', 'F', 'C', 'D');
create view tsql.sysreferences with (security_invoker = true) as
select f.object_id as constid, f.parent_object_id as fkeyid, f.referenced_object_id as rkeyid, f.key_index_id as rkeyindid,
       (select count(*) from tsql.foreign_key_columns c where c.constraint_object_id = f.object_id)::smallint as keycnt, f.broker_database
  from tsql.foreign_keys f;
create view tsql.sysforeignkeys with (security_invoker = true) as
select c.constraint_object_id as constid, c.parent_object_id as fkeyid, c.referenced_object_id as rkeyid, c.parent_column_id::smallint as fkey,
       c.referenced_column_id::smallint as rkey, c.constraint_column_id::smallint as keyno, c.broker_database
  from tsql.foreign_key_columns c;
create view tsql.sysdepends with (security_invoker = true) as
select d.referencing_id as id, d.referenced_id as depid, 0::smallint as number, 0::smallint as depnumber, 0::smallint as status, 0::smallint as deptype
  from tsql.sql_expression_dependencies d;
create view tsql.sysmembers with (security_invoker = true) as
select m.member_principal_id as memberuid, m.role_principal_id as groupuid, m.broker_database from sys.database_role_members m;

create view tsql.sysmessages with (security_invoker = true) as
select m.message_id as error, m.severity, 0::smallint as dlevel, m.text as description, m.language_id as msglangid from tsql.messages m;
create view tsql.syslanguages with (security_invoker = true) as
select 0::smallint as langid, 'mdy'::text as dateformat, 7::smallint as datefirst, 0 as upgrade, 'us_english'::text as name, 'English'::text as alias,
       'January,February,March,April,May,June,July,August,September,October,November,December'::text as months,
       'Jan,Feb,Mar,Apr,May,Jun,Jul,Aug,Sep,Oct,Nov,Dec'::text as shortmonths,
       'Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday'::text as days, 1033 as lcid, 1033::smallint as msglangid;
create view tsql.sysservers with (security_invoker = true) as
select s.server_id::smallint as srvid, 0::smallint as srvstatus, s.name as srvname, s.product as srvproduct, s.name as datasource, s.is_linked as isremote
  from tsql.servers s;
create view tsql.sysconfigures with (security_invoker = true) as
select c.value, c.configuration_id as config, c.name as comment, 0::smallint as status from tsql.configurations c;
create view tsql.syscurconfigs with (security_invoker = true) as
select c.value_in_use as value, c.configuration_id as config, c.name as comment, 0::smallint as status from tsql.configurations c;
