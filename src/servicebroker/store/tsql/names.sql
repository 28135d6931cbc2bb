-- Functions for ids and names of objects: OBJECT_ID, OBJECT_NAME, DB_ID and so on.

-- The parts of a name, the last one first, without brackets or quotation marks.
create or replace function tsql.name_parts(said text) returns text[] language plpgsql immutable strict parallel safe as $$
declare
    parts text[] := '{}';
    rest text := btrim(said);
    found text[];
begin
    loop
        found := regexp_match(rest, '^\s*(?:\[((?:[^\]]|\]\])*)\]|"((?:[^"]|"")*)"|([^.\[\]"]*))\s*(\.?)(.*)$');
        if found is null then return '{}'; end if;
        parts := coalesce(replace(found[1], ']]', ']'), replace(found[2], '""', '"'), btrim(found[3])) || parts;
        if found[4] = '' then return case when found[5] = '' then parts else '{}' end; end if;
        rest := found[5];
    end loop;
end $$;

-- The PostgreSQL schema of a T-SQL schema, for names that are not shortened; tsql.every_schema has all.
create or replace function tsql.postgres_schema(database text, schema text) returns text language sql immutable parallel safe
return lower(database || '_' || coalesce(nullif(schema, ''), 'dbo'));

create or replace function tsql.object_id(database text, name text, kind text default null) returns integer
language plpgsql stable parallel safe as $$
declare
    parts text[] := tsql.name_parts(name);
    wanted text := upper(btrim(kind));
    space text;
    found integer;
begin
    if name is null or parts = '{}' or cardinality(parts) > 3 then return null; end if;
    if left(parts[1], 1) = '#' then
        return coalesce(case when coalesce(wanted, 'U') = 'U' then to_regclass('pg_temp.' || quote_ident(lower(parts[1])))::oid end,
                        case when coalesce(wanted, 'P') = 'P' then to_regprocedure('pg_temp.' || quote_ident(lower(parts[1])) || '()')::oid end
                       )::bigint::integer;
    end if;
    database := coalesce(nullif(parts[3], ''), database);
    space := tsql.postgres_schema(database, parts[2]);
    select o.object_id into found from tsql.every_object o
     where o.postgres_schema = space and lower(o.name) = lower(parts[1]) and (wanted is null or btrim(o.type) = wanted) limit 1;
    return found;
end $$;
create or replace function tsql.object_name(id integer) returns text language sql stable parallel safe
begin atomic
    select o.name from tsql.every_object o where o.object_id = id limit 1;
end;
create or replace function tsql.object_schema_name(id integer) returns text language sql stable parallel safe
begin atomic
    select o.schema_name from tsql.every_object o where o.object_id = id limit 1;
end;
create or replace function tsql.objectproperty(id integer, property text) returns integer language sql stable parallel safe
begin atomic
    select case lower(property) when 'istable' then (o.type = 'U')::integer when 'isusertable' then (o.type = 'U')::integer
                when 'isview' then (o.type = 'V')::integer when 'isprocedure' then (o.type = 'P')::integer
                when 'istrigger' then (o.type = 'TR')::integer when 'isqueue' then (o.type = 'SQ')::integer
                when 'isscalarfunction' then (o.type = 'FN')::integer when 'istablefunction' then (o.type in ('IF', 'TF'))::integer
                when 'isinlinefunction' then (o.type = 'IF')::integer when 'issystemtable' then (o.type = 'S')::integer
                when 'ismsshipped' then o.is_ms_shipped::integer when 'ownerid' then coalesce(o.principal_id, 1)
                when 'schemaid' then o.schema_id
                when 'execisquotedidenton' then case when o.type in ('P', 'FN', 'IF', 'TF', 'TR', 'V') then 1 end
                when 'execisansinullson' then case when o.type in ('P', 'FN', 'IF', 'TF', 'TR', 'V') then 1 end
                when 'tablehasidentity' then case when o.type = 'U' then
                    exists (select from pg_attribute a where a.attrelid = o.object_id::bigint::oid and a.attidentity <> '')::integer end
                when 'tablehasprimarykey' then case when o.type = 'U' then
                    exists (select from pg_index i where i.indrelid = o.object_id::bigint::oid and i.indisprimary)::integer end end
      from tsql.every_object o where o.object_id = id limit 1;
