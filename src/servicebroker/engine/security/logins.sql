-- The statements of logins.py.

-- name: demand_administrator
select pg_has_role(current_user, nspowner, 'usage') from pg_namespace where nspname = 'servicebroker'

-- name: create_login
insert into servicebroker.logins (name, is_windows) values ($1, $2) on conflict do nothing returning login_id

-- name: create_login.update_logins
update servicebroker.logins set certificate_thumbprint = $2 where login_id = $1

-- name: thumbprint_of
select thumbprint from servicebroker.transport_certificates where lower(name) = lower($1)

-- name: drop_login.find_certificates
select from servicebroker.transport_certificates where login_id = $1 limit 1

-- name: drop_login.update_principals
update servicebroker.principals set login_id = null where login_id = $1

-- name: drop_login.delete_permissions
delete from servicebroker.server_permissions where class = $1 and major_id = $2

-- name: drop_login.delete_logins
delete from servicebroker.logins where login_id = $1

-- name: set_connect.find_endpoints
select endpoint_id from servicebroker.network_endpoints where lower(name) = lower($1)

-- name: set_connect.delete_permissions
delete from servicebroker.endpoint_permissions where endpoint_id = $1 and login_id = $2

-- name: set_connect.insert_permissions
insert into servicebroker.endpoint_permissions values ($1, $2, $3::"char")
on conflict (endpoint_id, login_id) do update set state = excluded.state

-- name: find_login
select login_id from servicebroker.logins where lower(name) = lower($1)

-- name: set_permission.delete_permissions
delete from servicebroker.server_permissions
where class = $1 and major_id = $2 and grantee_id = $3 and permission = $4

-- name: set_permission.insert_permissions
insert into servicebroker.server_permissions values ($1, $2, $3, $4, $5::"char")
on conflict (grantee_id, class, major_id, permission) do update set state = excluded.state
