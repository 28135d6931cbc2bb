-- The statements of principals.py.

-- name: find_login_of
select l.name, p.login_id, p.postgres_role from servicebroker.principals p
left join servicebroker.logins l using (login_id) where p.database_id = $1 and p.principal_id = $2

-- name: find_impersonated_login
select login_id, name from servicebroker.logins where lower(name) = lower($1) and login_id <> $2

-- name: create_user.find_principals
select exists (select from servicebroker.principals where database_id = $1 and postgres_role = rolname)
from pg_roles where rolname = $2

-- name: create_user.update_principals
update servicebroker.principals set certificate_thumbprint = $3
where database_id = $1 and principal_id = $2

-- name: create_user.insert_permissions
insert into servicebroker.permissions values ($1, $2, 0, $3, $4, 'CONNECT', $5::"char")

-- name: login
select login_id, exists (select from servicebroker.principals p where p.database_id = $1
and p.login_id = l.login_id) from servicebroker.logins l where lower(name) = lower($2) and login_id <> $3

-- name: drop_role
select from servicebroker.role_members where database_id = $1 and role_id = $2 limit 1

-- name: add_role_member
insert into servicebroker.role_members (database_id, role_id, member_id) values ($1, $2, $3)
on conflict do nothing

-- name: drop_role_member
delete from servicebroker.role_members where database_id = $1 and role_id = $2 and member_id = $3 returning 1

-- name: find
select principal_id, name, is_role from servicebroker.principals
where database_id = $1 and lower(name) = lower($2)

-- name: create
insert into servicebroker.principals (database_id, name, is_role, postgres_role, login_id)
values ($1, $2, $3, $4, $5) on conflict do nothing returning principal_id

-- name: drop.find_bindings
select from servicebroker.remote_service_bindings where database_id = $1 and remote_principal_id = $2 limit 1

-- name: drop.find_permissions
select from servicebroker.permissions where database_id = $1 and grantor_id = $2 limit 1

-- name: drop.find_tsql_modules
select from servicebroker.tsql_modules where database_id = $1 and lower($2) =
lower(case execute_as when 'SELF' then creator when 'OWNER' then null else execute_as end) limit 1

-- name: drop.delete_principals
delete from servicebroker.principals where database_id = $1 and principal_id = $2
