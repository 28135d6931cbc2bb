-- The statements of read_only.py.

-- name: set_read_only
update servicebroker.databases set is_read_only = true, broker_when_writable = is_broker_enabled,
is_broker_enabled = false where database_id = $1 and not is_read_only returning 1

-- name: set_read_write
update servicebroker.databases set is_read_only = false where database_id = $1 and is_read_only
returning broker_when_writable

-- name: check_writable
select name from servicebroker.databases where database_id = $1 and is_read_only

-- name: set_write_triggers
select servicebroker.guard_read_only($1, $2, $3, $4, $5)
