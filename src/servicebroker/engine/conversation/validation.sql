-- The statements of validation.py.

-- name: rejection
select from servicebroker.message_types where database_id = $1 and name = $2
