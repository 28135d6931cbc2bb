-- The statements of traces.py.

-- name: send_with_context.begin
select

-- name: send_with_context.insert_contexts
insert into servicebroker.trace_contexts
select conversation_id, is_initiator, first + i, $4, $5
from unnest($1::uuid[], $2::bigint[]) s (handle, first)
join servicebroker.conversation_endpoints on conversation_handle = handle
cross join generate_series(0, $3 - 1) i on conflict do nothing

-- name: take
with deleted as (delete from servicebroker.trace_contexts t
using unnest($1::uuid[], $2::bigint[]) with ordinality m (handle, number, place)
join servicebroker.conversation_endpoints e on e.conversation_handle = handle
where t.conversation_id = e.conversation_id and t.is_from_initiator = not e.is_initiator
and t.message_sequence_number = number returning place, context)
select context from deleted order by place

-- name: find_contexts
select message_sequence_number, context from servicebroker.trace_contexts
where conversation_id = $1 and is_from_initiator = $2 and message_sequence_number between $3 and $4
order by message_sequence_number

-- name: store_contexts
insert into servicebroker.trace_contexts
select *, $5 from unnest($1::uuid[], $2::boolean[], $3::bigint[], $4::bytea[]) on conflict do nothing

-- name: remove_delivered
delete from servicebroker.trace_contexts t using unnest($1::uuid[], $2::bigint[]) a (handle, below)
join servicebroker.conversation_endpoints e on e.conversation_handle = handle
where t.conversation_id = e.conversation_id and t.is_from_initiator = e.is_initiator
and t.message_sequence_number < below

-- name: delete_old_traces
with old as (select ctid from servicebroker.trace_contexts where stored_at < $1 limit $2),
deleted as (delete from servicebroker.trace_contexts where ctid = any (array(select ctid from old)) returning 1)
select count(*) from deleted
