-- The statements of requests.py.

-- name: find_answer_queue
select q.queue_id, q.schema_name || '.' || q.name from servicebroker.conversation_endpoints e
join servicebroker.queues q using (queue_id) where e.conversation_handle = $1 and e.database_id = $2

-- name: count_late
select distinct q.queue_id, d.name || '.' || q.schema_name || '.' || q.name
from servicebroker.conversation_groups g join servicebroker.services s using (service_id)
join servicebroker.queues q on q.queue_id = s.queue_id
join servicebroker.databases d on d.database_id = q.database_id
where g.conversation_group_id between $1 and $2 order by 2

-- name: drop_late_answers.find_queues
select distinct s.queue_id from servicebroker.conversation_groups g
join servicebroker.services s using (service_id) join servicebroker.databases d using (database_id)
where g.conversation_group_id between $1 and $2 and not d.is_read_only order by 1

-- name: lock_available_requests
select request.handle from unnest($1::uuid[], $2::uuid[]) as request (handle, group_id)
where pg_try_advisory_xact_lock($3, uuid_hash(request.group_id))
