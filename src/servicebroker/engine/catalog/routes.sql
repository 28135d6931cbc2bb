-- The statements of routes.py.

-- name: create_route
insert into servicebroker.routes
(database_id, name, remote_service_name, broker_instance, lifetime, address, mirror_address, owner_id)
values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict do nothing returning route_id

-- name: alter_route.find_routes
select remote_service_name, broker_instance, address, mirror_address, lifetime
from servicebroker.routes where database_id = $1 and lower(name) = lower($2) for update

-- name: alter_route.update_routes
update servicebroker.routes set remote_service_name = $3, broker_instance = $4, lifetime = $5, address = $6,
mirror_address = $7 where database_id = $1 and lower(name) = lower($2)

-- name: drop_route
delete from servicebroker.routes where database_id = $1 and lower(name) = lower($2) returning route_id

-- name: changed.delete_route_requests
delete from servicebroker.route_requests where database_id = $1 and about = 'Route' and answered is not null
