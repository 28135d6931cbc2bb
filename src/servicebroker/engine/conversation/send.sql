-- The statements of send.py.

-- name: check_own_side.find_message_types
select (select name from servicebroker.service_contracts where database_id = $1 and service_contract_id = $3),
array(select c.name from servicebroker.service_contract_message_usages u
join servicebroker.service_contracts c using (database_id, service_contract_id)
where u.database_id = $1 and u.message_type_id = t.message_type_id order by c.name)
from servicebroker.message_types t where database_id = $1 and name = $2

-- name: check_own_side.find_queues
select name from servicebroker.queues where queue_id = $1