end;
create or replace function tsql.objectpropertyex(id integer, property text) returns text language sql stable parallel safe
begin atomic
    select case when lower(property) = 'basetype' then o.type else tsql.objectproperty(id, property)::text end
      from tsql.every_object o where o.object_id = id limit 1;
end;
create or replace function tsql.object_definition(id integer) returns text language sql stable parallel safe
begin atomic
    select tsql.as_created(coalesce((select m.definition from servicebroker.tsql_modules m where m.module_id = id and m.kind <> 'SN'),
                                    tsql.noted_text(id::bigint::oid)));
end;
create or replace function tsql.col_name(id integer, place integer) returns text language sql stable parallel safe
begin atomic
    select c.name from tsql.every_column c where c.object_id = id and c.column_id = place;
end;
create or replace function tsql.columnproperty(id integer, column_name text, property text) returns integer language sql stable parallel safe
begin atomic
    select case lower(property) when 'allowsnull' then c.is_nullable::integer when 'columnid' then c.column_id
                when 'iscomputed' then c.is_computed::integer when 'isidentity' then c.is_identity::integer
                when 'isidnotforrepl' then 0 when 'isrowguidcol' then 0 when 'issparse' then 0 when 'ishidden' then 0
                when 'precision' then case when c.type_name = 'decimal' then split_part(c.size, ',', 1)::integer
                                           when c.type_name in ('nvarchar', 'nchar') and c.max_length > 0 then c.max_length / 2
                                           when c.type_name in ('varchar', 'char', 'varbinary', 'binary', 'nvarchar') then c.max_length
                                           else tsql.type_precision(c.type_name) end
                when 'scale' then case when c.type_name = 'decimal' then split_part(c.size, ',', 2)::integer
                                       when c.type_name in ('datetime2', 'time', 'datetimeoffset') and c.size ~ '^\d$' then c.size::integer
                                       else tsql.type_scale(c.type_name) end end
      from tsql.every_column c where c.object_id = id and lower(c.name) = lower(column_name);
end;

create or replace function tsql.db_id(name text) returns smallint language sql stable parallel safe
begin atomic
    select d.database_id::smallint from tsql.databases d where lower(d.name) = lower(db_id.name);
end;
create or replace function tsql.has_dbaccess(name text) returns integer language sql stable parallel safe
begin atomic
    select 1 from tsql.databases d where lower(d.name) = lower(has_dbaccess.name);
end;
create or replace function tsql.db_name(id integer) returns text language sql stable parallel safe
begin atomic
    select d.name from tsql.databases d where d.database_id = id;
end;
create or replace function tsql.databasepropertyex(name text, property text) returns text language sql stable parallel safe
begin atomic
    select case when lower(property) in ('isautoclose', 'isautoshrink', 'isfulltextenabled', 'isinstandby', 'ispublished', 'issubscribed',
                                         'ismergepublished', 'issyncwithbackup', 'isclone', 'isrecursivetriggersenabled') then '0'
                else case lower(property) when 'status' then 'ONLINE'
                         when 'updateability' then case d.is_read_only when 1 then 'READ_ONLY' else 'READ_WRITE' end
                         when 'collation' then d.collation_name when 'recovery' then d.recovery_model_desc when 'useraccess' then d.user_access_desc
                         when 'isansinullsenabled' then '1' when 'isquotedidentifiersenabled' then '1' when 'version' then '957' end end
      from tsql.databases d where lower(d.name) = lower(databasepropertyex.name);
end;
create or replace function tsql.schema_id(database text, name text) returns integer language sql stable parallel safe
begin atomic
    select s.schema_id from tsql.every_schema s where s.postgres_schema = tsql.postgres_schema(schema_id.database, schema_id.name) limit 1;
end;
create or replace function tsql.schema_name(database text, id integer) returns text language sql stable parallel safe
begin atomic
    select case when id is null then 'dbo'
                else (select s.name from tsql.every_schema s where s.schema_id = id limit 1) end;
end;
create or replace function tsql.principal_id(database text, name text) returns integer language sql stable parallel safe
begin atomic
    select p.principal_id from servicebroker.principals p join servicebroker.databases d using (database_id)
     where lower(d.name) = lower(principal_id.database) and lower(p.name) = lower(principal_id.name);
