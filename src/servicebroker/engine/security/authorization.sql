-- The statements of authorization.py.

-- name: find_login_rights
select class, major_id, grantee_id, permission, state::text from servicebroker.server_permissions
where grantee_id in ($1, $2)

-- name: authorize_end
select state from servicebroker.conversation_endpoints where conversation_handle = $1

-- name: forget_permissions
delete from servicebroker.permissions where database_id = $1 and class = $2 and major_id = $3

-- name: user_named
select principal_id, name from servicebroker.principals
where database_id = $1 and lower(name) = lower($2) and not is_role

-- name: queue_of
select q.queue_id, q.owner_id, s.name, q.schema_id from servicebroker.services s
join servicebroker.queues q using (queue_id) where s.database_id = $1 and s.name = $2

-- name: conversation
select e.conversation_handle, s.service_id, s.owner_id, s.name, q.queue_id, q.owner_id, q.schema_id
from servicebroker.conversation_endpoints e join servicebroker.services s using (service_id)
join servicebroker.queues q on q.queue_id = e.queue_id
where e.conversation_handle = any ($1) and e.database_id = $2
