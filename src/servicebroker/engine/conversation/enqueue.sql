-- The statements of enqueue.py.

-- name: wake
select set_config('synchronous_commit', 'off', true), pg_notify('servicebroker', queue_id::text)
from servicebroker.waiting_readers
where queue_id = any ($1) group by queue_id
