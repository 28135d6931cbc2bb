-- The statements of transmission.py.

-- name: discard
update servicebroker.conversation_endpoints set send_sequence = send_sequence + $2
where conversation_handle = $1

-- name: get_transmission_status
select coalesce((select transmission_status from servicebroker.transmission_queue t
  where t.conversation_handle = e.conversation_handle order by message_sequence_number limit 1),
(select $3 from servicebroker.arrivals a join servicebroker.arrived_fragments f using (conversation_handle)
  where a.conversation_handle = e.conversation_handle and f.message_sequence_number < a.receive_sequence
  limit 1), '')
from servicebroker.conversation_endpoints e where conversation_handle = $1 and database_id = $2

-- name: lock_delivery
select pg_advisory_xact_lock($1, 0)

-- name: deliver_to_service
select e.conversation_handle from servicebroker.transmission_queue t
join servicebroker.conversation_endpoints e using (conversation_handle)
where e.far_service = $1 and not e.is_remote and t.message_sequence_number = 0 and t.delayed_until is null order by t.enqueue_time

-- name: find_oldest_writer
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: deliverable.find_unopened
select e.conversation_handle from servicebroker.transmission_queue t
join servicebroker.conversation_endpoints e using (conversation_handle)
join servicebroker.databases own on own.database_id = e.database_id and own.is_broker_enabled
where t.xact >= $2::text::xid8 and e.far_handle is null and not e.is_remote
and not exists (select from servicebroker.transmission_queue h where h.conversation_handle = t.conversation_handle
and h.message_sequence_number = 0 and h.delayed_until is not null)
and (t.transmission_status = '' or t.message_sequence_number = 0 and t.transmission_status = $1
and not exists (select from servicebroker.route_requests r
where r.service_name = e.far_service and r.answered is null)
or t.message_sequence_number = 0 and exists (select from servicebroker.services s
join servicebroker.queues q on q.queue_id = s.queue_id and q.is_enqueue_enabled
join servicebroker.databases d on d.database_id = s.database_id and d.is_broker_enabled
where s.name = e.far_service)) group by 1 order by min(t.enqueue_time)

-- name: match_again
select e.conversation_handle from servicebroker.transmission_queue t
join servicebroker.conversation_endpoints e using (conversation_handle)
where t.message_sequence_number = 0 and t.delayed_until is null and e.far_handle is null and not e.is_remote
and e.database_id = $1 order by t.enqueue_time

-- name: deliver_left_over
select pg_try_advisory_xact_lock_shared($1, 0) and coalesce(bool_and(pg_try_advisory_xact_lock_shared($2, hashtext(far_service))), true)
from (select distinct far_service from servicebroker.conversation_endpoints
where conversation_handle = any ($3) order by far_service) waiting

-- name: lock_available.lock_endpoints
select conversation_handle, far_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) for update skip locked

-- name: lock_available.lock_peers
select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) for update skip locked

-- name: deliver.find_ends
select conversation_handle, is_conversation_error from servicebroker.transmission_queue t
where conversation_handle = any ($1) and (is_end_of_dialog or is_conversation_error)
and not exists (select from servicebroker.transmission_queue h where h.conversation_handle = t.conversation_handle
and h.delayed_until is not null)

-- name: finish
update servicebroker.conversation_endpoints p
set state = case when e.conversation_handle = any ($2) then 'ER' else 'DI' end,
can_expire = e.conversation_handle <> all ($2)
from servicebroker.conversation_endpoints e
where e.conversation_handle = any ($1) and p.conversation_handle = e.far_handle
and p.state in ('SO', 'SI', 'CO')

-- name: set_status
update servicebroker.transmission_queue set transmission_status = $2
where conversation_handle = $1 and transmission_status <> $2 and delayed_until is null
