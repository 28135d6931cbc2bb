-- The statements of missing_routes.py.

-- name: ask_for_binding.find_routes
select exists (select from servicebroker.routes where database_id = $1 and remote_service_name = $2
and (lifetime is null or lifetime > $3))

-- name: ask_for_binding.find_route_requests
select from servicebroker.route_requests
where database_id = $1 and about = $2 and service_name = $3 and answered is null

-- name: ask.lock
select pg_try_advisory_xact_lock($1, hashtext($2)), exists (select from servicebroker.route_requests
where database_id = $3 and about = $5 and service_name = $2 and (answered is null or answered > $4)),
exists (select from servicebroker.route_requests
where database_id = $3 and about = $5 and service_name = $2 and was_useless)

-- name: ask.insert_route_requests
insert into servicebroker.route_requests as r (database_id, about, service_name, conversation_handle)
values ($1, $5, $2, $3) on conflict (database_id, about, service_name) do update
set conversation_handle = $3, answered = null where r.answered <= $4 returning 1

-- name: ask.delete_last
with deleted as (delete from servicebroker.conversation_endpoints where conversation_handle = $1
returning conversation_group_id)
delete from servicebroker.conversation_groups g using deleted
where g.conversation_group_id = deleted.conversation_group_id

-- name: ask.wake
select pg_notify($1, '')

-- name: forget_answered_requests
with old as (select ctid from servicebroker.route_requests where answered < $1 limit 1000),
deleted as (delete from servicebroker.route_requests where ctid = any (array(select ctid from old)) returning 1)
select count(*) from deleted
