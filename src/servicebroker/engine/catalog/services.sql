-- The statements of services.py.

-- name: drop_service.delete_groups
delete from servicebroker.conversation_groups where service_id = $1

-- name: drop_service.delete_services
delete from servicebroker.services where service_id = $1

-- name: find
select service_id, queue_id, exists (select from servicebroker.broker_priorities p
where p.local_service_id = s.service_id) from servicebroker.services s
where database_id = $1 and name = $2 for update of s

-- name: add_contract
insert into servicebroker.service_contract_usages (database_id, service_id, service_contract_id)
values ($1, $2, $3) on conflict do nothing returning 1

-- name: drop_contract
delete from servicebroker.service_contract_usages where service_id = $1 and service_contract_id = $2
returning 1

-- name: move.update_endpoints
update servicebroker.conversation_endpoints set queue_id = $2 where service_id = $1

-- name: move.update_peers
update servicebroker.conversation_endpoints
set far_queue_id = case when far_queue_id is not null then $2 end,
last_stamp = greatest(last_stamp, pg_current_xact_id()) where far_service_id = $1 and far_handle is not null

-- name: move.update_arrivals
update servicebroker.arrivals a set last_stamp = greatest(a.last_stamp, pg_current_xact_id())
from servicebroker.conversation_endpoints e
where e.service_id = $1 and a.conversation_handle = e.conversation_handle

-- name: move.update_services
update servicebroker.services set queue_id = $2 where service_id = $1

-- name: move.find_columns
select quote_ident(attname) from pg_attribute where attrelid = ('servicebroker.queue_' || $1)::regclass
and attnum > 0 and not attisdropped and attname not in ('queuing_order', 'stamp') order by attnum

-- name: raise_change_count
update servicebroker.queues set service_changes = service_changes + 1 where queue_id = $1
