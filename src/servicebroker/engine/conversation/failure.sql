-- The statements of failure.py.

-- name: fail_with_body.find_endpoints
select conversation_handle, queue_id, state from servicebroker.conversation_endpoints
where conversation_handle = any ($1)

-- name: store_remote_error
insert into servicebroker.arrivals (conversation_handle, failure_code, failure_text)
select conversation_handle, $2, $3 from servicebroker.conversation_endpoints
where conversation_handle = any ($1) and is_remote for key share
on conflict (conversation_handle) do update set failure_code = $2, failure_text = $3
