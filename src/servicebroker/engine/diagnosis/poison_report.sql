-- The statements of poison_report.py.

-- name: off_queues.find_queues
select d.name, q.schema_name || '.' || q.name, q.queue_id from servicebroker.queues q
join servicebroker.databases d using (database_id) where not q.is_receive_enabled order by 1, 2

-- name: find_failing_queues
select distinct queue_id from servicebroker.failed_messages join servicebroker.queues using (queue_id) order by 1

-- name: queued_messages.find_view
select postgres_schema, postgres_name from servicebroker.queues where queue_id = $1

-- name: queue_of_conversation
select q.schema_name || '.' || q.name from servicebroker.conversation_endpoints e
join servicebroker.queues q using (queue_id) where e.conversation_handle = $2 and e.database_id = $1

-- name: open_conversations
select conversation_handle from servicebroker.conversation_endpoints
where database_id = $1 and conversation_handle = any($2::uuid[]) and state <> 'CD'

-- name: forget_failures.delete_failed_messages
delete from servicebroker.failed_messages where queue_id = $1 returning true

-- name: forget_failures.update_queues
update servicebroker.queues q set held_until = null from servicebroker.databases d
where queue_id = $1 and d.database_id = q.database_id returning d.name, q.schema_name || '.' || q.name
