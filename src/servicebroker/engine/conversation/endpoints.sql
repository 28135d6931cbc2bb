-- The statements of endpoints.py.

-- name: lock_endpoint
select from servicebroker.conversation_endpoints where conversation_handle = $1 for update

-- name: lock_rows.lock
select from servicebroker.conversation_endpoints where conversation_id = $1
order by is_initiator for update

-- name: lock_rows.count
select from servicebroker.conversation_endpoints where conversation_id = $1

-- name: lock_parking
select pg_advisory_xact_lock_shared($1, 0)

-- name: lock_group
select servicebroker.lock_group($1)

-- name: keep_lock
select uuid_hash($1) from pg_advisory_lock($2, uuid_hash($1))

-- name: is_unopened
select from servicebroker.transmission_queue where conversation_handle = $1 and message_sequence_number = 0

-- name: remove_closed_endpoints
delete from servicebroker.conversation_endpoints where conversation_handle = any (array(select e.conversation_handle from servicebroker.conversation_endpoints e
join servicebroker.conversation_groups g using (conversation_group_id)
where e.security_timestamp <= $1
and not exists (select from servicebroker.databases d where d.database_id = e.database_id and d.is_read_only)
order by e.security_timestamp limit $2 for update of e, g skip locked))
returning conversation_group_id

-- name: remove_if_empty
select from servicebroker.conversation_groups where conversation_group_id = any ($1)
order by conversation_group_id for update

-- name: close_endpoints.delete_fragments
delete from servicebroker.arrived_fragments where conversation_handle = any ($1)

-- name: remove_empty_groups
delete from servicebroker.conversation_groups g where conversation_group_id = any ($1) and not exists (select from servicebroker.conversation_endpoints e
where e.conversation_group_id = g.conversation_group_id)
