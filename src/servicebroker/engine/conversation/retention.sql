-- The statements of retention.py.

-- name: set_retention
update servicebroker.queues set is_retention_enabled = $2, keeps_retained = keeps_retained or $2
where queue_id = $1

-- name: move_to_queue.update_queues
update servicebroker.queues set keeps_retained = true where queue_id = $2 and not keeps_retained
and (select keeps_retained from servicebroker.queues where queue_id = $1)
