-- The statements of begin.py.

-- name: hold_database
select pg_advisory_xact_lock_shared($1, $2)

-- name: find_own_side
select s.service_id, c.service_contract_id, s.queue_id, q.catalog_version, d.service_broker_guid::text
from servicebroker.databases d
left join servicebroker.services s on s.database_id = d.database_id and s.name = $2
left join servicebroker.queues q on q.queue_id = s.queue_id
left join servicebroker.service_contracts c on c.database_id = d.database_id and c.name = $3
where d.database_id = $1

-- name: related_group
select s.service_id, s.name from servicebroker.conversation_groups g
join servicebroker.services s using (service_id) where g.conversation_group_id = $1 for key share of g

-- name: begin_at.first
select conversation_handle from servicebroker.idempotency_keys
where service_id = $1 and principal_id = $2 and key = $3 and expires_at > $4
and servicebroker.own_queue($5, $1, $6, $7::bigint) is not null

-- name: forget_keys
delete from servicebroker.idempotency_keys where ctid = any (array(
select ctid from servicebroker.idempotency_keys where expires_at <= $1 order by expires_at limit $2 for update skip locked))
returning 1
