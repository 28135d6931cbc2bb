-- The statements of role_rights.py.

-- name: plan_revoke.delete_fenced_roles
delete from servicebroker.fenced_roles where postgres_role = $1

-- name: plan_revoke.permissions_everywhere
delete from servicebroker.permissions where state <> $2 and (database_id, grantee_id) in
(select database_id, principal_id from servicebroker.principals where postgres_role = $1)

-- name: plan_revoke.permissions_in_database
delete from servicebroker.permissions where database_id = $1 and grantee_id = (select principal_id
from servicebroker.principals where database_id = $1 and postgres_role = $2)

-- name: plan_usage.insert_fenced_roles
insert into servicebroker.fenced_roles (postgres_role) values ($1) on conflict do nothing

-- name: plan_revoke_direct.find_rights
select exists (select from pg_namespace n left join pg_class c on c.relnamespace = n.oid
left join pg_attribute t on t.attrelid = c.oid and t.attacl is not null
cross join lateral (select * from aclexplode(n.nspacl) union all select * from aclexplode(c.relacl)
  union all select * from aclexplode(t.attacl)) a
where n.nspname in ('servicebroker', 'sys') and a.grantee = r.oid)
or exists (select from pg_proc p cross join aclexplode(p.proacl) a
where p.pronamespace = 'servicebroker'::regnamespace and a.grantee = r.oid)
from pg_roles r where rolname = $1

-- name: plan_user.find_principals
select exists (select from servicebroker.principals where database_id = $1 and postgres_role = $2),
exists (select from servicebroker.principals where database_id = $1 and lower(name) = lower($2))

-- name: plan_user.insert_principals
insert into servicebroker.principals (database_id, name, is_role, postgres_role) values ($1, $2, false, $2)

-- name: find_permissions.find_contracts_used
select s.service_id, array(select service_contract_id from servicebroker.service_contract_usages u
where u.service_id = s.service_id and service_contract_id >= $3 order by 1)
from servicebroker.services s where s.database_id = $1 and s.name = $2

-- name: find_permissions.find_contracts
select service_contract_id from servicebroker.service_contracts where database_id = $1 and name = $2

-- name: find_direct_rights
with ours as materialized (select c.oid, c.relkind, n.oid as schema_oid, format('%I.%I', n.nspname, c.relname) as name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname in ('servicebroker', 'servicebroker_fence') and c.relkind in ('r', 'p', 'v', 'm', 'S')
  and (n.nspname, c.relname) <> ('servicebroker_fence', 'caller')),
rights as (select r.rolname::text as role, o.name, p.name as privilege, p.place from pg_roles r cross join ours o
cross join unnest(  array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER', 'USAGE'])
  with ordinality p (name, place) where r.rolname = any ($1) and has_schema_privilege(r.oid, o.schema_oid, 'usage')
  and case when o.relkind = 'S' then
    p.name in ('SELECT', 'UPDATE', 'USAGE') and has_sequence_privilege(r.oid, o.oid, p.name)
  when p.name = 'USAGE' then false
  when p.name in ('DELETE', 'TRUNCATE', 'TRIGGER') then has_table_privilege(r.oid, o.oid, p.name)
  else has_any_column_privilege(r.oid, o.oid, p.name) end),
calls as (select r.rolname::text as role, 'servicebroker.' || p.proname as name from pg_roles r, pg_proc p
  where r.rolname = any ($1) and p.pronamespace = 'servicebroker'::regnamespace and p.prosecdef
  and p.prorettype <> 'trigger'::regtype and has_schema_privilege(r.oid, p.pronamespace, 'usage')
  and has_function_privilege(r.oid, p.oid, 'execute'))
select role, string_agg(privilege, ', ' order by place) || ' on ' || name from rights group by role, name
union all select role, 'EXECUTE on ' || name from calls
union all select r.rolname::text, 'CREATE in the schema ' || n.nspname from pg_roles r, pg_namespace n
  where r.rolname = any ($1) and n.nspname in ('servicebroker', 'servicebroker_fence', 'sys', 'tsql')
  and has_schema_privilege(r.oid, n.oid, 'create') order by 1, 2
