-- The statements of delayed_messages.py.

-- name: find_due
select array(select distinct t.conversation_handle from (
select d.conversation_handle from servicebroker.transmission_queue d
join servicebroker.conversation_endpoints e using (conversation_handle)
join servicebroker.databases b on b.database_id = e.database_id and not b.is_read_only
where d.delayed_until <= $1 and d.conversation_handle <> all ($3) order by d.delayed_until limit $2) t),
(select min(delayed_until) from servicebroker.transmission_queue where delayed_until > $1)

-- name: release.lock
select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) for no key update skip locked

-- name: release.clear
update servicebroker.transmission_queue set delayed_until = null,
transmission_status = case when transmission_status = $3 then '' else transmission_status end
where conversation_handle = any ($1) and delayed_until <= $2

-- name: find_delayed
select conversation_handle, message_sequence_number, message_type_name, from_service, far_service, size, enqueue_time, due
from servicebroker.delayed_messages($1, $2) order by due, conversation_handle, message_sequence_number

-- name: cancel
select servicebroker.cancel_delayed($1, $2)
