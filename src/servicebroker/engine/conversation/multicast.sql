-- The statements of multicast.py.

-- name: lock
select from servicebroker.conversation_endpoints where conversation_handle = any ($1)
order by conversation_id, is_initiator for update
