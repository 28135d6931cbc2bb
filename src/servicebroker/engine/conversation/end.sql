-- The statements of end.py.

-- name: end_permitted
select catalog_version from servicebroker.queues where queue_id = $1

-- name: find_queues
select queue_id, coalesce(far_queue_id, 0), state, is_remote from servicebroker.conversation_endpoints
where conversation_handle = $1

-- name: send_end.notify
select pg_notify($1, '')

-- name: park_end.disconnect
with unread as (delete from servicebroker.arrived_fragments f using servicebroker.arrivals a
  where f.conversation_handle = $1 and a.conversation_handle = $1
  and f.message_sequence_number < a.receive_sequence)
update servicebroker.conversation_endpoints set dialog_timer = null, state = 'DO'
where conversation_handle = $1

-- name: stop_direct_delivery
update servicebroker.conversation_endpoints set far_queue_id = null where conversation_handle = $1

-- name: forget_address
update servicebroker.conversation_endpoints set far_handle = null, far_queue_id = null
where far_handle = $1 and conversation_handle = $2

-- name: set_state
update servicebroker.conversation_endpoints set state = $2, can_expire = $2 not in ('ER', 'CD') where conversation_handle = $1

-- name: answer_ends.lock
select from servicebroker.conversation_endpoints where conversation_id = any (array(select conversation_id from servicebroker.conversation_endpoints where conversation_handle = any ($1)))
order by conversation_id, is_initiator for update

-- name: answer_ends.find
select e.conversation_handle, e.priority, e.conversation_group_id
from servicebroker.conversation_endpoints e join servicebroker.queues q using (queue_id)
where e.conversation_handle = any ($1) and e.queue_id = $2 and e.state = 'DI' and e.lifetime > $3
and not q.keeps_retained and not exists (select from servicebroker.conversation_endpoints p
where p.conversation_id = e.conversation_id and p.is_initiator <> e.is_initiator and p.state <> 'CD')
