-- The statements of verb_events.py.

-- name: take_snapshot.find_endpoints
select e.conversation_handle, e.conversation_id, e.conversation_group_id, e.is_initiator, e.state,
e.send_sequence, exists (select from servicebroker.transmission_queue t
where t.conversation_handle = e.conversation_handle), e.database_id
from servicebroker.conversation_endpoints e where e.conversation_id in (select conversation_id
from servicebroker.conversation_endpoints where conversation_handle = any ($1))
order by e.conversation_id, e.is_initiator

-- name: take_snapshot.find_groups
select conversation_group_id from servicebroker.conversation_groups where conversation_group_id = any ($1)
