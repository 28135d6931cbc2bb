-- The statements of send.py.

-- name: check_own_side.find_message_types
select from servicebroker.message_types where database_id = $1 and name = $2

-- name: check_own_side.find_queues
select name from servicebroker.queues where queue_id = $1