end;
create or replace function tsql.user_name(database text, id integer) returns text language sql stable parallel safe
begin atomic
    select p.name from servicebroker.principals p join servicebroker.databases d using (database_id)
     where lower(d.name) = lower(user_name.database) and p.principal_id = id;
end;
create or replace function tsql.type_name(id integer) returns text language sql stable parallel safe
begin atomic
    select t.name from tsql.types t where t.user_type_id = id;
end;
create or replace function tsql.type_id(database text, type_name text) returns integer language sql stable parallel safe
begin atomic
    select coalesce(
        (select t.type_id
           from servicebroker.tsql_types t join servicebroker.databases d using (database_id), tsql.name_parts(type_name) parts
          where lower(d.name) = lower(type_id.database) and lower(t.name) = lower(parts[1])
            and lower(t.schema_name) = lower(coalesce(nullif(parts[2], ''), 'dbo')) and cardinality(parts) < 3),
        (select t.user_type_id from tsql.system_types t, tsql.name_parts(type_name) parts
          where t.name = lower(parts[1]) and lower(coalesce(parts[2], 'sys')) = 'sys'));
end;
create or replace function tsql.typeproperty(type text, property text) returns integer language sql stable parallel safe
begin atomic
    select case lower(property) when 'allowsnull' then 1 when 'ownerid' then 1 when 'precision' then tsql.type_precision(t.name)
                when 'scale' then tsql.type_scale(t.name) end
      from tsql.system_types t where t.name = lower(btrim(type, '[] '));
end;
-- Views of applications from earlier versions may call it.
create or replace function tsql.col_length(database text, table_name text, column_name text) returns smallint language sql stable parallel safe
begin atomic
    select c.max_length from tsql.every_column c
     where c.object_id = (select tsql.object_id(col_length.database, table_name)) and lower(c.name) = lower(column_name);
end;
create or replace function tsql.identity_sequence(database text, table_name text) returns regclass language sql stable
begin atomic
    select pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)::regclass from pg_attribute a
     where a.attrelid = (select tsql.object_id(database, table_name, 'U'))::bigint::oid and a.attidentity <> '';
end;
create or replace function tsql.ident_current(database text, table_name text) returns numeric language sql stable
begin atomic
    select coalesce(s.last_value, s.start_value) from pg_sequences s
     where format('%I.%I', s.schemaname, s.sequencename)::regclass = tsql.identity_sequence(database, table_name);
end;
create or replace function tsql.ident_seed(database text, table_name text) returns numeric language sql stable
begin atomic
    select s.seqstart from pg_sequence s where s.seqrelid = tsql.identity_sequence(database, table_name);
end;
create or replace function tsql.ident_incr(database text, table_name text) returns numeric language sql stable
begin atomic
    select s.seqincrement from pg_sequence s where s.seqrelid = tsql.identity_sequence(database, table_name);
end;
create or replace function tsql.serverproperty(property text) returns text language sql stable parallel safe
return case lower(property) when 'productversion' then '16.0.1000.6' when 'productmajorversion' then '16' when 'productlevel' then 'RTM'
            when 'edition' then 'servicebroker for PostgreSQL' when 'engineedition' then '3'
            when 'servername' then 'servicebroker' when 'machinename' then 'servicebroker' when 'collation' then 'Latin1_General_BIN2'
            when 'instancedefaultdatapath' then tsql.data_path() when 'instancedefaultlogpath' then tsql.data_path()
            when 'instancedefaultbackuppath' then rtrim(tsql.data_path(), '/')
            when 'isclustered' then '0' when 'isfulltextinstalled' then '0' when 'ishadrenabled' then '0'
            when 'isintegratedsecurityonly' then '0' when 'issingleuser' then '0' when 'isxtpsupported' then '0' end;
