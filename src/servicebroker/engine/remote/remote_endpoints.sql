-- The statements of remote_endpoints.py.

-- name: find_kept
select conversation_handle, message_sequence_number, min(least), max(most),
array_agg(first order by first), array_agg(behind order by first), sum(size)::bigint, max(content)::int,
(array_agg(token))[1] from (  select conversation_handle, message_sequence_number, min(fragments) as least, max(fragments) as most,
    min(fragment) as first, max(fragment) + 1 as behind,
    sum(coalesce(octet_length(message_body), 0)) as size,
    max(content) as content, (array_agg(token))[1] as token from (    select *, fragment - row_number() over
        (partition by conversation_handle, message_sequence_number order by fragment) as run
    from servicebroker.arrived_fragments f
    where conversation_handle = any ($1) and message_sequence_number >= coalesce((select receive_sequence
      from servicebroker.arrivals a where a.conversation_handle = f.conversation_handle), 0) - 1) f
  group by 1, 2, run) r group by 1, 2

-- name: drop_impossible
delete from servicebroker.arrived_fragments f using unnest($1::uuid[], $2::bigint[]) d (handle, number)
where f.conversation_handle = d.handle and f.message_sequence_number = d.number

-- name: lock_shared
select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) for key share skip locked

-- name: find_gone
select conversation_handle from servicebroker.conversation_endpoints where conversation_handle = any ($1)

-- name: find_in_queues
select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) and queue_id = any ($2)

-- name: lock_alone
select conversation_handle from servicebroker.conversation_endpoints
where conversation_handle = any ($1) for no key update skip locked

-- name: groups_of
select conversation_handle, conversation_group_id from servicebroker.conversation_endpoints
where conversation_handle = any ($1)

-- name: existing_groups
select conversation_group_id from servicebroker.conversation_groups where conversation_group_id = any ($1)
