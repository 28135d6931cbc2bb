-- The statements of waiting_arrivals.py.

-- name: deliver_free.lock
select pg_try_advisory_xact_lock_shared($1, 0)

-- name: enqueue.by_queue
select queue_id, array_agg(conversation_handle) from servicebroker.conversation_endpoints
where conversation_handle = any ($1) group by queue_id

-- name: enqueue.find_ends
with deleted as (delete from servicebroker.arrived_fragments f using servicebroker.arrivals a
where f.conversation_handle = any ($1) and a.conversation_handle = f.conversation_handle
and f.message_sequence_number < a.receive_sequence returning f.conversation_handle, f.content)
select e.conversation_handle, e.state, max(content)::int from deleted
join servicebroker.conversation_endpoints e using (conversation_handle) group by 1, 2