-- Functions of files and filegroups. Their bodies are strings, as those of the functions of logins below.
create or replace function tsql.file_id(database text, name text) returns smallint language sql stable parallel safe
as $$ select f.file_id::smallint from tsql.master_files f where f.database_id = tsql.db_id(file_id.database) and lower(f.name) = lower(file_id.name) $$;
create or replace function tsql.file_name(database text, id integer) returns text language sql stable parallel safe
as $$ select f.name from tsql.master_files f where f.database_id = tsql.db_id(file_name.database) and f.file_id = file_name.id $$;
create or replace function tsql.fileproperty(database text, name text, property text) returns integer language sql stable parallel safe
as $$ select case lower(property) when 'isreadonly' then 0 when 'isprimaryfile' then 1 - f.type when 'islogfile' then f.type
                                  when 'spaceused' then f.size end
        from tsql.master_files f where f.database_id = tsql.db_id(fileproperty.database) and lower(f.name) = lower(fileproperty.name) $$;
create or replace function tsql.filegroup_id(name text) returns integer language sql immutable parallel safe
return case lower(name) when 'primary' then 1 end;
create or replace function tsql.filegroup_name(id integer) returns text language sql immutable parallel safe
return case id when 1 then 'PRIMARY' end;
create or replace function tsql.filegroupproperty(name text, property text) returns integer language sql immutable parallel safe
return case when lower(name) = 'primary' then case lower(property) when 'isreadonly' then 0 when 'isuserdefinedfg' then 0 when 'isdefault' then 1 end end;
create or replace function tsql.sessionproperty(property text) returns integer language sql immutable strict parallel safe
return case when upper(property) in ('ANSI_NULLS', 'ANSI_PADDING', 'ANSI_WARNINGS', 'ARITHABORT', 'CONCAT_NULL_YIELDS_NULL', 'QUOTED_IDENTIFIER') then 1
            when upper(property) = 'NUMERIC_ROUNDABORT' then 0 end;
create or replace function tsql.collationproperty(collation_name text, property text) returns integer language sql immutable strict parallel safe
return case when lower(collation_name) = 'latin1_general_bin2' then
           case lower(property) when 'codepage' then 1252 when 'lcid' then 1033 when 'comparisonstyle' then 0 when 'version' then 0 end end;
create or replace function tsql.lock_timeout() returns integer language sql stable parallel safe
return coalesce(nullif((select s.setting::integer from pg_settings s where s.name = 'lock_timeout'), 0), -1);
-- Functions of logins. Their bodies are strings, so that they do not depend on the views: defaults of tables may call
-- them, and would be dropped with a view.
create or replace function tsql.login_id(name text) returns integer language sql stable parallel safe
as $$ select p.principal_id from tsql.server_principals p where lower(p.name) = lower(login_id.name) limit 1 $$;
create or replace function tsql.login_sid(name text) returns bytea language sql stable parallel safe
as $$ select p.sid from tsql.server_principals p where lower(p.name) = lower(login_sid.name) limit 1 $$;
create or replace function tsql.login_name(sid bytea) returns text language sql stable parallel safe
as $$ select p.name from tsql.server_principals p where p.sid = login_name.sid limit 1 $$;
create or replace function tsql.login_name(id integer) returns text language sql stable parallel safe
as $$ select p.name from tsql.server_principals p where p.principal_id = login_name.id limit 1 $$;
create or replace function tsql.certproperty(id integer, property text) returns text language sql stable parallel safe
begin atomic
    select case lower(property) when 'subject' then c.subject when 'issuer_name' then c.issuer_name when 'cert_serial_number' then c.cert_serial_number
                when 'start_date' then tsql.moment_text(c.start_date at time zone 'UTC', 0)
                when 'expiry_date' then tsql.moment_text(c.expiry_date at time zone 'UTC', 0) end
      from sys.certificates c where c.certificate_id = id limit 1;
end;
create or replace function tsql.get_transmission_status(handle uuid) returns text language sql stable
begin atomic
    select case when handle is not null then
                     coalesce((select t.transmission_status from sys.transmission_queue t where t.conversation_handle = handle
                                order by t.message_sequence_number limit 1), '') end;
end;
create or replace function tsql.get_transmission_status(handle text) returns text language sql stable
begin atomic
    select tsql.get_transmission_status(tsql.to_uniqueidentifier(handle));
end;

