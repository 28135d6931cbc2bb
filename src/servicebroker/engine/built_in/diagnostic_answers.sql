-- The statements of diagnostic_answers.py.

-- name: answer_query
select d.service_broker_guid::text, s.service_id, q.is_enqueue_enabled, array(select c.name
  from servicebroker.service_contract_usages u join servicebroker.service_contracts c
  on c.database_id = u.database_id and c.service_contract_id = u.service_contract_id
  where u.service_id = s.service_id order by c.name)
from servicebroker.databases d left join servicebroker.services s
  on s.database_id = d.database_id and s.name = $2
left join servicebroker.queues q on q.queue_id = s.queue_id where d.database_id = $1

-- name: may_send
select far_principal_id from servicebroker.conversation_keys where conversation_handle = $1
