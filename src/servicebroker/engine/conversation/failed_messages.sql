-- The statements of failed_messages.py.

-- name: find_failures
select failures, first_failed_at, first_error from servicebroker.failed_messages
where conversation_handle = $1 and message_sequence_number = $2 and message_type_id = $3

-- name: record_failure.insert_failed_messages
insert into servicebroker.failed_messages (conversation_handle, queue_id, conversation_group_id, priority,
message_sequence_number, message_type_id, failures, first_failed_at, last_failed_at, first_error, last_error,
held_until) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (conversation_handle) do update set (queue_id, conversation_group_id, priority,
message_sequence_number, message_type_id, failures, first_failed_at, last_failed_at, first_error, last_error,
held_until) = row (excluded.queue_id, excluded.conversation_group_id, excluded.priority,
excluded.message_sequence_number, excluded.message_type_id, excluded.failures, excluded.first_failed_at,
excluded.last_failed_at, excluded.first_error, excluded.last_error, excluded.held_until)

-- name: record_failure.update_queues
update servicebroker.queues set held_until = greatest(held_until, $2) where queue_id = $1

-- name: forget
delete from servicebroker.failed_messages where conversation_handle = any ($1)

-- name: set_aside
insert into servicebroker.set_aside_messages (database_id, queue_id, queue_name, conversation_handle,
conversation_group_id, message_sequence_number, service_name, service_contract_name, message_type_name,
message_type_id, validation, message_body, message_enqueue_time, far_service, far_broker_instance, failures,
first_failed_at, set_aside_at, error, traceback)
select $1, q.queue_id, q.schema_name || '.' || q.name, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
e.far_service, e.far_broker_instance, $13, $14, $15, $16, $17 from servicebroker.queues q
left join servicebroker.conversation_endpoints e on e.conversation_handle = $3 where q.queue_id = $2

-- name: discard
delete from servicebroker.set_aside_messages where database_id = $1 and set_aside_id = $2
returning queue_name, conversation_handle, message_sequence_number, message_type_name
