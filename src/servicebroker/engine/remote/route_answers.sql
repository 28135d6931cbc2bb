-- The statements of route_answers.py.

-- name: take_route_answers.find_requests
select r.database_id, r.conversation_handle, e.state, e.queue_id,
e.state is null or pg_try_advisory_xact_lock($1, uuid_hash(e.conversation_group_id)),
pg_try_advisory_xact_lock($2, 0)
-- as `lock_delivery`
from servicebroker.route_requests r
left join servicebroker.conversation_endpoints e using (conversation_handle)
where r.answered is null and coalesce(e.state, 'CD') not in ('SO', 'CO')
and not exists (select from servicebroker.databases d where d.database_id = r.database_id and d.is_read_only)
for update of r skip locked

-- name: take_route_answers.note_answer
update servicebroker.route_requests r set answered = $2, was_useless = not conversation_handle = any ($3)
and case about when 'Route' then not exists (select from servicebroker.routes o
  where o.database_id = r.database_id and o.remote_service_name = r.service_name
  and (o.lifetime is null or o.lifetime > $2))
else not exists (select from servicebroker.remote_service_bindings b
  where b.database_id = r.database_id and b.remote_service_name = r.service_name) end
where conversation_handle = any ($1)
