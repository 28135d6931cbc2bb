-- The statements of dashboard_queries.py.

-- name: find_queue_details
select q.queue_id, d.name, q.schema_name || '.' || q.name, coalesce((select array_agg(s.name order by s.name)
  from servicebroker.services s where s.queue_id = q.queue_id), '{}'), q.is_receive_enabled,
q.is_activation_enabled, q.activation_procedure, q.max_readers, q.is_retention_enabled,
q.is_poison_message_handling_enabled,
(select m.state from sys.dm_broker_queue_monitors m where m.queue_id = q.queue_id),
0,
(select count(*) from servicebroker.set_aside_messages a where a.queue_id = q.queue_id)
from servicebroker.queues q join servicebroker.databases d using (database_id)
where lower(d.name) = lower($1) and lower(q.schema_name || '.' || q.name) = lower($2)

-- name: queue_names
select d.name, q.schema_name || '.' || q.name, coalesce((select array_agg(s.name order by s.name)
  from servicebroker.services s where s.queue_id = q.queue_id), '{}')
from servicebroker.queues q join servicebroker.databases d using (database_id) where q.queue_id >= $1

-- name: endpoint
select d.name, e.conversation_handle, e.conversation_id, e.is_initiator, e.state, coalesce(s.name, ''),
e.far_service, e.far_broker_instance, coalesce(c.name, ''), e.conversation_group_id, e.priority,
q.schema_name || '.' || q.name, e.queue_id, q.is_receive_enabled, e.send_sequence, v.receive_sequence,
e.lifetime, e.dialog_timer, p.conversation_handle
from servicebroker.conversation_endpoints e join servicebroker.databases d using (database_id)
join servicebroker.queues q using (queue_id)
join sys.conversation_endpoints v on v.conversation_handle = e.conversation_handle
left join servicebroker.services s on s.service_id = e.service_id
left join servicebroker.service_contracts c
  on c.database_id = e.database_id and c.service_contract_id = e.service_contract_id
left join servicebroker.conversation_endpoints p
  on p.conversation_id = e.conversation_id and p.is_initiator = not e.is_initiator
where e.conversation_handle = $1

-- name: routes
select broker_database, name, remote_service_name, broker_instance::text, address, mirror_address, lifetime,
coalesce(lifetime <= $1, false) from sys.routes order by broker_database, route_id

-- name: brokers
select service_broker_guid::text, broker_database from sys.databases

-- name: links
select coalesce(remote_user_name, ''), is_accept = 1, coalesce(login_state_desc, ''), principal_name,
encryption_algorithm_desc, connect_time, last_activity_time, total_bytes_sent, total_bytes_received
from sys.dm_broker_connections order by connect_time

-- name: count_forwarded
select count(*) from sys.dm_broker_forwarded_messages

-- name: dead_letters_of
select a.set_aside_id, d.name, a.queue_name, a.conversation_handle, a.message_sequence_number, a.message_type_name,
a.failures, a.set_aside_at, a.error
from servicebroker.set_aside_messages a join servicebroker.databases d using (database_id)
where a.conversation_handle = any ($1::uuid[]) order by a.set_aside_id desc limit $2
