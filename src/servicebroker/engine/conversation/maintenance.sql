-- The statements of maintenance.py.

-- name: find_bloated_queues
select queue_id from servicebroker.queues
where pg_total_relation_size(to_regclass('servicebroker.queue_' || queue_id)) > $1 order by queue_id

-- name: truncate_empty_queue
select servicebroker.truncate_if_empty($1)
