-- The statements of unfinished_arrivals.py.

-- name: drop_unfinished.delete_fragments
delete from servicebroker.arrived_fragments where ctid = any (array(select f.ctid from servicebroker.arrived_fragments f
where f.conversation_handle = any ($1) and f.message_sequence_number >= coalesce((select receive_sequence
from servicebroker.arrivals a where a.conversation_handle = f.conversation_handle), 0)
for update skip locked))

-- name: drop_unfinished.delete_contexts
delete from servicebroker.trace_contexts t using servicebroker.conversation_endpoints e
left join servicebroker.arrivals a using (conversation_handle)
where e.conversation_handle = any ($1) and t.conversation_id = e.conversation_id
and t.is_from_initiator = not e.is_initiator and t.message_sequence_number >= coalesce(a.receive_sequence, 0)

-- name: drop_openings
with deleted as (delete from servicebroker.conversation_endpoints where conversation_handle = any (array(
  select e.conversation_handle from servicebroker.conversation_endpoints e
  where e.conversation_handle = any ($1) and e.state = $2 and not e.is_initiator and e.is_remote
  and not exists (select from servicebroker.databases d where d.database_id = e.database_id and d.is_read_only)
  and not exists (select from servicebroker.arrivals a
    where a.conversation_handle = e.conversation_handle and a.receive_sequence > 0)
  and not exists (select from servicebroker.arrived_fragments f where f.conversation_handle = e.conversation_handle)
  for update skip locked)) returning conversation_handle, conversation_group_id),
emptied as (delete from servicebroker.conversation_groups g using deleted
  where g.conversation_group_id = deleted.conversation_group_id
  and not exists (select from servicebroker.conversation_endpoints e
    where e.conversation_group_id = g.conversation_group_id and e.conversation_handle <> deleted.conversation_handle))
select conversation_handle from deleted

-- name: forget_openings
select a.conversation_handle from servicebroker.arrivals a
join servicebroker.conversation_endpoints e using (conversation_handle)
where a.opened_at < $1 and a.receive_sequence = 0 and e.state = $2 and not e.is_initiator and e.is_remote
and not exists (select from servicebroker.databases d where d.database_id = e.database_id and d.is_read_only)
and not exists (select from servicebroker.arrived_fragments f where f.conversation_handle = a.conversation_handle)
order by a.opened_at limit $3
