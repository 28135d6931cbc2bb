-- The statements of alter.py.

-- name: lock_begins
select pg_advisory_xact_lock($1, $2)

-- name: renew_versions
with version as materialized (select nextval('servicebroker.catalog_versions') as number)
update servicebroker.queues set catalog_version = number from version
where $1::int is null or database_id = $1

-- name: renew_routes
update servicebroker.databases set routes_version = nextval('servicebroker.catalog_versions')
where $1::int is null or database_id = $1

-- name: alter_queue.note_change
update servicebroker.queues set modify_date = clock_timestamp() where queue_id = $1

-- name: alter_queue.poison_handling
update servicebroker.queues set is_poison_message_handling_enabled = $2 where queue_id = $1

-- name: drop_queue.find_services
select from servicebroker.services where queue_id = $1 limit 1

-- name: drop_queue.delete_queues
delete from servicebroker.queues where queue_id = $1 returning postgres_schema, postgres_name

-- name: find_dropped_queues
select t.queue_id from pg_tables, substring(tablename from '^queue_([0-9]+)$') as number,
cast(number as integer) as t (queue_id)
where schemaname = 'servicebroker' and t.queue_id is not null
and not exists (select from servicebroker.queues q where q.queue_id = t.queue_id)

-- name: remove_dropped_queue.find_functions
select oid::regprocedure::text from pg_proc where pronamespace = 'servicebroker'::regnamespace
and proname ~ ('_' || $1::text || '$')

-- name: wake_readers
select pg_notify('servicebroker', $1)
