-- The statements of echo_and_query.py.

-- name: answer_built_in.find_queues
select q.queue_id, q.database_id, q.name from servicebroker.services s
join servicebroker.queues q using (queue_id)
join servicebroker.databases d on d.database_id = q.database_id and not d.is_read_only where s.name = $1 and s.service_id < $2
and pg_relation_size(to_regclass('servicebroker.queue_' || q.queue_id)) > 0
