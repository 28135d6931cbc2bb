-- The statements of priorities.py.

-- name: create_broker_priority
insert into servicebroker.broker_priorities
(database_id, name, service_contract_id, local_service_id, remote_service_name, priority)
values ($1, $2, $3, $4, $5, $6)

-- name: alter_broker_priority
update servicebroker.broker_priorities set service_contract_id = $2, local_service_id = $3,
remote_service_name = $4, priority = coalesce($5, priority) where priority_id = $1

-- name: drop_broker_priority
delete from servicebroker.broker_priorities where priority_id = $1

-- name: find
select priority_id, service_contract_id, local_service_id, remote_service_name
from servicebroker.broker_priorities where database_id = $1 and lower(name) = lower($2)

-- name: find_ids
select (select service_contract_id from servicebroker.service_contracts
        where database_id = $1 and name = $2),
       (select service_id from servicebroker.services where database_id = $1 and name = $3)

-- name: refuse_taken
select from servicebroker.broker_priorities where database_id = $1 and priority_id <> $2
and (lower(name) = lower($3) or service_contract_id is not distinct from $4
and local_service_id is not distinct from $5 and remote_service_name is not distinct from $6)
