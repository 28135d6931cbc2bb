-- The statements of replay.py.

-- name: find
select m.conversation_handle, m.message_sequence_number, m.message_type_id, m.message_type_name,
m.validation::text, m.message_body, m.service_name, m.service_contract_name, m.far_service,
exists (select from servicebroker.services s where s.database_id = m.database_id and s.name = m.far_service),
(select case when u.is_sent_by_initiator and u.is_sent_by_target then null else u.is_sent_by_initiator end
from servicebroker.service_contracts c
join servicebroker.service_contract_message_usages u using (database_id, service_contract_id)
where c.database_id = m.database_id and c.name = m.service_contract_name
and u.message_type_id = m.message_type_id)
from servicebroker.set_aside_messages m where m.database_id = $1 and m.set_aside_id = $2 for update of m

-- name: check
select catalog_version from servicebroker.queues where queue_id = $1
