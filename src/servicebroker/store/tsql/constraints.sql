-- Catalog views of keys, constraints, defaults and indexes. Scripts query them before they add or drop one. views.sql
-- drops them together with tsql.every_object (CASCADE), and they are created again here.

-- Give unnamed keys and constraints names as SQL Server does: table, column, and hexadecimal digits that are unique.
create or replace function tsql.name_constraints(relation regclass) returns void language plpgsql as $$
declare
    known record;
    called text;
begin
    for known in
        select k.oid, k.conname, k.contype, coalesce(tsql.noted_name(relation), c.relname) as own, k.conkey,
               tsql.written_column(relation, case k.contype when 'f' then k.conkey[1:1] else k.conkey end) as key_column,
               lpad(upper(to_hex(k.oid::bigint)), 8, '0') as digits
          from pg_constraint k join pg_class c on c.oid = k.conrelid
         where k.conrelid = relation and k.contype in ('p', 'u', 'f', 'c') and obj_description(k.oid, 'pg_constraint') is null
    loop
        called := case when known.contype in ('p', 'u') then
                      format('%s__%s__%s%s', case known.contype when 'p' then 'PK' else 'UQ' end, left(known.own, 8),
                             lpad(upper(to_hex(hashtext(known.conkey::text))), 8, '0'), known.digits)
                  else format('%s__%s%s__%s', case known.contype when 'f' then 'FK' else 'CK' end, left(known.own, 9),
                              '__' || left(known.key_column, 14 - length(left(known.own, 9))), known.digits) end;
        execute format('alter table %s rename constraint %I to %I', relation, known.conname, lower(called));
        execute format('comment on constraint %I on %s is %L', lower(called), relation, called);
    end loop;
end $$;

-- For each key with a column of a collation that ignores case, a unique index that compares without it. `folded` are the
-- quoted names of such columns.
create or replace function tsql.fold_keys(relation regclass, folded text[]) returns void language plpgsql as $$
declare
    place constant text := (select c.relnamespace::regnamespace::text from pg_class c where c.oid = relation);
    known record;
    called text;
begin
    for known in
        select k.conname, string_agg(case when said.is_folded then format('lower(%I)', a.attname) else format('%I', a.attname) end, ', '
                                     order by p.number) as columns
          from pg_constraint k
          cross join unnest(k.conkey) with ordinality p(attnum, number)
          join pg_attribute a on a.attrelid = k.conrelid and a.attnum = p.attnum
          cross join lateral (select '"' || replace(a.attname, '"', '""') || '"' = any (folded) as is_folded) said
         where k.conrelid = relation and k.contype in ('p', 'u')
         group by k.oid, k.conname
        having bool_or(said.is_folded)
    loop
        called := left(known.conname, 56) || '_folded';
        if to_regclass(format('%s.%I', place, called)) is null then
            execute format('create unique index %I on %s (%s) nulls not distinct', called, relation, known.columns);
            execute format('comment on index %s.%I is ''folded''', place, called);
        end if;
    end loop;
end $$;
create or replace function tsql.drop_folded_key(relation regclass, key text) returns void language plpgsql as $$
begin
    execute (select coalesce(string_agg(format('drop index %s', i.indexrelid::regclass), ';'), 'select')
               from pg_index i join pg_class c on c.oid = i.indexrelid
              where i.indrelid = relation and c.relname = left(key, 56) || '_folded');
end $$;

-- Refuse a constraint name that the schema has already. In SQL Server such names are unique in the schema, in
-- PostgreSQL only in the table.
create or replace function tsql.check_constraint_names(place text, wanted text[]) returns void language plpgsql as $$
declare
    taken constant text := (
        select one.name from unnest(wanted) with ordinality one (name, number)
         where lower(one.name) = any (array(select lower(w) from unnest(wanted[:one.number::integer - 1]) w))
            or exists (select from tsql.every_object o where o.postgres_schema = place and lower(o.name) = lower(one.name))
         order by one.number limit 1);
