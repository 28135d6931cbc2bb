-- A WITH clause for expected_objects.py: its part `objects` has the objects of our schemas for which the condition
-- {which} holds: kind, name ({view} for the view of a queue), definition, and the queue that it belongs to, or null.
-- The empty search_path makes PostgreSQL print qualified names.
with setting as materialized (
    select set_config('search_path', 'pg_catalog', true) as path
), relations as (
    select * from (
        select c.oid, c.relkind, c.relname::text as name, n.nspname::text as space, q.queue_id as view_of,
               coalesce(q.queue_id, case when n.nspname = 'servicebroker'
                                         then substring(c.relname from '_([0-9]{1,10})(?:_|$)')::bigint end) as queue_id
          from pg_class c
          join pg_namespace n on n.oid = c.relnamespace
          left join servicebroker.queues q on q.postgres_schema = n.nspname and q.postgres_name = c.relname and c.relkind = 'v'
         where (n.nspname in ('servicebroker', 'servicebroker_fence', 'sys', 'tsql') or q.queue_id is not null)
           and c.relkind in ('r', 'v', 'i', 'S')) r
     where {which}
), functions as (
    select * from (
        select p.oid, p.proname, n.nspname::text as space,
               case when n.nspname = 'servicebroker' then substring(p.proname from '_([0-9]{1,10})$')::bigint end as queue_id
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname in ('servicebroker', 'servicebroker_fence', 'sys', 'tsql') and p.prokind = 'f') f
     where {which}
), found (kind, space, name, definition, view_of, queue_id) as (
    select case r.relkind when 'r' then 'table' when 'v' then 'view' when 'i' then 'index' else 'sequence' end,
           r.space, r.name,
           case r.relkind
                when 'r' then (
                    select coalesce(string_agg(format('%s %s%s', a.attname, format_type(a.atttypid, a.atttypmod),
                                             case when a.attnotnull then ' not null' else '' end), ', ' order by a.attname), '')
                      from pg_attribute a where a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped)
                    || coalesce((select '; rules ' || string_agg(u.rulename, ', ' order by u.rulename)
                                   from pg_rewrite u where u.ev_class = r.oid), '')
                    || coalesce((select '; policies ' || string_agg(p.polname, ', ' order by p.polname)
                                   from pg_policy p where p.polrelid = r.oid), '')
                when 'v' then pg_get_viewdef(r.oid) || coalesce((select ' with ' || array_to_string(c.reloptions, ', ')
                                                                   from pg_class c where c.oid = r.oid), '')
                    || coalesce((select '; defaults ' || string_agg(d.adnum::text, ', ' order by d.adnum)
                                   from pg_attrdef d where d.adrelid = r.oid), '')
                when 'i' then pg_get_indexdef(r.oid)
                else '' end
           -- names of its triggers, whose definitions are objects of their own below; triggers of the built-in service,
           -- of READ_ONLY and of the trail are left out, since they come and go
           || coalesce((select '; triggers ' || string_agg(t.tgname, ', ' order by t.tgname) from pg_trigger t
                         where t.tgrelid = r.oid and not t.tgisinternal and t.tgname <> 'arrival' and t.tgname !~ '^(read_only|trailed)_'), ''),
           r.view_of, r.queue_id
      from relations r
    union all
    select 'trigger', r.space, r.name || '.' || t.tgname, pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text, r.view_of, r.queue_id
      from relations r join pg_trigger t on t.tgrelid = r.oid
     where not t.tgisinternal and t.tgname <> 'arrival' and t.tgname !~ '^(read_only|trailed)_'
    union all
    select 'function', f.space, format('%s(%s)', f.proname, pg_get_function_identity_arguments(f.oid)),
           pg_get_functiondef(f.oid), null, f.queue_id
      from functions f
), objects (kind, name, definition, queue_id) as (
    select f.kind,
           case when f.view_of is null then f.space || '.' || f.name else regexp_replace(f.name, '^.*?(\.refuse(_all)?)?$', '{view}\1') end,
           f.definition, f.queue_id
      from setting, found f
     where setting.path is not null
)
