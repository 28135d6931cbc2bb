-- The statements of bindings.py.

-- name: create_remote_service_binding.insert_bindings
insert into servicebroker.remote_service_bindings
(database_id, name, owner_id, remote_service_name, remote_principal_id, is_anonymous_on)
values ($1, $2, $3, $4, $5, $6) on conflict do nothing returning 1

-- name: create_remote_service_binding.find_bindings
select from servicebroker.remote_service_bindings where database_id = $1 and remote_service_name = $2

-- name: alter_remote_service_binding
update servicebroker.remote_service_bindings set remote_principal_id = coalesce($3, remote_principal_id),
is_anonymous_on = coalesce($4, is_anonymous_on)
where database_id = $1 and lower(name) = lower($2) returning 1

-- name: drop_remote_service_binding
delete from servicebroker.remote_service_bindings where database_id = $1 and lower(name) = lower($2)
returning remote_service_binding_id