begin
    if taken is not null then
        perform tsql.refuse(2714, format('There is already an object named ''%s'' in the database.', taken));
    end if;
end $$;

-- The comment of a constraint: the first line is its name, the second line its definition if NOCHECK has disabled it.
-- A disabled constraint is replaced by a CHECK that is always true. It mentions the columns, and the referenced table
-- of a foreign key, so that PostgreSQL renames them there, too, and does not drop that table. The referenced columns
-- are only in the comment; tsql.rename_held_column renames them.
create or replace function tsql.noted_constraint(id oid, line integer) returns text language sql stable strict parallel safe
return case line when 1 then nullif(split_part(obj_description(id, 'pg_constraint'), E'\n', 1), '')
       else nullif(regexp_replace(obj_description(id, 'pg_constraint'), E'^[^\n]*\n?', ''), '') end;
-- A regular expression for one name in a definition that PostgreSQL prints.
create or replace function tsql.shown_name() returns text language sql immutable parallel safe as $$
select '(?:[^\s"(),.]+|"(?:[^"]|"")+")' $$;
create or replace function tsql.split_key(definition text, out own text, out referenced text, out other text, out actions text)
language sql immutable strict parallel safe as $$
select m[1], m[2], m[3], m[4]
  from tsql.shown_name() part,
       regexp_match(definition, '^FOREIGN KEY \((' || part || '(?:, ' || part || ')*)\) REFERENCES (' || part || '(?:\.' || part || ')?)\(('
                                || part || '(?:, ' || part || ')*)\)(.*)$') m $$;
-- The CHECK that replaces a disabled constraint. For a table that refers to itself it uses tableoid, since a dump could
-- not create the table with its own name in a CHECK.
create or replace function tsql.holding(relation regclass, definition text) returns text language plpgsql stable strict as $$
declare
    key record;
begin
    select k.* into key from tsql.split_key(definition) k;
    if key.own is null then return format('check (true or (%s))', substring(definition from '^CHECK (.*)$')); end if;
    return format('check (true or row(%s) is null or %s is null)', key.own,
                  case when key.referenced::regclass = relation then 'tableoid' else format('%L::regclass', key.referenced) end);
end $$;
create or replace function tsql.held_constraint(id oid) returns text language plpgsql stable strict
set search_path = pg_catalog, pg_temp as $$
declare
    noted constant text := tsql.noted_constraint(id, 2);
    shown constant text := case when noted is not null then pg_get_constraintdef(id) end;
    named text[];
    key record;
