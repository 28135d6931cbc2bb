-- The statements of poison_detection.py.

-- name: find_outcomes
select x, pg_xact_status(x::text::xid8) from unnest($1::bigint[]) x

-- name: find_pending_alerts
select q.queue_id, d.name, q.schema_name, q.name, a.at from servicebroker.disabled_queues a
join servicebroker.queues q using (queue_id) join servicebroker.databases d using (database_id) order by a.at

-- name: mark_alerted
delete from servicebroker.disabled_queues where queue_id = $1 and at = $2
