-- The statements of consistency.py.

-- name: check_queues.find_queues
select queue_id, to_regclass('servicebroker.queue_' || queue_id) is not null
and to_regclass('servicebroker.retained_' || queue_id) is not null
and to_regclass(format('%I.%I', postgres_schema, postgres_name)) is not null from servicebroker.queues
order by queue_id