begin
    if noted is null then return null; end if;
    select k.* into key from tsql.split_key(noted) k;
    if key.own is null then return coalesce('CHECK (' || substring(shown from '^CHECK \(\(true OR (.*)\)\)$') || ')', noted); end if;
    named := regexp_match(shown, '^CHECK \(\(true OR \(ROW\((.*)\) IS NULL\) OR \((?:''(.*)''::regclass|tableoid) IS NULL\)\)\)$');
    if named is null then return noted; end if;
    return format('FOREIGN KEY (%s) REFERENCES %s(%s)%s', named[1],
                  coalesce(replace(named[2], $q$''$q$, $q$'$q$), (select k.conrelid::regclass::text from pg_constraint k where k.oid = id)),
                  key.other, key.actions);
end $$;
create or replace function tsql.rename_held_column(relation regclass, old_column text, new_column text) returns void language plpgsql as $$
declare
    held record;
begin
    for held in
        select distinct k.conname, k.conrelid::regclass as place, coalesce(tsql.noted_constraint(k.oid, 1), k.conname) as called,
               s.own, s.referenced, s.actions,
               (select string_agg(case when parse_ident(one[1]) = parse_ident(old_column) then quote_ident((parse_ident(new_column))[1])
                                       else one[1] end, ', ' order by number)
                  from regexp_matches(s.other, tsql.shown_name(), 'g') with ordinality found (one, number)) as other
          from pg_constraint k join pg_depend d on d.classid = 'pg_constraint'::regclass and d.objid = k.oid
         cross join tsql.split_key(tsql.held_constraint(k.oid)) s
         where k.contype = 'c' and d.refclassid = 'pg_class'::regclass and d.refobjid = relation and s.referenced::regclass = relation
    loop
        execute format('comment on constraint %I on %s is %L', held.conname, held.place,
                       format(E'%s\nFOREIGN KEY (%s) REFERENCES %s(%s)%s', held.called, held.own, held.referenced, held.other, held.actions));
    end loop;
end $$;
create or replace function tsql.switch_constraints(relation regclass, names text[], holds boolean, is_checked boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    known record;
    missing text := (select n from unnest(names) n where not exists (
        select from pg_constraint k where k.conrelid = relation
           and lower(n) in (lower(tsql.noted_constraint(k.oid, 1)), k.conname)) limit 1);
begin
    if missing is not null then perform tsql.refuse(4917, format('Constraint ''%s'' does not exist.', missing)); end if;
    for known in
        select k.conname, k.contype, k.convalidated, coalesce(tsql.noted_constraint(k.oid, 1), k.conname) as called,
               pg_get_constraintdef(k.oid) as definition, tsql.held_constraint(k.oid) as held
          from pg_constraint k
         where k.conrelid = relation and (names is null and k.contype in ('f', 'c') or exists (
                   select from unnest(names) n where lower(n) in (lower(tsql.noted_constraint(k.oid, 1)), k.conname)))
    loop
        if known.contype not in ('f', 'c') then
            perform tsql.refuse(11415, format('Object ''%s'' cannot be disabled or enabled. This action applies only to foreign key and '
                                              'check constraints.', known.called));
        elsif holds and known.held is null then
            if is_checked and not known.convalidated then
                execute format('alter table %s validate constraint %I', relation, known.conname);
            end if;
        elsif holds or known.held is null then
            execute format('alter table %s drop constraint %I', relation, known.conname);
            execute format('alter table %s add constraint %I %s', relation, known.conname,
                           case when holds then known.held || case when is_checked then '' else ' not valid' end
                                else tsql.holding(relation, regexp_replace(known.definition, ' NOT VALID$', '')) end);
            execute format('comment on constraint %I on %s is %L', known.conname, relation,
                           known.called || case when holds then '' else E'\n' || regexp_replace(known.definition, ' NOT VALID$', '') end);
        end if;
    end loop;
end $$;

-- The parts of a foreign key, also of a disabled one, whose definition is only in the comment.
create or replace function tsql.foreign_key(id oid, out referenced oid, out key_index oid, out own smallint[], out other smallint[],
                                            out deleted text, out updated text) language plpgsql stable as $$
declare
    said record;
    names text[];
begin
    select k.confrelid, k.conindid, k.conkey, k.confkey, k.confdeltype, k.confupdtype into referenced, key_index, own, other, deleted, updated
      from pg_constraint k where k.oid = id;
    select k.* into said from tsql.split_key(tsql.held_constraint(id)) k;
    if said.own is null then return; end if;
    names := parse_ident(said.referenced);
    referenced := (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.relkind in ('r', 'p') and c.relname = names[cardinality(names)]
                      and case cardinality(names) when 1 then pg_table_is_visible(c.oid) else n.nspname = names[1] end);
    own := tsql.column_numbers((select k.conrelid from pg_constraint k where k.oid = id),
                               array(select one[1] from regexp_matches(said.own, tsql.shown_name(), 'g') one));
    other := tsql.column_numbers(referenced, array(select one[1] from regexp_matches(said.other, tsql.shown_name(), 'g') one));
    key_index := (select i.indexrelid from pg_index i where i.indrelid = referenced and i.indisunique
                     and i.indkey::smallint[] @> other and i.indkey::smallint[] <@ other order by i.indisprimary desc limit 1);
    deleted := tsql.key_action(substring(said.actions from 'ON DELETE (CASCADE|SET NULL|SET DEFAULT|RESTRICT)'));
    updated := tsql.key_action(substring(said.actions from 'ON UPDATE (CASCADE|SET NULL|SET DEFAULT|RESTRICT)'));
end $$;
create or replace function tsql.column_numbers(relation oid, quoted_names text[]) returns smallint[] language sql stable as $$
select array(select a.attnum from unnest(quoted_names) with ordinality one (name, place)
               join pg_attribute a on a.attrelid = relation and a.attname = (parse_ident(one.name))[1] order by one.place) $$;
create or replace function tsql.key_action(said text) returns text language sql immutable as $$
select case said when 'CASCADE' then 'c' when 'SET NULL' then 'n' when 'SET DEFAULT' then 'd' when 'RESTRICT' then 'r' else 'a' end $$;

create view tsql.key_constraints with (security_invoker = true) as
select o.*, tsql.index_number(c.conindid) as unique_index_id,
       (o.name ~ '^(PK|UQ)__.*__[0-9A-F]{16}$')::integer::smallint as is_system_named
  from tsql.objects o join pg_constraint c on c.oid = o.object_id::bigint::oid where o.type in ('PK', 'UQ');

create view tsql.foreign_keys with (security_invoker = true) as
select o.*, f.referenced::bigint::integer as referenced_object_id, tsql.index_number(f.key_index) as key_index_id,
       (tsql.noted_constraint(c.oid, 2) is not null)::integer::smallint as is_disabled,
       (not c.convalidated or tsql.noted_constraint(c.oid, 2) is not null)::integer::smallint as is_not_trusted,
       (o.name ~ '^FK__.*__[0-9A-F]{8}$')::integer::smallint as is_system_named,
       d.number as delete_referential_action, d.said as delete_referential_action_desc,
       u.number as update_referential_action, u.said as update_referential_action_desc
  from tsql.objects o
  join pg_constraint c on c.oid = o.object_id::bigint::oid
 cross join tsql.foreign_key(c.oid) f
  join (values ('a', 0::smallint, 'NO_ACTION'), ('r', 0, 'NO_ACTION'), ('c', 1, 'CASCADE'), ('n', 2, 'SET_NULL'), ('d', 3, 'SET_DEFAULT'))
       d (letter, number, said) on d.letter = f.deleted
  join (values ('a', 0::smallint, 'NO_ACTION'), ('r', 0, 'NO_ACTION'), ('c', 1, 'CASCADE'), ('n', 2, 'SET_NULL'), ('d', 3, 'SET_DEFAULT'))
       u (letter, number, said) on u.letter = f.updated
 where o.type = 'F';

create view tsql.foreign_key_columns with (security_invoker = true) as
select k.object_id as constraint_object_id, pair.place::integer as constraint_column_id, k.parent_object_id,
       pair.own::integer as parent_column_id, k.referenced_object_id, pair.other::integer as referenced_column_id, k.broker_database
  from tsql.foreign_keys k
 cross join tsql.foreign_key(k.object_id::bigint::oid) f
 cross join unnest(f.own, f.other) with ordinality pair (own, other, place);

create view tsql.check_constraints with (security_invoker = true) as
select o.*, (tsql.noted_constraint(c.oid, 2) is not null)::integer::smallint as is_disabled,
       (not c.convalidated or tsql.noted_constraint(c.oid, 2) is not null)::integer::smallint as is_not_trusted,
       case when cardinality(c.conkey) = 1 then c.conkey[1]::integer else 0 end as parent_column_id,
       coalesce(substring(tsql.held_constraint(c.oid) from '^CHECK \((.*)\)$'), pg_get_expr(c.conbin, c.conrelid)) as definition, (o.name ~ '^CK__.*__[0-9A-F]{8}$')::integer::smallint as is_system_named
  from tsql.objects o join pg_constraint c on c.oid = o.object_id::bigint::oid where o.type = 'C';

create view tsql.default_constraints with (security_invoker = true) as
select o.*, d.adnum::integer as parent_column_id, pg_get_expr(d.adbin, d.adrelid) as definition,
       (o.name ~ '^DF__.*__[0-9A-F]{8}$')::integer::smallint as is_system_named
  from tsql.objects o join pg_attrdef d on d.oid = o.object_id::bigint::oid where o.type = 'D';

create view tsql.computed_columns with (security_invoker = true) as
select c.object_id, c.name, c.column_id, pg_get_expr(d.adbin, d.adrelid) as definition, 1::smallint as is_persisted,
       1::smallint as is_computed, t.broker_database
  from tsql.tables t
  join tsql.every_column c on c.object_id = t.object_id and c.is_computed
  join pg_attrdef d on d.adrelid = t.object_id::bigint::oid and d.adnum = c.column_id;

create view tsql.index_columns with (security_invoker = true) as
select i.object_id, i.index_id, own.place::integer as index_column_id,
       coalesce(nullif(own.column_number, 0),  -- 0: the column ignores case, so that the index is on an expression
                (select a.attnum from pg_attribute a
                  where a.attrelid = x.indrelid and a.attnum > 0 and pg_get_indexdef(x.indexrelid, own.place::integer, false)
                        in (format('lower(%I)', a.attname), format('lower((%I)::text)', a.attname))))::integer as column_id,
       case when own.place <= x.indnkeyatts then own.place::integer else 0 end as key_ordinal,
       coalesce((x.indoption[own.place - 1] & 1), 0)::smallint as is_descending_key,
       (own.place > x.indnkeyatts)::integer::smallint as is_included_column, i.broker_database
  from tsql.every_index i
  join pg_index x on x.indexrelid = i.postgres_index,
       unnest(x.indkey::smallint[]) with ordinality own (column_number, place);

create view tsql.information_schema_table_constraints with (security_invoker = true) as
select o.broker_database as constraint_catalog, s.name as constraint_schema, o.name as constraint_name,
       o.broker_database as table_catalog, s.name as table_schema, t.name as table_name,
       case o.type when 'PK' then 'PRIMARY KEY' when 'UQ' then 'UNIQUE' when 'F' then 'FOREIGN KEY' else 'CHECK' end as constraint_type,
       'NO'::text as is_deferrable, 'NO'::text as initially_deferred
  from tsql.objects o
  join tsql.tables t on t.object_id = o.parent_object_id
  join tsql.schemas s on s.schema_id = o.schema_id and s.broker_database = o.broker_database
 where o.type in ('PK', 'UQ', 'F', 'C');

create view tsql.information_schema_check_constraints with (security_invoker = true) as
select c.broker_database as constraint_catalog, s.name as constraint_schema, c.name as constraint_name, c.definition as check_clause
  from tsql.check_constraints c join tsql.schemas s using (schema_id, broker_database);
create view tsql.information_schema_key_column_usage with (security_invoker = true) as
select o.broker_database as constraint_catalog, s.name as constraint_schema, o.name as constraint_name, o.broker_database as table_catalog,
       s.name as table_schema, t.name as table_name, c.name as column_name, own.place::integer as ordinal_position
  from tsql.objects o
  join tsql.tables t on t.object_id = o.parent_object_id
  join tsql.schemas s on s.schema_id = o.schema_id and s.broker_database = o.broker_database
  join pg_constraint k on k.oid = o.object_id::bigint::oid
 cross join unnest(case o.type when 'F' then (tsql.foreign_key(k.oid)).own else k.conkey end) with ordinality own (number, place)
  join tsql.every_column c on c.object_id = t.object_id and c.column_id = own.number
 where o.type in ('PK', 'UQ', 'F');
create view tsql.information_schema_constraint_column_usage with (security_invoker = true) as
select o.broker_database as table_catalog, s.name as table_schema, t.name as table_name, c.name as column_name,
       o.broker_database as constraint_catalog, s.name as constraint_schema, o.name as constraint_name
  from tsql.objects o
  join tsql.tables t on t.object_id = o.parent_object_id
  join tsql.schemas s on s.schema_id = o.schema_id and s.broker_database = o.broker_database
  join pg_constraint k on k.oid = o.object_id::bigint::oid
 cross join unnest(case o.type when 'F' then (tsql.foreign_key(k.oid)).own else k.conkey end) own (number)
  join tsql.every_column c on c.object_id = t.object_id and c.column_id = own.number
 where o.type in ('PK', 'UQ', 'F', 'C');
create view tsql.information_schema_referential_constraints with (security_invoker = true) as
select f.broker_database as constraint_catalog, s.name as constraint_schema, f.name as constraint_name,
       f.broker_database as unique_constraint_catalog, s.name as unique_constraint_schema,
       k.name as unique_constraint_name, 'SIMPLE'::text as match_option, replace(f.update_referential_action_desc, '_', ' ') as update_rule,
       replace(f.delete_referential_action_desc, '_', ' ') as delete_rule
  from tsql.foreign_keys f
  join tsql.schemas s on s.schema_id = f.schema_id and s.broker_database = f.broker_database
  left join tsql.key_constraints k on k.parent_object_id = f.referenced_object_id and k.unique_index_id = f.key_index_id;

create or replace view tsql.database_files with (security_invoker = true) as
select f.file_id, f.type, f.type_desc, f.data_space_id, f.name, f.physical_name, f.state_desc, shown.broker_database, f.state, f.size,
       f.max_size, f.growth, f.is_media_read_only, f.is_read_only, f.is_sparse, f.is_percent_growth, f.is_name_reserved, f.file_guid
  from tsql.master_files f
  join servicebroker.shown_databases shown on f.database_id = sys.shown_database_id(shown.database_id, shown.broker_database);

create or replace view tsql.dm_tran_locks with (security_invoker = true) as
select case l.locktype when 'relation' then 'OBJECT' when 'tuple' then 'RID' when 'transactionid' then 'XACT' when 'virtualxid' then 'XACT'
                       when 'advisory' then 'APPLICATION' else upper(l.locktype) end as resource_type,
       coalesce(n.spid, l.pid) as request_session_id, coalesce(l.relation::bigint, 0) as resource_associated_entity_id,
       case l.mode when 'AccessShareLock' then 'Sch-S' when 'RowShareLock' then 'IS' when 'RowExclusiveLock' then 'IX' when 'ShareLock' then 'S'
                   when 'ShareUpdateExclusiveLock' then 'U' when 'ShareRowExclusiveLock' then 'SIX' when 'ExclusiveLock' then 'X'
                   when 'AccessExclusiveLock' then 'Sch-M' else l.mode end as request_mode,
       case when l.granted then 'GRANT' else 'WAIT' end as request_status,
       ''::text as resource_subtype, coalesce(place.id, 0) as resource_database_id, ''::text as resource_description, 0 as resource_lock_partition,
       'LOCK'::text as request_type, 1::smallint as request_reference_count, 0 as request_lifetime, 0 as request_exec_context_id, 0 as request_request_id,
       case l.locktype when 'advisory' then 'SESSION' else 'TRANSACTION' end as request_owner_type
  from pg_locks l left join tsql.session_numbers n using (pid)
  left join lateral (select sys.shown_database_id(s.database_id, s.broker_database) as id
                       from pg_class c join pg_namespace m on m.oid = c.relnamespace join tsql.every_schema s on s.postgres_schema = m.nspname
                      where c.oid = l.relation and c.relkind not in ('i', 'I') limit 1) place on true
 where (l.database = (select d.oid from pg_database d where d.datname = current_database()) or l.locktype = 'transactionid')
   and (l.relation is null or place.id is not null);
