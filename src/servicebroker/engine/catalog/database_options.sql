-- The statements of database_options.py.

-- name: enable_broker.find_same_identifier
select d.name, exists (select from servicebroker.databases o where o.database_id <> d.database_id
and o.service_broker_guid = d.service_broker_guid and o.is_broker_enabled)
from servicebroker.databases d where database_id = $1

-- name: new_broker.find_queues
select queue_id from servicebroker.queues where database_id = $1 order by queue_id

-- name: new_broker.find_endpoints
select conversation_handle from servicebroker.conversation_endpoints where database_id = $1

-- name: new_broker.update_endpoints
update servicebroker.conversation_endpoints set far_handle = null, far_queue_id = null
where conversation_handle = any ($1) returning conversation_handle, state

-- name: new_broker.delete_groups
delete from servicebroker.conversation_groups where service_id in
(select service_id from servicebroker.services where database_id = $1)

-- name: new_broker.update_databases
update servicebroker.databases set service_broker_guid = gen_random_uuid() where database_id = $1

-- name: error_broker_conversations.find_endpoints
select conversation_handle from servicebroker.conversation_endpoints where database_id = $1

-- name: honor_broker_priority
update servicebroker.databases set is_honor_broker_priority_on = $2 where database_id = $1

-- name: set_trustworthy
update servicebroker.databases set is_trustworthy_on = $2 where database_id = $1

-- name: set_broker_enabled
update servicebroker.databases set is_broker_enabled = $2 where database_id = $1
