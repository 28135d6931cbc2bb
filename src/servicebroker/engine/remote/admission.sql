-- The statements of admission.py.

-- name: find_target
select s.owner_id, s.name, q.queue_id, q.owner_id, q.name from servicebroker.services s
join servicebroker.queues q using (queue_id) where s.service_id = $1
