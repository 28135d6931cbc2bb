-- The statements of move.py.

-- name: move_conversation
with moved as (update servicebroker.conversation_endpoints set conversation_group_id = $2
where conversation_handle = $1),
arriving as (update servicebroker.arrivals set last_stamp = greatest(last_stamp, pg_current_xact_id())
where conversation_handle = $1)
update servicebroker.conversation_endpoints set far_group_id = $2,
last_stamp = greatest(last_stamp, pg_current_xact_id()) where conversation_handle = $3 and far_handle = $1

-- name: lock_groups.lock
select pg_advisory_xact_lock($1, uuid_hash($2))

-- name: lock_groups.in_order
select g from unnest($1::uuid[]) g order by uuid_hash(g)

-- name: check_group
select conversation_group_id, service_id from servicebroker.conversation_groups
where conversation_group_id = any ($1) order by conversation_group_id for update
