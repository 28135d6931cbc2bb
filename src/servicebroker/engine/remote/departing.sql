-- The statements of departing.py.

-- name: claim
with free as materialized (select conversation_handle as handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) and far_handle is null for no key update skip locked)
update servicebroker.conversation_endpoints e set is_remote = true, routed_broker = c.broker,
security = coalesce(e.security, c.security::"char")
from unnest($1::uuid[], $2::text[], $3::text[]) c (handle, broker, security) join free using (handle)
where e.conversation_handle = c.handle and e.far_handle is null returning e.conversation_handle

-- name: token_of
select token from servicebroker.transmission_queue
where conversation_handle = $1 and message_sequence_number = $2

-- name: acknowledge.lock
-- a READ_ONLY database takes acknowledgements when it is READ_WRITE again
select conversation_handle, is_acknowledged, state = 'DO' from servicebroker.conversation_endpoints e
where conversation_handle = any ($1)
and not exists (select from servicebroker.databases d where d.database_id = e.database_id and d.is_read_only)
for key share of e skip locked

-- name: acknowledge.note
update servicebroker.conversation_endpoints
set is_acknowledged = true, far_broker_instance = broker::text
from unnest($1::uuid[], $2::uuid[]) a (handle, broker) where conversation_handle = handle

-- name: fail
select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) and state = 'DO'

-- name: mark_remote
update servicebroker.conversation_endpoints set is_remote = true
where conversation_handle = any ($1) and not is_remote and far_handle is null

-- name: set_statuses
with free as materialized (select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) for key share skip locked)
-- who ENDs now deletes what waits
update servicebroker.transmission_queue t set transmission_status = s.text
from unnest($1::uuid[], $2::text[]) s (handle, text), free
where t.conversation_handle = s.handle and free.conversation_handle = s.handle
and t.transmission_status <> s.text and t.delayed_until is null
