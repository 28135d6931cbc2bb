-- The statements of arriving.py.

-- name: try_parking
select pg_try_advisory_xact_lock_shared($1, 0)

-- name: lock_shared
select e.conversation_handle, e.conversation_id, e.is_initiator, e.database_id, e.service_contract_id,
e.queue_id, e.state, q.catalog_version, not q.is_enqueue_enabled or exists (  select from servicebroker.arrived_fragments f join servicebroker.arrivals a using (conversation_handle)
  where f.conversation_handle = e.conversation_handle and f.message_sequence_number < a.receive_sequence),
told.failure_code, told.failure_text, not q.is_enqueue_enabled
from servicebroker.conversation_endpoints e
join servicebroker.queues q on q.queue_id = e.queue_id
join servicebroker.databases d on d.database_id = e.database_id and d.is_broker_enabled
left join servicebroker.arrivals told using (conversation_handle)
where e.conversation_handle = any ($1) for key share of e skip locked

-- name: lock_beside
select conversation_handle from servicebroker.arrivals where conversation_handle = any ($1)
for no key update skip locked

-- name: find_locked_queues
select distinct q.queue_id, d.name || '.' || q.name
from pg_locks l join pg_class c on c.oid = l.relation
join servicebroker.queues q on q.queue_id = substring(c.relname from '^queue_([0-9]+)$')::int
join servicebroker.databases d using (database_id)
left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
and l.database = (select oid from pg_database where datname = current_database())
and c.relnamespace = 'servicebroker'::regnamespace and l.pid is distinct from pg_backend_pid()
and coalesce(a.backend_type, '') <> 'autovacuum worker'
and coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)

-- name: assemble.find_kind
select message_type_name, content::int, fragments from servicebroker.arrived_fragments
where conversation_handle = $1 and message_sequence_number = $2 limit 1

-- name: assemble.find_bodies
select fragment, message_body from (  select fragment, message_body, sum(octet_length(message_body)) over (order by fragment)
    - octet_length(message_body) as before
  from servicebroker.arrived_fragments where conversation_handle = $1 and message_sequence_number = $2) f where before <= $3 order by fragment limit $4

-- name: keep.insert_fragments
insert into servicebroker.arrived_fragments (conversation_handle, message_sequence_number, fragment,
fragments, message_type_name, content, message_body, token, owner)
select *
from unnest($1::uuid[], $2::bigint[], $3::int[], $4::int[], $5::text[], $6::smallint[], $7::bytea[],
  $8::bytea[], $9::text[])

-- name: keep.delete_fragments
delete from servicebroker.arrived_fragments f
using unnest($1::uuid[], $2::bigint[], $3::bigint[]) d (handle, first, below)
where f.conversation_handle = d.handle and f.message_sequence_number >= d.first
and f.message_sequence_number < d.below

-- name: advance.insert_arrivals
insert into servicebroker.arrivals (conversation_handle) select unnest($1::uuid[]) on conflict do nothing

-- name: advance.update_arrivals
update servicebroker.arrivals a set receive_sequence = m.reached, token = m.token,
last_stamp = greatest(last_stamp, pg_current_xact_id())
from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[]) m (handle, expected, reached, token)
where a.conversation_handle = m.handle and a.receive_sequence = m.expected returning m.handle

-- name: deliver.delete_fragments
delete from servicebroker.arrived_fragments f using unnest($1::uuid[], $2::bigint[]) g (handle, number)
where f.conversation_handle = g.handle and f.message_sequence_number = g.number

-- name: deliver.keep_beside
insert into servicebroker.arrived_fragments (conversation_handle, message_sequence_number, fragment,
fragments, message_type_name, content, message_body)
select handle, number, 0, 1, type, content, body
from unnest($1::uuid[], $2::bigint[], $3::text[], $4::smallint[], $5::bytea[])
  m (handle, number, type, content, body)

-- name: apply_ends
update servicebroker.conversation_endpoints e set state = s.state, can_expire = s.state not in ('ER', 'CD')
from unnest($1::uuid[], $2::text[]) s (handle, state)
where e.conversation_handle = s.handle