-- IS_MEMBER: 1 or 0; null if there is no such role. A role may be a member of another role.
create or replace function tsql.is_member(database text, principal text, role text) returns integer language sql stable parallel safe
begin atomic
    with recursive known as (
        select p.* from servicebroker.principals p join servicebroker.databases d using (database_id)
         where lower(d.name) = lower(is_member.database)
    ), roles (principal_id) as (
        select p.principal_id from known p where lower(p.name) = lower(is_member.principal)
         union
        select m.role_id from roles r join servicebroker.role_members m
               on m.member_id = r.principal_id and m.database_id = (select database_id from known limit 1)
    )
    select case when wanted.principal_id = 0 or wanted.principal_id in (select principal_id from roles)
                  or (wanted.name = 'db_owner' and 1 in (select principal_id from roles)) then 1 else 0 end
      from known wanted where lower(wanted.name) = lower(is_member.role) and wanted.is_role;
end;
-- The session's principal and its roles. The session sets servicebroker.tsql_user; dbo if it is unset.
create view tsql.user_token with (security_invoker = true) as
select p.principal_id, p.sid, p.name, case p.type when 'R' then 'ROLE' else 'SQL USER' end as type, 'GRANT OR DENY'::text as usage, p.broker_database
  from tsql.database_principals p,
       (select coalesce(nullif(current_setting('servicebroker.tsql_user', true), ''), 'dbo') as name) own
 where lower(p.name) = lower(own.name) or p.type = 'R' and tsql.is_member(current_setting('servicebroker.database', true), own.name, p.name) = 1;
-- Its rows are for db_owner; who works is told by the session, and is dbo before that.
-- GUIDs in columns of text are in capital letters, as in SQL Server.
do $$
declare
    known record;
begin
    for known in values ('conversation_endpoints', 'far_broker_instance'), ('whole_transmission_queue', 'to_broker_instance') loop
        execute format('drop view if exists tsql.%I cascade', known.column1);
        execute (select format('create view tsql.%I with (security_invoker = true) as select %s from %s t', known.column1,
                               string_agg(format(case a.attname when known.column2 then 'upper(t.%I) as %1$I' else 't.%I' end, a.attname),
                                          ', ' order by a.attnum), a.attrelid::regclass)
                   from pg_attribute a
                  where a.attrelid = ('sys.' || replace(known.column1, 'whole_', ''))::regclass and a.attnum > 0 and not a.attisdropped
                  group by a.attrelid);
    end loop;
end $$;
create or replace view tsql.transmission_queue with (security_invoker = true) as
select t.* from tsql.whole_transmission_queue t
 where coalesce(nullif(current_setting('servicebroker.tsql_user', true), ''), 'dbo') = 'dbo'
    or tsql.is_member(current_setting('servicebroker.database', true), current_setting('servicebroker.tsql_user', true),
                      'db_owner') = 1;
create or replace function tsql.certencoded(id integer) returns bytea language sql stable parallel safe
begin atomic
    select c.certificate from servicebroker.certificates c where c.certificate_id = id;
end;
create or replace function tsql.cert_id(database text, name text) returns integer language sql stable parallel safe
begin atomic
    select c.certificate_id from servicebroker.certificates c join servicebroker.databases d using (database_id)
     where lower(d.name) = lower(cert_id.database) and lower(c.name) = lower(cert_id.name);
end;

-- The rows of a catalog view of another database, for names such as msdb.sys.service_queues. `kind` is a row of the
-- view, for its type.
create or replace function tsql.catalog_of(database text, said text, kind anyelement) returns setof anyelement
language plpgsql volatile as $$
declare
    shown text := coalesce(current_setting('servicebroker.database', true), '');
begin
    if not exists (select from tsql.databases d where lower(d.name) = lower(database)) then
        perform tsql.refuse(208, format('Invalid object name ''%s''.', said));
    end if;
    perform set_config('servicebroker.database', database, false);
    return query execute format('select * from %s', pg_typeof(kind));
    perform set_config('servicebroker.database', shown, false);
end $$;

-- The column of a key as T-SQL spells it; null if the key has several columns.
create or replace function tsql.written_column(relation oid, numbers smallint[]) returns text language sql stable
return case when cardinality(numbers) = 1 then
           (select coalesce(substring(col_description(relation, a.attnum) from '^\w+(?:\([^)]*\))? ([^\n]*)'), a.attname::text)
              from pg_attribute a where a.attrelid = relation and a.attnum = numbers[1]) end;
